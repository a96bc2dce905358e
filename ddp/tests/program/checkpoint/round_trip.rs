//! A checkpoint is restored bit for bit by any number of ranks.

use ddp::checkpoint::{CheckpointError, ShardRange, StateReader};
use ddp::model::file::ModelFile;
use proptest::prelude::*;

use super::fixture::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_number_of_ranks_reads_what_any_other_wrote(
        dims in prop::collection::vec(1usize..40, 2..5), writers in 1usize..6, readers in 1usize..9, step in 1u64..1000,
    ) {
        let dir = temp_dir();
        let layout = layout(&dims);
        let store = saved(dir.path(), &layout, writers, [step]);
        let found = store.newest_valid().unwrap().found.unwrap();
        prop_assert_eq!(found.manifest().run.clone(), run_state(step));
        prop_assert_eq!(found.manifest().files.len(), writers + 1);
        check_content(&found, &layout, readers);
    }

    #[test]
    fn pieces_of_several_ranges_are_found_at_their_offsets(
        cuts in prop::collection::vec(0usize..700, 0..10), writers in 1usize..4,
    ) {
        let dir = temp_dir();
        let layout = layout(&[7, 20, 11, 3]);
        let store = saved(dir.path(), &layout, writers, [3]);
        let found = store.newest_valid().unwrap().found.unwrap();
        let reader = StateReader::open(&found).unwrap();
        // Every other range between the cuts, like a rank that owns a part of each bucket.
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(layout.flat_len())).collect();
        cuts.sort_unstable();
        let ranges: Vec<_> = cuts.windows(2).step_by(2).map(|pair| pair[0]..pair[1]).collect();
        let mut state = vec![f32::NAN; ranges.iter().map(ExactSizeIterator::len).sum()];
        reader.read(&ShardRange::from_ranges(&layout, &ranges), "v", &mut state).unwrap();
        let is_param = |at: usize| layout.entries().iter().any(|entry| entry.range().contains(&at));
        for (got, at) in state.iter().zip(ranges.into_iter().flatten()) {
            prop_assert!(if is_param(at) { *got == value("v", 3, at) } else { got.is_nan() }, "{at}");
        }
    }
}

#[test]
fn weights_are_a_models_file_as_a_run_writes_it() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let found = saved(dir.path(), &layout, 1, [4]).newest_valid().unwrap().found.unwrap();
    let file = ModelFile::read(&found.model_path()).unwrap();
    assert_eq!(file.info().unwrap(), options(&layout, 0, 1).info);
    let weights = file.weights(&layout).unwrap().to_vec::<f32>().unwrap();
    for entry in layout.entries() {
        assert_eq!(weights[entry.range()], values("weights", 4, entry.range()), "{}", entry.name);
    }
}

#[test]
fn a_run_without_optimizer_state_has_no_state_files() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let none = |options: &mut ddp::checkpoint::SaveOptions| {
        options.state_names.clear();
        options.shard_ranges.clear();
    };
    let store = saved(dir.path(), &layout, 1, []);
    save_on_ranks(dir.path(), &layout, &run_state(1), &os_disk(), 1, none).remove(0).unwrap();
    let found = store.newest_valid().unwrap().found.unwrap();
    assert_eq!(found.manifest().files.len(), 1);
    let reader = StateReader::open(&found).unwrap();
    let error = reader
        .read(&options(&layout, 0, 1).shard_ranges, "m", &mut vec![0.0; layout.flat_len()])
        .unwrap_err();
    assert!(error.to_string().contains("lacks \"m\" for elements 0 to"), "{error}");
}

#[test]
fn gaps_and_other_models_are_told_by_name() {
    let dir = temp_dir();
    let layout_a = layout(&[3, 5, 2]);
    let found = saved(dir.path(), &layout_a, 2, [1]).newest_valid().unwrap().found.unwrap();
    let reader = StateReader::open(&found).unwrap();
    let piece = ShardRange { param: "layers.0.weight".to_owned(), start: 10, end: 20, offset: 0 };
    let error = reader.read(&[piece], "m", &mut [0.0; 10]).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Gap { param, start: 15, end: 20, .. } if param == "layers.0.weight"),
        "{error}"
    );
    let other = layout(&[3, 6, 4, 2]);
    let error = load(&found, &other, 1).unwrap_err().to_string();
    for part in [
        "layers.0.weight is [5, 3] in the checkpoint, [6, 3] in the model",
        "layers.2.weight [2, 4] is not in the checkpoint",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(layout_a != other);
}
