//! Selection of the checkpoints that are kept.

use std::fs;

use ddp::checkpoint::{CheckpointError, CheckpointStore, Marker, SaveOptions, Saver};

use super::fixture::*;

fn saver(store: &CheckpointStore, keep: usize, keep_best: bool) -> Saver {
    let layout = layout(&[3, 5, 2]);
    Saver::new(store.clone(), SaveOptions { keep, keep_best, ..options(&layout, 0, 1) })
}

#[test]
fn the_newest_and_the_best_stay() {
    let dir = temp_dir();
    let store = saved(dir.path(), &layout(&[3, 5, 2]), 1, []);
    let mut saver = saver(&store, 2, true);
    // The checkpoint of step 2 is the best until step 6.
    for (step, best, left, deleted) in [
        (1, 1, &[1][..], &[][..]),
        (2, 2, &[1, 2], &[]),
        (3, 2, &[2, 3], &[1]),
        (4, 2, &[2, 3, 4], &[]),
        (5, 2, &[2, 4, 5], &[3]),
        (6, 6, &[5, 6], &[2, 4]),
        (7, 6, &[6, 7], &[5]),
        (8, 6, &[6, 7, 8], &[]),
    ] {
        let saved = save(&mut saver, &run_state_with_best(step, best)).unwrap();
        assert_eq!((saved.deleted.as_slice(), saved.step), (deleted, step));
        assert_eq!(store.steps().unwrap(), left, "after step {step}");
        assert_eq!(store.marked_step(Marker::Best), Some(best));
        assert_eq!(store.marked(Marker::Latest), Some(format!("step-{step}")));
    }
    assert_eq!(names(&store), ["best", "latest", "step-6", "step-7", "step-8"]);
}

#[test]
fn all_stay_if_so_wished() {
    let dir = temp_dir();
    let store = saved(dir.path(), &layout(&[3, 5, 2]), 1, []);
    let mut saver = saver(&store, 0, false);
    (1..=5).for_each(|step| assert!(save(&mut saver, &run_state(step)).unwrap().deleted.is_empty()));
    assert_eq!(store.steps().unwrap(), [1, 2, 3, 4, 5]);
}

#[test]
fn broken_ones_do_not_count() {
    let dir = temp_dir();
    let store = saved(dir.path(), &layout(&[3, 5, 2]), 1, 1..=5);
    for step in [4, 5] {
        fs::remove_file(store.step_folder(step).join("model.safetensors")).unwrap();
    }
    let mut saver = saver(&store, 3, false);
    // Of the valid ones, 3, 2 and the new one are kept; the damaged ones are kept too.
    assert_eq!(save(&mut saver, &run_state(6)).unwrap().deleted, [1]);
    assert_eq!(store.steps().unwrap(), [2, 3, 4, 5, 6]);
    assert_eq!(save(&mut saver, &run_state(7)).unwrap().deleted, [2]);
    assert_eq!(save(&mut saver, &run_state(8)).unwrap().deleted, [3, 4, 5]);
}

/// A disk that flips a bit in each file of weights.
#[derive(Debug)]
struct Forgetful;

impl ddp::storage::disk::Disk for Forgetful {
    fn sync(&self, file: &ddp::storage::disk::OpenFile) -> std::io::Result<()> {
        if file.path.ends_with("model.safetensors") {
            let mut bytes = fs::read(&file.path)?;
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&file.path, bytes)?;
        }
        Ok(())
    }
}

#[test]
fn none_goes_for_one_that_does_not_read_back() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 1, 1..=2).with_disk(std::sync::Arc::new(Forgetful));
    let error = save(&mut saver(&store, 1, false), &run_state(3)).unwrap_err();
    assert!(matches!(&error, CheckpointError::ReadBack { step: 3, .. }), "{error}");
    assert!(error.to_string().contains("model.safetensors was changed"), "{error}");
    assert_eq!(store.steps().unwrap(), [1, 2, 3]);
    let search = store.newest_valid().unwrap();
    assert_eq!((search.found.unwrap().manifest().run.step, search.skipped.len()), (2, 1));
}

/// A run that resumed before a damaged checkpoint: its own saves count until it has passed that checkpoint.
#[test]
fn a_damaged_one_ahead_takes_no_place() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 1, [1, 2, 5]);
    let model = store.step_folder(5).join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&model, bytes).unwrap();
    let mut saver = saver(&store, 1, false);
    for (step, left) in [(3, vec![3, 5]), (4, vec![4, 5]), (6, vec![6])] {
        save(&mut saver, &run_state(step)).unwrap();
        assert_eq!(store.steps().unwrap(), left, "after step {step}");
        assert_eq!(store.newest_valid().unwrap().found.unwrap().manifest().run.step, step);
        // It is not the one to resume from either if a save fails.
        let (none, state) = (vec![f32::NAN; layout.flat_len()], [&[][..]; STATES.len()]);
        let error =
            ddp_kernels::hint::with_hint(&saver.save(&run_state(step), Some(&none), &state).unwrap_err());
        assert!(error.contains(&format!("the newest good checkpoint is step-{step}\n")), "{error}");
    }
}

#[test]
fn a_run_that_is_replaced_leaves_nothing_behind() {
    let dir = temp_dir();
    let store = saved(dir.path(), &layout(&[3, 5, 2]), 1, [1, 2]);
    store.delete_all().unwrap();
    assert!(!store.folder().exists());
    store.delete_all().unwrap();
}
