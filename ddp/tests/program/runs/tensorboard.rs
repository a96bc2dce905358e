//! Event files of TensorBoard: framed as TensorFlow frames records, with the numbers of `metrics.jsonl`, and read by the package
//! `tensorboard` where it is installed.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message as _;
use serde_json::Value;

use crate::common::{run, run_line_ok, run_ok, single, temp_dir, write};

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// CRC-32C, bit by bit, and masked.
fn masked_crc(bytes: &[u8]) -> u32 {
    let next = |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    let crc = !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), next));
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The records of a file, whose checksums hold.
fn records(path: &Path) -> Vec<Event> {
    let bytes = fs::read(path).unwrap();
    let (mut rest, mut events) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        let record = &rest[12..12 + length];
        assert_eq!(number(&rest[8..12]), masked_crc(&rest[..8]));
        assert_eq!(number(&rest[12 + length..16 + length]), masked_crc(record));
        events.push(Event::decode(record).unwrap());
        rest = &rest[16 + length..];
    }
    events
}

/// Event files in the order of their creation.
fn files(run: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.join("tb")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.map(|path| (fs::metadata(&path).unwrap().modified().unwrap(), path)).collect();
    files.sort();
    files.into_iter().map(|(_, path)| path).collect()
}

const TRAIN: &str = "train --set data.train=builtin:digits --eval-fraction 0.2 --hidden 8 --epochs 2 --threads 1 --progress none \
    --set log.every_steps=3 --set train.train_metrics=true --out run";

#[test]
fn event_files_hold_the_numbers_of_the_events() {
    let folder = temp_dir();
    let run_folder = folder.path().join("run");
    run_line_ok(folder.path(), TRAIN);
    assert!(!run_folder.join("tb").exists(), "nothing is written unless it is requested");
    let mut stopped = single(&TRAIN.split_whitespace().collect::<Vec<_>>());
    stopped.args(["--overwrite", "--set", "log.tensorboard=true", "--set", "train.stop_after_steps=20"]);
    stopped.current_dir(folder.path());
    assert_eq!(run(stopped).status.code(), Some(85));
    run_line_ok(folder.path(), "train --resume run --progress none --set train.stop_after_steps=1000");

    let files = files(&run_folder);
    assert_eq!(files.len(), 2, "{files:?}");
    let events: Vec<Vec<Event>> = files.iter().map(|path| records(path)).collect();
    assert!(events.iter().all(|events| events[0].file_version.as_deref() == Some("brain.Event:2")));
    // TensorBoard drops what an earlier file holds of this step and later ones.
    assert!(matches!(&events[1][1], Event { step: 21, session_log: Some(SessionLog { status: 1 }), .. }));
    let mut scalars: BTreeMap<(String, i64), f32> = BTreeMap::new();
    for event in events.concat() {
        for scalar in event.summary.unwrap_or_default().value {
            scalars.insert((scalar.tag, event.step), scalar.simple_value);
        }
    }
    let text = fs::read_to_string(run_folder.join("metrics.jsonl")).unwrap();
    let mut n_steps = 0;
    for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let same = |tag: &str, key: &str| {
            let found = scalars.get(&(tag.to_owned(), line["step"].as_i64().unwrap()));
            assert_eq!(found.copied(), Some(line[key].as_f64().unwrap() as f32), "{tag} of {line}");
        };
        match line["event"].as_str().unwrap() {
            "step" => {
                n_steps += 1;
                same("step/loss", "loss");
                same("step/lr", "lr");
                same("step/grad_norm", "grad_norm");
            }
            "epoch" => {
                same("eval/loss", "eval_loss");
                same("eval/accuracy", "eval_accuracy");
                same("train/loss", "train_loss");
                same("train/accuracy", "train_accuracy");
            }
            _ => {}
        }
    }
    assert!(n_steps > 20, "{n_steps}");
    assert_eq!(scalars.keys().filter(|(tag, _)| tag == "step/loss").count(), n_steps);

    // A run that replaces another leaves none of its files.
    run_line_ok(folder.path(), &format!("{TRAIN} --overwrite --set log.tensorboard=true"));
    assert_eq!(self::files(&run_folder).len(), 1);
    read_by_tensorboard(folder.path(), n_steps);
}

/// Compares with the package's reader.
fn read_by_tensorboard(folder: &Path, n_steps: usize) {
    let imports = Command::new("python3").args(["-c", "import tensorboard"]).output();
    if !imports.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs the Python package tensorboard");
        return;
    }
    let script = "import json, sys\n\
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n\
        events = EventAccumulator(sys.argv[1])\n\
        events.Reload()\n\
        print(json.dumps([[event.step, event.value] for event in events.Scalars('step/loss')]))\n";
    let script = write(folder, "read.py", script);
    let mut python = Command::new("python3");
    python.arg(script).arg(folder.join("run/tb"));
    let read: Vec<(u64, f64)> = serde_json::from_str(&run_ok(python).stdout).unwrap();
    assert_eq!(read.len(), n_steps);
    let text = fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps = lines.filter(|line| line["event"] == "step");
    let wanted: Vec<_> = steps
        .map(|line| (line["step"].as_u64().unwrap(), f64::from(line["loss"].as_f64().unwrap() as f32)))
        .collect();
    assert_eq!(read, wanted);
}

/// The run goes on without the file.
#[test]
fn a_file_that_cannot_be_written_is_a_warning() {
    let folder = temp_dir();
    fs::create_dir(folder.path().join("run")).unwrap();
    write(&folder.path().join("run"), "tb", "");
    let outcome = run_line_ok(folder.path(), &format!("{TRAIN} --set log.tensorboard=true"));
    assert!(outcome.stderr.contains("can't write `run/tb/events.out.tfevents."), "{}", outcome.stderr);
    assert!(folder.path().join("run/done.json").exists());
}
