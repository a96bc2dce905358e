//! If a file becomes shorter during training, the run ends with a message, never by a signal.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::files::{Element, npy};
use crate::common::{Outcome, single, start, temp_dir};

const N_FEATURES: usize = 256;

/// Starts an endless run on `n_rows` rows, truncates `name` to `len` bytes once steps are taken, and waits.
fn shrunk(
    command: impl Fn(&[&str]) -> Command,
    n_rows: usize,
    labels: Element,
    (name, len): (&str, u64),
    sets: &[&str],
) -> Outcome {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let x: Vec<f64> = (0..n_rows * N_FEATURES).map(|i| (i % 17) as f64 * 0.1).collect();
    let y: Vec<f64> = (0..n_rows).map(|row| (row % 3) as f64).collect();
    fs::write(path("x.npy"), npy(Element::F32, false, &[n_rows, N_FEATURES], &x)).unwrap();
    fs::write(path("y.npy"), npy(labels, false, &[n_rows], &y)).unwrap();
    let mut all = vec![
        format!("data.train={}", path("x.npy").display()),
        format!("data.labels={}", path("y.npy").display()),
    ];
    let fixed = ["train.epochs=1000000", "train.batch_size=16", "model.hidden=[4]", "log.every_steps=1"];
    all.extend(fixed.iter().chain(sets).map(|&set| set.to_owned()));
    let out = path("out").display().to_string();
    let mut args = vec!["train", "--quiet", "--threads", "1", "--device", "cpu", "--out", &out];
    all.iter().for_each(|set| args.extend(["--set", set]));

    let job = start(command(&args));
    wait_for_steps(&path("out/metrics.jsonl"));
    File::options().write(true).open(path(name)).unwrap().set_len(len).unwrap();
    job.wait()
}

fn wait_for_steps(metrics: &Path) {
    let started = Instant::now();
    while !fs::read_to_string(metrics).is_ok_and(|text| text.contains("\"step\"")) {
        assert!(started.elapsed() < Duration::from_secs(60), "no step was taken");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
fn assert_changed(outcome: &Outcome, name: &str) {
    let stderr = &outcome.stderr;
    assert_eq!(outcome.status.code(), Some(1), "{stderr}");
    for part in [name, "changed while it was read: a part of it is missing", "\nhint: don't write to data"] {
        assert!(stderr.contains(part), "no {part:?} in:\n{stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

const LARGE: usize = 3000;

#[test]
fn mapped_features() {
    for sets in [
        // Copied row by row or block by block from threads, or read in place.
        ["data.shuffle_mode=full", "data.loader_threads=2"],
        ["data.shuffle_mode=blocks", "data.shuffle_window_mib=1"],
        ["data.shuffle=false", "data.loader_threads=1"],
        ["data.eval_fraction=0.2", "data.normalize=standard"],
    ] {
        for len in [0, 1 << 20] {
            assert_changed(&shrunk(single, LARGE, Element::I64, ("x.npy", len), &sets), "x.npy");
        }
    }
}

#[test]
fn mapped_labels() {
    for labels in [Element::I64, Element::F64] {
        for shuffle in ["data.shuffle=true", "data.shuffle=false"] {
            let outcome = shrunk(single, LARGE, labels, ("y.npy", 4096), &["data.classes=3", shuffle]);
            assert_changed(&outcome, "y.npy");
        }
    }
}

/// Cut by less than a page, whose rest reads as zeros, so that only the file's length shows it.
#[test]
fn the_last_bytes_of_mapped_rows() {
    let n_rows = 64;
    for (name, len) in [("x.npy", 128 + n_rows as u64 * 1024 - 100), ("y.npy", 128 + n_rows as u64 * 8 - 100)]
    {
        let outcome = shrunk(single, n_rows, Element::I64, (name, len), &[]);
        assert_changed(&outcome, name);
    }
}

#[test]
fn rows_that_are_read_piece_by_piece() {
    for sets in [
        ["data.loader_memory_mib=1", "data.shuffle_mode=full"],
        ["data.loader_memory_mib=1", "data.shuffle_mode=blocks"],
        ["data.loader_memory_mib=1", "data.shuffle=false"],
    ] {
        // 200 bytes are part of the last row, so reading the remaining rows needs no lost page.
        let len = (npy(Element::F32, false, &[LARGE, N_FEATURES], &[]).len() + LARGE * N_FEATURES * 4) as u64;
        for len in [1 << 20, len - 200] {
            assert_changed(&shrunk(single, LARGE, Element::I64, ("x.npy", len), &sets), "x.npy");
        }
        assert_changed(&shrunk(single, LARGE, Element::U8, ("y.npy", 1000), &sets), "y.npy");
    }
}

/// Any rank that finds it reports it, and all ranks end.
#[test]
fn any_rank_that_finds_it_reports_it() {
    let two = |args: &[&str]| crate::common::ranks(2, args);
    for sets in [["data.shuffle=true"], ["data.loader_memory_mib=1"]] {
        assert_changed(&shrunk(two, LARGE, Element::I64, ("x.npy", 1 << 20), &sets), "x.npy");
    }
}
