//! Names in the folder of checkpoints that are not as a run left them: what is there is neither lost nor taken for something else.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use ddp::checkpoint::{CheckpointStore, Marker};
use ddp::train::claimed_folder::claim_folder_again;

use super::faulty_disk::{Fate, FaultyDisk};
use super::fixture::*;

#[test]
fn what_is_no_checkpoint_keeps_its_content_when_its_step_is_saved() {
    let (dir, layout) = (temp_dir(), layout(&[3, 5, 2]));
    let store = saved(dir.path(), &layout, 1, 1..=2);
    let [folder, file] = [3, 4].map(|step| store.step_folder(step));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    fs::write(&file, "also mine").unwrap();
    for step in 3..=4 {
        for result in save_on_ranks(dir.path(), &layout, &run_state(step), &os_disk(), 1, |_| {}) {
            result.unwrap();
        }
        store.checkpoint(step).unwrap().verify().unwrap();
    }
    assert_eq!(fs::read_to_string(store.folder().join("step-3.other-1/notes.txt")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(store.folder().join("step-4.other-1")).unwrap(), "also mine");
}

/// A full disk, or an end of the process between a checkpoint and its marker, leaves it behind.
#[test]
fn a_marker_that_was_not_written_is_written_by_the_next_save() {
    let (dir, layout) = (temp_dir(), layout(&[3, 5, 2]));
    let store = saved(dir.path(), &layout, 1, 1..=3);
    fs::write(store.folder().join("best"), "step-1\n").unwrap();
    let state = run_state_with_best(4, 3);
    for result in
        save_on_ranks(dir.path(), &layout, &state, &os_disk(), 1, |options| options.keep_best = true)
    {
        result.unwrap();
    }
    assert_eq!((store.marked_step(Marker::Best), store.marked_step(Marker::Latest)), (Some(3), Some(4)));
}

/// An end of the process between the two renames of a save that replaces a checkpoint leaves it so.
#[test]
fn a_checkpoint_that_was_moved_away_is_found_before_anything_is_deleted() {
    let (dir, layout) = (temp_dir(), layout(&[3, 5, 2]));
    let store = saved(dir.path(), &layout, 1, [7]);
    fs::rename(store.step_folder(7), store.folder().join(".aside-step-7")).unwrap();
    assert_eq!(store.steps().unwrap(), [0; 0]);
    claim_folder_again(Some(dir.path()), "x").unwrap_err();
    assert_eq!(store.newest_valid().unwrap().found.unwrap().manifest().run.step, 7);
}

#[test]
fn a_folder_on_a_disk_that_is_not_mounted_is_no_empty_one() {
    let dir = temp_dir();
    let store = CheckpointStore::for_run(dir.path());
    symlink(dir.path().join("disk"), store.folder()).unwrap();
    fs::write(dir.path().join("metrics.jsonl"), "kept").unwrap();
    for error in [store.steps().unwrap_err(), store.delete_all().unwrap_err(), store.prepare().unwrap_err()] {
        assert!(error.to_string().contains("can't follow the link"), "{error}");
    }
    claim_folder_again(Some(dir.path()), "x").unwrap_err();
    assert_eq!(fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap(), "kept");
}

/// Of a run that is replaced, never an older checkpoint is left without the newer ones being gone.
#[test]
fn a_process_that_ends_at_every_call_of_a_deletion() {
    let layout = layout(&[3, 5, 2]);
    let good = Arc::new(FaultyDisk::good());
    let dir = temp_dir();
    saved(dir.path(), &layout, 1, 1..=3).with_disk(good.clone()).delete_all().unwrap();
    assert!(!dir.path().join("checkpoints").exists());
    for at in 0..good.n_calls() {
        let dir = temp_dir();
        let store = saved(dir.path(), &layout, 1, 1..=3);
        let disk = Arc::new(FaultyDisk::new(at, Fate::Killed));
        store.clone().with_disk(disk).delete_all().unwrap_err();
        let left = store.steps().unwrap();
        assert_eq!(left, (1..=left.len() as u64).collect::<Vec<_>>(), "call {at}");
        assert!(at < 3 || left.is_empty(), "call {at}: {left:?}");
        for step in left {
            store.checkpoint(step).unwrap().verify().unwrap();
        }
    }
}
