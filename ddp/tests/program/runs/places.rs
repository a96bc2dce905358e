//! The run that a checkpoint belongs to, whatever the words of its path; and the weights that a run's folder stands for.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{run, run_line, run_line_ok, single, temp_dir};

const TRAIN: &str = "train builtin:digits --out b -q --epochs 6 --set checkpoint.every_epochs=1 --set train.stop_after_epochs=1";

/// Steps of the checkpoints of a run.
fn steps(run: &Path) -> Vec<String> {
    let names = fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut steps: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
    steps.retain(|name| name.starts_with("step-"));
    steps.sort();
    steps
}

#[test]
fn a_run_goes_on_in_its_folder_whatever_names_its_checkpoint() {
    let folder = temp_dir();
    let run = folder.path().join("b");
    let stopped =
        |place: &Path, line: &str| assert_eq!(run_line(place, line).status.code(), Some(85), "{line}");
    stopped(folder.path(), TRAIN);
    let places = [
        ("checkpoints/step-45", "."),
        ("checkpoints", "latest"),
        ("", "checkpoints/latest"),
        ("", "checkpoints"),
    ];
    for (n, (place, path)) in (2..).zip(places) {
        stopped(&run.join(place), &format!("train --resume {path} -q --set train.stop_after_epochs={n}"));
        assert!(steps(&run).contains(&format!("step-{}", 45 * n)), "{place}, {path}: {:?}", steps(&run));
    }
    let entries = fs::read_dir(run.join("checkpoints")).unwrap().count();
    assert_eq!(entries, steps(&run).len() + 2, "two markers, and nothing of a run");
    run_line_ok(&run.join("checkpoints"), "checkpoint verify step-225");
    // A copy belongs to no run.
    let copy = folder.path().join("backup/step-225");
    fs::create_dir_all(&copy).unwrap();
    for file in fs::read_dir(run.join("checkpoints/step-225")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let refused = run_line(folder.path(), "train --resume backup/step-225");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("lies in no folder of a run\nhint: ") && refused.stderr.contains("--out"),
        "{refused:?}"
    );
    run_line_ok(folder.path(), "train --resume backup/step-225 --out other -q");
    assert!(folder.path().join("other/done.json").exists());
}

/// The model of a run that was complete, and then went on, is that of its newest checkpoint until it is complete again.
#[test]
fn a_run_that_has_gone_on_stands_for_its_newest_checkpoint() {
    let folder = temp_dir();
    run_line_ok(folder.path(), "train builtin:digits --out b -q --epochs 2 --optimizer.lr 0.003");
    let before = run_line_ok(folder.path(), "eval --checkpoint b");
    assert!(before.stdout.contains("b/model.safetensors"), "{before:?}");
    let on = run_line(folder.path(), "train --resume b --epochs 20 -q --set train.stop_after_epochs=10");
    assert_eq!(on.status.code(), Some(85), "{on:?}");
    let after = run_line_ok(folder.path(), "eval --checkpoint b");
    assert!(after.stdout.contains("b/checkpoints/step-450/model.safetensors"), "{after:?}");
    assert!(after.stderr.contains("has gone on since it wrote its model"), "{after:?}");
    // Also in a copy, whose files have other dates.
    let copies = Command::new("cp").args(["-r", "b", "copy"]).current_dir(folder.path()).status();
    assert!(copies.unwrap().success());
    let copied = run_line_ok(folder.path(), "eval --checkpoint copy");
    assert!(copied.stdout.contains("copy/checkpoints/step-450/model.safetensors"), "{copied:?}");
    let exported = run_line_ok(folder.path(), "checkpoint export b --out x.safetensors");
    assert!(exported.stdout.contains("step 450") || exported.stderr.contains("step 450"), "{exported:?}");
    run_line_ok(folder.path(), "train --resume b -q");
    // One that fails before its first checkpoint changes nothing.
    fs::remove_file(folder.path().join("b/done.json")).unwrap();
    let complete = run_line_ok(folder.path(), "eval --checkpoint b");
    assert!(complete.stdout.contains("b/model.safetensors"), "{complete:?}");
}

/// The best evaluation came at a step that was not saved: each later checkpoint has its weights.
#[test]
fn the_marker_of_the_best_evaluation_has_its_weights() {
    let folder = temp_dir();
    let line =
        "train builtin:digits --out b -q --epochs 60 --optimizer.lr 0.01 --set train.stop_after_epochs=2";
    assert_eq!(run_line(folder.path(), line).status.code(), Some(85));
    run_line_ok(folder.path(), "train --resume b -q");
    let metrics = |of: &str| {
        let evaluated = run_line_ok(folder.path(), &format!("eval --checkpoint {of}"));
        evaluated.stdout.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(metrics("b/checkpoints/best"), metrics("b"));
}

/// Where the disk of the checkpoints is not mounted, the folder looks as if there were none: nothing is changed, and the run goes on later.
#[test]
fn checkpoints_on_a_disk_that_is_not_mounted_are_not_replaced_by_a_new_run() {
    let folder = temp_dir();
    let resume = "train builtin:digits --out b -q --epochs 2 --set checkpoint.every_epochs=1 --resume auto";
    let [checkpoints, away] = ["b/checkpoints", "away"].map(|name| folder.path().join(name));
    assert_eq!(
        run_line(folder.path(), &format!("{resume} --set train.stop_after_epochs=1")).status.code(),
        Some(85)
    );
    let events = fs::read(folder.path().join("b/metrics.jsonl")).unwrap();
    fs::rename(&checkpoints, &away).unwrap();
    fs::create_dir(&checkpoints).unwrap();
    let refused = run_line(folder.path(), resume);
    assert!(
        refused.status.code() != Some(0) && refused.stderr.contains("is empty, and the run has saved"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("mount the disk"), "{refused:?}");
    fs::remove_dir(&checkpoints).unwrap();
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &checkpoints).unwrap();
    let refused = run_line(folder.path(), resume);
    assert!(refused.stderr.contains("can't follow the link"), "{refused:?}");
    assert_eq!(fs::read(folder.path().join("b/metrics.jsonl")).unwrap(), events);
    fs::remove_file(&checkpoints).unwrap();
    fs::rename(&away, &checkpoints).unwrap();
    run_line_ok(folder.path(), resume);
}

#[test]
fn a_path_that_is_no_utf_8_is_resumed() {
    use std::os::unix::ffi::OsStrExt as _;

    let folder = temp_dir();
    let name = std::ffi::OsStr::from_bytes(b"n\xff");
    let train = |words: &[&std::ffi::OsStr]| {
        let mut command = single(&["train", "-q"]);
        command.current_dir(folder.path()).args(words);
        run(command)
    };
    let word = std::ffi::OsStr::new;
    let begun = train(&[
        word("builtin:digits"),
        word("--epochs"),
        word("2"),
        word("--set"),
        word("train.stop_after_epochs=1"),
        word("--out"),
        name,
    ]);
    assert_eq!(begun.status.code(), Some(85), "{begun:?}");
    let joined = [b"--resume=".as_slice(), name.as_bytes()].concat();
    for resume in [&[word("--resume"), name][..], &[std::ffi::OsStr::from_bytes(&joined)]] {
        let resumed = train(resume);
        assert!(resumed.status.success(), "{resumed:?}");
    }
}
