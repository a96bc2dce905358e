//! Every flipped bit, every truncation and every lost file of a checkpoint is detected, and an older checkpoint is used instead.

use std::fs;
use std::path::PathBuf;

use ddp::checkpoint::{Checkpoint, CheckpointError, CheckpointStore, Fault};
use ddp::model::ParamLayout;
use ddp::storage::fault::FileFault;

use super::fixture::*;
use crate::common::run_line_ok;

/// Whether neither reading all bytes nor loading on the same or a different number of ranks finds a fault.
fn is_good(store: &CheckpointStore, layout: &ParamLayout, step: u64) -> bool {
    let Ok(checkpoint) = store.checkpoint(step) else { return false };
    let is_good = checkpoint.verify().is_ok();
    for n_ranks in [1, 2, 3] {
        match load(&checkpoint, layout, n_ranks) {
            Ok(()) => assert!(is_good, "{n_ranks} ranks found nothing"),
            Err(CheckpointError::Damaged { .. }) => assert!(!is_good, "{n_ranks} ranks"),
            Err(other) => panic!("{other}"),
        }
    }
    is_good
}

fn files(store: &CheckpointStore, step: u64) -> Vec<PathBuf> {
    let files: Vec<_> =
        fs::read_dir(store.step_folder(step)).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 4, "manifest, model and two parts of the state: {files:?}");
    files
}

#[test]
fn a_bit_of_every_byte_of_a_small_one() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 2, [1]);
    let mut n_flips = 0;
    for path in files(&store, 1) {
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, bad).unwrap();
            assert!(!is_good(&store, &layout, 1), "bit {} of byte {at} of {}", at % 8, path.display());
            n_flips += 1;
        }
        fs::write(&path, good).unwrap();
        assert!(is_good(&store, &layout, 1));
    }
    assert!(n_flips > 4000, "{n_flips}");
}

#[test]
fn every_cut_of_a_small_one() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 2, [1]);
    for path in files(&store, 1) {
        let good = fs::read(&path).unwrap();
        for len in 0..good.len() {
            fs::write(&path, &good[..len]).unwrap();
            assert!(!is_good(&store, &layout, 1), "{len} bytes of {}", path.display());
        }
        fs::write(&path, [&good[..], b" "].concat()).unwrap();
        assert!(!is_good(&store, &layout, 1), "a byte more in {}", path.display());
        fs::remove_file(&path).unwrap();
        assert!(!is_good(&store, &layout, 1), "no {}", path.display());
        fs::write(&path, good).unwrap();
        assert!(is_good(&store, &layout, 1));
    }
}

#[test]
fn a_bit_of_every_kib_of_a_larger_one() {
    let dir = temp_dir();
    let layout = layout(&[200, 400, 30]);
    let store = saved(dir.path(), &layout, 2, [1]);
    let mut n_flips = 0;
    for path in files(&store, 1) {
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        for start in (0..good.len()).step_by(1024) {
            let at = (start + start / 1024 * 37 % 1024).min(good.len() - 1);
            bad[at] ^= 1 << (start / 1024 % 8);
            fs::write(&path, &bad).unwrap();
            assert!(!is_good(&store, &layout, 1), "byte {at} of {}", path.display());
            bad[at] = good[at];
            n_flips += 1;
        }
        fs::write(&path, good).unwrap();
    }
    assert!(n_flips > 1000, "{n_flips}");
    assert!(is_good(&store, &layout, 1));
}

#[test]
fn exchanged_files_and_names_are_found() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 2, [1, 2]);
    let part = |step, rank| store.step_folder(step).join(format!("optimizer-{rank:05}-of-00002.safetensors"));
    let (one, two) = (fs::read(part(1, 0)).unwrap(), fs::read(part(2, 0)).unwrap());
    assert_eq!(one.len(), two.len());
    fs::write(part(2, 0), one).unwrap();
    assert!(matches!(store.checkpoint(2).unwrap().verify(), Err(Fault::File(FileFault::Changed { .. }))));
    fs::write(part(2, 0), two).unwrap();
    assert!(is_good(&store, &layout, 2));
    fs::rename(store.step_folder(2), store.step_folder(3)).unwrap();
    assert_eq!(store.checkpoint(3).unwrap_err(), Fault::OtherStep { step: 2 });
}

#[test]
fn a_resumed_run_takes_the_newest_good_one_and_says_what_it_passed_over() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 2, 1..=5);
    let file = |step: u64, name: &str| store.step_folder(step).join(name);
    // The manifest of 5 is truncated, a file of 4 is missing, a bit of 3 is wrong; the last two were complete once.
    let manifest = fs::read(file(5, "manifest.json")).unwrap();
    fs::write(file(5, "manifest.json"), &manifest[..manifest.len() / 2]).unwrap();
    fs::remove_file(file(4, "optimizer-00001-of-00002.safetensors")).unwrap();
    let mut model = fs::read(file(3, "model.safetensors")).unwrap();
    *model.last_mut().unwrap() ^= 0x10;
    fs::write(file(3, "model.safetensors"), model).unwrap();

    for path in [dir.path().to_owned(), store.folder().to_owned()] {
        let search = Checkpoint::find(&path).unwrap();
        let found = search.found.unwrap();
        assert_eq!(found.manifest().run.step, 2);
        check_content(&found, &layout, 3);
        let skipped: Vec<_> = search.skipped.iter().map(ToString::to_string).collect();
        assert_eq!(skipped[0], "step-5: manifest.json was changed: its checksum does not match");
        assert_eq!(skipped[1], "step-4: optimizer-00001-of-00002.safetensors is missing");
        assert!(
            skipped[2].starts_with("step-3: model.safetensors was changed: its checksum is "),
            "{skipped:?}"
        );
    }
    let error = Checkpoint::find(&store.folder().join("latest")).unwrap_err();
    assert!(error.to_string().contains("step-5` can't be used: manifest.json was changed"), "{error}");
    assert_eq!(Checkpoint::find(&store.step_folder(1)).unwrap().found.unwrap().manifest().run.step, 1);

    fs::remove_dir_all(store.step_folder(5)).unwrap();
    let skipped = store.newest_valid().unwrap().skipped;
    assert_eq!(skipped[0].to_string(), "latest: it names \"step-5\", and there is no such checkpoint");
    for step in 1..5 {
        fs::write(file(step, "manifest.json"), "{}").unwrap();
    }
    let error = Checkpoint::find(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("none of the checkpoints") && error.contains("step-1: manifest.json is truncated"),
        "{error}"
    );
    let error = ddp_kernels::hint::with_hint(&Checkpoint::find(&dir.path().join("nothing")).unwrap_err());
    assert!(error.starts_with("no checkpoint at `") && error.contains("hint: "), "{error}");
}

/// The model file, which decides how rows are read, is checked before they are.
#[test]
fn an_older_one_is_resumed_where_labels_or_normalization_are_damaged() {
    let dir = temp_dir();
    let rows: String = (0..60).map(|n| format!("{},{}\n", n % 7, ["no", "yes"][n % 2])).collect();
    fs::write(dir.path().join("rows.csv"), format!("x,y\n{rows}")).unwrap();
    let line = "rows.csv --target y --plain --normalize standard --hidden 4 --batch-size 20 --set checkpoint.every_steps=2";
    run_line_ok(dir.path(), &format!("{line} --epochs 2 --out good"));
    for part in ["ddp_train.labels", "normalize.scale"] {
        run_line_ok(dir.path(), &format!("{line} --epochs 2 --out {part}"));
        let path = dir.path().join(part).join("checkpoints/step-6/model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(part.len()).position(|window| window == part.as_bytes());
        let at = at.unwrap_or_else(|| panic!("no {part} in the header"));
        bytes[at + part.len() - 1] ^= 1;
        fs::write(&path, bytes).unwrap();
        let resumed = run_line_ok(dir.path(), &format!("{line} --epochs 3 --resume auto --out {part}"));
        assert!(resumed.stderr.contains("skipped checkpoint step-6"), "{}", resumed.stderr);
        assert!(resumed.stderr.contains("resuming after step 4"), "{}", resumed.stderr);
    }
}
