//! Output folders that are in use, can't be written, or fill up.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::harness::{Ended, GOOD_CSV, Place, is_root, with_mount};
use crate::common::ddp_train;

/// A short run on digits, into `out`.
const SHORT: [&str; 8] = ["train", "--set", "train.steps=1", "--out", "out", "--threads", "1", "-q"];

#[test]
fn a_file_stands_in_the_way() {
    let place = Place::with(&[("out", "a letter"), ("a/b", "another")]);
    place.refuses(
        &SHORT,
        &["output folder `out`: a file of that name exists", "hint: choose another folder with --out"],
    );
    place.refuses(&["train", "--overwrite", "--out", "out"], &["a file of that name exists"]);
    place.refuses(&["train", "--dry-run", "--out", "out", "-q"], &["a file of that name exists"]);
    place.refuses_with(
        74,
        &["train", "--out", "a/b/c"],
        &["output folder `a/b/c` can't be written", "hint: "],
    );
}

#[test]
fn the_folder_of_a_run_is_no_data() {
    let place = Place::new();
    place.run(&SHORT).is_good();
    for command in ["describe", "train"] {
        place.refuses(
            &[command, "out"],
            &[
                "`out` is the folder of a run and holds no data",
                "hint: its config is `out/config.toml`; `ddp-train checkpoint show out` shows its model",
            ],
        );
    }
    place.run(&["describe", "out/config.toml"]).is_good();
    place.run(&["checkpoint", "show", "out"]).is_good();
}

#[test]
fn a_run_is_kept_unless_told_otherwise() {
    let place = Place::new();
    place.run(&SHORT).is_good();
    place.refuses(
        &SHORT,
        &[
            "output folder `out` already holds a run (config.toml)",
            "hint: choose another folder",
            "--overwrite",
        ],
    );
    place.refuses(&[&SHORT[..], &["--dry-run"]].concat(), &["already holds a run"]);
    // A run that is refused for another reason destroys nothing either.
    place.refuses(
        &["train", "--out", "out", "--overwrite", "--set", "train.epochs=0"],
        &["`train.epochs` must be a whole number from 1"],
    );
    place.refuses(
        &["train", "--out", "out", "--overwrite", "--init-from", "no.safetensors"],
        &["model file `no.safetensors` does not exist"],
    );
    let before = place.files();
    place.run(&[&SHORT[..], &["--overwrite", "--set", "train.seed=1"]].concat()).is_good();
    let model = place.file("out/model.safetensors");
    assert_ne!(place.files()[&model], before[&model]);
}

/// Ends the run when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_jobs_want_one_folder() {
    let place = Place::with(&[("rows.csv", GOOD_CSV)]);
    let first = Command::new(ddp_train())
        .args(["train", "--set", "data.train=rows.csv", "--set", "train.epochs=1000000000"])
        .args(["--out", "out", "--threads", "1", "-q", "--set", "checkpoint.every_epochs=1"])
        .current_dir(place.path())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let first = Running(first);
    wait_for(&place.file("out/metrics.jsonl"));

    let before = fs::read(place.file("out/config.toml")).unwrap();
    let process = format!("output folder `out` is in use by process {}", first.0.id());
    for extra in [&[][..], &["--overwrite"], &["--dry-run"]] {
        let ended = place.run(&[&SHORT[..], extra].concat());
        ended.is_error(2, &[&process, "which is still running", "hint: choose another folder"]);
    }
    let prune = ["checkpoint", "prune", "--keep", "1"];
    symlink(place.file("out/checkpoints"), place.file("link")).unwrap();
    for (folder, from) in [
        ("out", "."),
        ("out/checkpoints", "."),
        ("checkpoints", "out"),
        (".", "out/checkpoints"),
        ("link", "."),
    ] {
        let mut command = Command::new("env");
        command.args(["-C", from, ddp_train()]).args(prune).arg(folder);
        let ended = place.end(&mut command);
        let goes_on = format!("out` is the folder of a run in progress: process {}", first.0.id());
        ended.is_error(2, &[&goes_on, "nothing was deleted", "hint: prune after the run has ended"]);
        place.end(command.arg("--dry-run")).is_good();
    }
    assert_eq!(fs::read(place.file("out/config.toml")).unwrap(), before);
    assert!(!place.file("out/model.safetensors").exists());

    // A killed run holds no lock any more, but its files are still protected from accidental deletion.
    drop(first);
    place.refuses(&SHORT, &["already holds a run"]);
    place.run(&[&prune[..], &["out"]].concat()).is_good();
    place.run(&[&SHORT[..], &["--overwrite"]].concat()).is_good();
}

fn wait_for(path: &Path) {
    let since = Instant::now();
    while !path.exists() {
        assert!(since.elapsed() < Duration::from_secs(30), "no {}", path.display());
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_folder_that_cannot_be_written() {
    let place = Place::new();
    let args = ["train", "--out", "disk/out", "--threads", "1"];
    if let Some(ended) = with_mount(&place, "-oro", &[&[ddp_train()], &args[..]].concat()) {
        assert_eq!(ended.status, Some(74), "{ended:#?}");
        ended.says_once(&["output folder `disk/out` can't be written", "Read-only file system", "hint: "]);
    }
    if is_root() {
        eprintln!("skipped: needs a user who is not root, whom file modes bind");
        return;
    }
    let folder = place.file("locked");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    place.refuses_with(
        74,
        &["train", "--out", "locked/out"],
        &["output folder `locked/out` can't be written: Permission denied", "hint: check the permissions"],
    );
}

/// Files that a run leaves on a disk of `size` that fills up, and the messages of the run.
fn full_disk(size: &str, more_args: &[&str], file: &str) -> Option<Ended> {
    let args = [ddp_train(), "train", "--out", "disk/out", "--threads", "1", "-q"];
    let ended = with_mount(&Place::new(), &format!("-osize={size}"), &[&args, more_args].concat())?;
    assert_eq!(ended.status, Some(74), "{ended:#?}");
    let what = format!("can't write `disk/out/{file}`: No space left on device");
    ended.says_once(&[&what, "hint: the disk is full: free some space and run again"]);
    // No partial file exists, neither under its final name nor next to it.
    assert!(!ended.stdout.contains("tmp") && !ended.stdout.contains("safetensors"), "{ended:#?}");
    Some(ended)
}

#[test]
fn a_disk_that_is_full_at_the_start() {
    full_disk("4k", &["--set", "train.steps=1"], "config.toml");
}

#[test]
fn a_disk_that_fills_up_in_the_middle() {
    if let Some(ended) = full_disk("16k", &["--set", "log.every_steps=1"], "metrics.jsonl") {
        assert!(
            ended.stdout.contains("config.toml\n") && ended.stdout.contains("metrics.jsonl\n"),
            "{ended:#?}"
        );
    }
}

#[test]
fn a_disk_that_is_full_at_the_end() {
    if let Some(ended) = full_disk("64k", &["--set", "train.steps=2"], "model.safetensors") {
        assert!(
            ended.stdout.contains("config.toml\n") && ended.stdout.contains("metrics.jsonl\n"),
            "{ended:#?}"
        );
    }
}
