//! Whatever stands under the names of a run's files: no command waits for it, or writes behind a link.

use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::harness::{GOOD_CSV, Place};
use crate::common::ddp_train;

/// Names that a run, its commands or `launch` write or read, in its folder and in that of its checkpoint.
const NAMES: &str = ".lock .run-id .requests config.toml metrics.jsonl metrics.jsonl.damaged done.json model.safetensors \
                     last.safetensors report.html flight.jsonl logs logs/rank-0.log logs/rank-0.log.1 traces tb checkpoints \
                     checkpoints/latest checkpoints/best checkpoints/.latest.new checkpoints/.step-3-0.tmp checkpoints/step-3 \
                     checkpoints/step-3/manifest.json checkpoints/step-3/model.safetensors \
                     checkpoints/step-3/optimizer-00000-of-00001.safetensors";

/// Lines after which nothing outside the folder of the run may have changed; those that write files in it also come to links.
const LINES: [&str; 13] = [
    "train good.csv --set train.batch_size=2 --epochs 4 --out run --resume auto",
    "predict --checkpoint run --data good.csv --out o.csv --overwrite",
    "eval --checkpoint run --data good.csv",
    "runs ls .",
    "runs show run",
    "report run --out r.html",
    "checkpoint ls run",
    "checkpoint show run",
    "checkpoint prune run --keep 1",
    "checkpoint export run --out e.safetensors",
    "train good.csv --set train.batch_size=2 --epochs 4 --out run --overwrite",
    "train good.csv --set train.batch_size=2 --epochs 1 --set log.tensorboard=true --out fresh",
    "launch -n 1 --launcher env -- good.csv --set train.batch_size=2 --epochs 4 --out run --overwrite",
];

/// Files and folders below `folder`, with their content.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let of = |path: PathBuf| {
        if path.is_dir() { content(&path) } else { vec![(path.clone(), fs::read(path).unwrap())] }
    };
    found.into_iter().flat_map(of).collect()
}

fn remove(path: &Path) {
    _ = fs::remove_dir_all(path);
    _ = fs::remove_file(path);
}

#[test]
fn no_command_waits_or_writes_behind_a_link() {
    let stopped = Place::with(&[("good.csv", GOOD_CSV), ("outside/precious", "my thesis")]);
    let line = format!("{} --set train.stop_after_steps=3", LINES[0]);
    assert_eq!(stopped.end(Command::new(ddp_train()).args(line.split(' '))).status, Some(85));
    let mut faults = Vec::new();
    // The other kinds: tests/nightly.
    let rare = if std::env::var_os("ALL_COMBINATIONS").is_some() { "" } else { "folder, dangling" };
    for name in NAMES.split_whitespace() {
        for kind in ["nothing", "pipe", "folder", "dangling", "file", "folder elsewhere"] {
            if kind == "nothing" && name != ".lock" || rare.split(", ").any(|of| of == kind) {
                continue;
            }
            let place = Place::new();
            let mut copy = Command::new("cp");
            let copied = copy.arg("-a").arg(stopped.file(".")).arg(place.path()).status();
            assert!(copied.unwrap().success());
            let outside = place.file("outside");
            let writes = |line: &&str| ["train", "prune", "launch"].iter().any(|word| line.contains(word));
            for line in LINES.into_iter().filter(|line| ["nothing", "pipe"].contains(&kind) || writes(line)) {
                remove(&place.file("fresh"));
                let run = if line.contains("fresh") { "fresh" } else { "run" };
                let path = place.file(run).join(name);
                if kind != "nothing" {
                    remove(&path);
                }
                for out in ["r.html", "e.safetensors"] {
                    remove(&place.file(out));
                }
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                match kind {
                    "nothing" => {}
                    "pipe" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
                    "folder" => fs::create_dir(&path).unwrap(),
                    "dangling" => symlink(outside.join("new"), &path).unwrap(),
                    "file" => symlink(outside.join("precious"), &path).unwrap(),
                    _ => symlink(&outside, &path).unwrap(),
                }
                // Folders that the user may put elsewhere.
                let is_users = ["logs", "traces", "tb", "checkpoints"].contains(&name);
                let is_followed = is_users && kind == "folder elsewhere";
                let mut command = Command::new("timeout");
                command.args(["-s", "KILL", "20", ddp_train()]).args(line.split(' '));
                let ended = place.end(&mut command);
                let expected = if kind == "nothing" { 0..=0 } else { 0..=85 };
                if !ended.status.is_some_and(|status| expected.contains(&status))
                    || ended.stderr.contains("panicked")
                {
                    faults.push(format!("{name} as {kind}: `{line}`: {ended:#?}"));
                }
                let precious = [(outside.join("precious"), b"my thesis".to_vec())];
                let found = content(&outside);
                if !is_followed && found != precious || !found.contains(&precious[0]) {
                    faults.push(format!("{name} as {kind}: `{line}` changed {found:?}: {ended:#?}"));
                    remove(&outside);
                    fs::create_dir(&outside).unwrap();
                    fs::write(&precious[0].0, &precious[0].1).unwrap();
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Names under which output is written before it is complete, next to it.
#[test]
fn leftovers_of_ended_processes_are_not_opened() {
    let place = Place::with(&[("good.csv", GOOD_CSV), ("precious", "my thesis")]);
    place.end(Command::new(ddp_train()).args("train good.csv --epochs 1 --out run".split(' '))).is_good();
    for (left, line) in [
        (".o.csv.whole.4194999.predict", "predict --checkpoint run --data good.csv --out o.csv --overwrite"),
        (".c.parquet.4194999.convert", "data convert good.csv c.parquet --target label --overwrite"),
        ("run/.done.json.4194999.tmp", "train good.csv --epochs 1 --out run --overwrite"),
    ] {
        for kind in ["pipe", "link"] {
            let path = place.file(left);
            match kind {
                "pipe" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
                _ => symlink(place.file("precious"), &path).unwrap(),
            }
            let mut command = Command::new("timeout");
            place.end(command.args(["-s", "KILL", "20", ddp_train()]).args(line.split(' '))).is_good();
            remove(&path);
        }
    }
    assert_eq!(fs::read_to_string(place.file("precious")).unwrap(), "my thesis");
}

/// Whoever may write into the folder of a run could let it write and delete elsewhere.
#[test]
fn folders_that_another_user_links_are_refused() {
    let place = Place::with(&[("good.csv", GOOD_CSV), ("outside/precious", "my thesis")]);
    let train = |more: &str| {
        let line = format!("train good.csv --epochs 1 --out run{more}");
        place.end(Command::new(ddp_train()).args(line.split(' ')))
    };
    fs::create_dir(place.file("run")).unwrap();
    symlink(place.file("outside"), place.file("run/checkpoints")).unwrap();
    let ended = train(" --resume auto");
    ended.is_good();
    assert!(ended.stderr.contains("checkpoints is a link: its files are in `"), "{}", ended.stderr);
    if lchown(place.file("run/checkpoints"), Some(34567), None).is_err() {
        println!("skipped: needs the right to give files to another user");
        return;
    }
    let before = content(&place.file("outside"));
    train(" --overwrite").is_error(2, &["run/checkpoints` is a link of another user (uid 34567)"]);
    let prune = "checkpoint prune run --keep 1".split(' ');
    let pruned = place.end(Command::new(ddp_train()).args(prune));
    pruned.is_error(2, &["run/checkpoints` is a link of another user (uid 34567)"]);
    assert_eq!(content(&place.file("outside")), before);
    place.end(Command::new(ddp_train()).args("checkpoint ls run".split(' '))).is_good();
}

/// In a folder of checkpoints that is shared, or holds what the user put there.
#[test]
fn only_checkpoints_are_deleted() {
    let place = Place::with(&[("good.csv", GOOD_CSV), ("outside/precious", "my thesis")]);
    let train = |more: &str| {
        let line = format!("train good.csv --set train.batch_size=2 --epochs 1 --out run{more}");
        place.end(Command::new(ddp_train()).args(line.split(' '))).is_good();
    };
    train("");
    let own =
        ["step-1/notes.txt", ".old-notes/notes.txt", ".aside-mine/notes.txt", ".step-by-step.tmp/notes.txt"];
    let checkpoints = place.file("run/checkpoints");
    for name in own {
        fs::create_dir_all(checkpoints.join(name).parent().unwrap()).unwrap();
        fs::write(checkpoints.join(name), "mine").unwrap();
    }
    symlink(place.file("outside"), checkpoints.join("step-2")).unwrap();
    let prune = "checkpoint prune run --keep 1 --also-best".split(' ');
    place.end(Command::new(ddp_train()).args(prune)).is_good();
    train(" --overwrite");
    train(" --overwrite --set checkpoint.keep=1 --set checkpoint.every_epochs=1");
    assert!(own.iter().all(|name| checkpoints.join(name).exists()));
    assert!(checkpoints.join("step-2").is_symlink() && place.file("outside/precious").exists());
}
