//! Pipes, devices and links in place of regular files: refused before they are opened.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::harness::{Ended, GOOD_CSV, Place};
use crate::common::ddp_train;

/// Runs the program, which must not wait for a pipe without a writer.
fn run(place: &Place, line: &str) -> Ended {
    place.end(Command::new("timeout").args(["-s", "KILL", "60", ddp_train()]).args(line.split_whitespace()))
}

#[test]
fn pipes_and_devices_are_refused() {
    let place = Place::with(&[("good.csv", GOOD_CSV), ("run/x", "")]);
    let pipes = ["p.toml", "p.csv", "p.npy", "p.jsonl", "p.safetensors", "run/model.safetensors"];
    for pipe in pipes {
        assert!(Command::new("mkfifo").arg(place.file(pipe)).status().unwrap().success());
    }
    let lines = [
        ("config", "p.toml", "train @"),
        ("config", "p.toml", "describe @"),
        ("data", "p.csv", "train @ --target label"),
        ("data", "p.csv", "train good.csv --eval @"),
        ("data", "p.csv", "data inspect @"),
        ("data", "p.npy", "train @ --set data.labels=y.npy"),
        ("data", "p.npy", "data inspect @"),
        ("data", "p.jsonl", "train @ --target label"),
        ("model", "p.safetensors", "eval --checkpoint @"),
        ("model", "p.safetensors", "predict --checkpoint @ --data good.csv --out o.csv"),
        ("model", "p.safetensors", "train good.csv --init-from @"),
        ("model", "run/model.safetensors", "eval --checkpoint run"),
    ];
    for (what, pipe, line) in lines {
        let ended = run(&place, &line.replace('@', pipe));
        ended.is_error(2, &[&format!("{what} file `{pipe}` is a named pipe, expected a regular file")]);
        // A positional path is identified as a table only by its name.
        if line.contains('@') && !line.starts_with("train @") {
            let ended = run(&place, &line.replace('@', "/dev/zero"));
            ended.is_error(2, &[&format!("{what} file `/dev/zero` is a device, expected a regular file")]);
        }
    }
    assert!(!place.file("runs").exists() && !place.file("o.csv").exists());
}

#[test]
fn a_pipe_of_the_shell_is_read() {
    let place = Place::with(&[("good.csv", GOOD_CSV)]);
    let line = format!("{} train --data <(cat good.csv) --target label --epochs 1 --out out", ddp_train());
    place.end(Command::new("bash").args(["-c", &line])).is_good();
}

/// If the lock were opened through a link, the file behind it would be overwritten.
#[test]
fn a_lock_that_is_no_file_is_refused() {
    let place = Place::with(&[("good.csv", GOOD_CSV), ("precious", "my thesis")]);
    for (folder, kind) in [("a", "a link"), ("b", "a named pipe")] {
        run(&place, &format!("train good.csv --epochs 1 --out {folder}")).is_good();
        let lock = place.file(folder).join(".lock");
        fs::remove_file(&lock).unwrap();
        match kind {
            "a link" => symlink(place.file("precious"), lock).unwrap(),
            _ => assert!(Command::new("mkfifo").arg(lock).status().unwrap().success()),
        }
        for line in ["train good.csv --epochs 2 --out @ --overwrite", "checkpoint prune @ --keep 1"] {
            let ended = run(&place, &line.replace('@', folder));
            assert_ne!(ended.status, Some(0), "{ended:#?}");
            ended.says_once(&[&format!("{folder}/.lock"), &format!("it is {kind}, expected a regular file")]);
        }
    }
    assert_eq!(fs::read_to_string(place.file("precious")).unwrap(), "my thesis");
}

/// Run folders are copied between machines too: if their files are replaced by anything else, a run that resumes there fails
/// without writing to any other file.
#[test]
fn files_of_a_run_that_are_pipes_or_links() {
    let stopped = Place::with(&[("good.csv", GOOD_CSV), ("precious", "my thesis")]);
    let line = "train good.csv --set train.batch_size=2 --epochs 4 --out run";
    let ended = run(&stopped, &format!("{line} --set train.stop_after_steps=3"));
    assert_eq!(ended.status, Some(85), "{ended:#?}");
    for name in [
        ".lock",
        ".run-id",
        "config.toml",
        "metrics.jsonl",
        "logs/rank-0.log",
        "checkpoints/latest",
        "checkpoints/step-3/manifest.json",
        "checkpoints/step-3/model.safetensors",
        "checkpoints/step-3/optimizer-00000-of-00001.safetensors",
    ] {
        for kind in ["pipe", "link", "zeros"] {
            let place = Place::new();
            let copied = Command::new("cp").arg("-a").arg(stopped.file(".")).arg(place.path()).status();
            assert!(copied.unwrap().success());
            let path = place.file("run").join(name);
            fs::remove_file(&path).unwrap();
            match kind {
                "pipe" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
                "link" => symlink(place.file("precious"), &path).unwrap(),
                _ => symlink("/dev/zero", &path).unwrap(),
            }
            let ended = run(&place, &format!("{line} --resume auto"));
            assert!(matches!(ended.status, Some(0..=2 | 74)), "{name} as {kind}: {ended:#?}");
            assert!(!ended.stderr.contains("panicked"), "{name} as {kind}: {ended:#?}");
            let precious = fs::read_to_string(place.file("precious")).unwrap();
            assert_eq!(precious, "my thesis", "{name} as {kind}: {ended:#?}");
            for line in ["checkpoint ls run", "checkpoint verify run", "eval --checkpoint run"] {
                let ended = run(&place, line);
                assert!(matches!(ended.status, Some(0..=2)), "{name} as {kind}, {line}: {ended:#?}");
            }
        }
    }
}
