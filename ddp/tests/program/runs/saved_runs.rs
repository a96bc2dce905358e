//! Runs that version 0.1.0 saved: they evaluate to the same metrics and resume to the same bits.
//!
//! The runs are in `fixtures/saved_runs`, whose README explains how they were written. They are never regenerated. Only the
//! program and its public files are used here.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::common::{Weights, assert_all_close, read_weights, run_ok, same_bits, single, temp_dir};

const NAMES: [&str; 4] = ["categorical", "classification", "regression", "resumed"];

/// Tolerance for the metrics of a stored model. The f32 dot products of one forward pass round differently on other vector units,
/// by about 2^-24 each.
const EVAL_RTOL: f64 = 1e-5;

/// Tolerance after a run was resumed on a CPU with different vector instructions. The rounding errors of each step propagate to
/// the next; the same legs on 2 ranks, which also round differently, differ by up to 3.3e-5 relatively, and by 1.2e-7 for small
/// weights.
const RESUME_RTOL: f64 = 1e-4;
const RESUME_ATOL: f64 = 1e-6;

/// A copy of a saved run's folder, because commands write to it.
struct SavedRun {
    name: &'static str,
    folder: TempDir,
    expected: Value,
}

impl SavedRun {
    fn copy(name: &'static str) -> Self {
        let folder = temp_dir();
        copy_folder(&fixtures().join(name), folder.path());
        let expected = std::fs::read_to_string(folder.path().join("expected.json")).unwrap();
        SavedRun { name, folder, expected: serde_json::from_str(&expected).unwrap() }
    }

    /// The program with these arguments, started in the folder: paths in saved configs are relative to it.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = single(args);
        command.current_dir(self.folder.path());
        command
    }

    fn weights(&self, run: &str) -> Weights {
        read_weights(&self.folder.path().join(run).join("model.safetensors"))
    }

    /// The lines of event `epoch` in a run's `metrics.jsonl`.
    fn epochs(&self, run: &str) -> Vec<Map<String, Value>> {
        let text = std::fs::read_to_string(self.folder.path().join(run).join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Map<String, Value>>(line).unwrap());
        lines.filter(|line| line["event"] == "epoch").collect()
    }

    /// Whether this CPU uses the same vector instructions as the one that wrote the run. The width of a vector determines the
    /// order in which a dot product is summed.
    fn has_same_simd(&self) -> bool {
        let same = self.expected["simd"] == simd();
        if !same {
            println!(
                "{}: compared with tolerance: saved on {}, this is {}",
                self.name,
                self.expected["simd"],
                simd()
            );
        }
        same
    }
}

fn fixtures() -> PathBuf {
    crate::common::ddp_folder().join("tests/fixtures/saved_runs")
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
}

/// The widest vector instructions of this CPU that matmuls and element-wise operations select at run time.
#[cfg(target_arch = "x86_64")]
fn simd() -> &'static str {
    use std::arch::is_x86_feature_detected as has;
    if has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl") {
        "avx512"
    } else if has!("avx2") && has!("fma") {
        "avx2"
    } else {
        "sse2"
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn simd() -> &'static str {
    std::env::consts::ARCH
}

#[test]
fn no_saved_run_is_forgotten() {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found.sort();
    assert_eq!(found, NAMES);
}

#[test]
fn saved_runs_evaluate_to_the_same_figures() {
    for name in NAMES {
        let run = SavedRun::copy(name);
        let places = run.expected["eval"].as_object().unwrap();
        // The stopped run, two of its checkpoints, and the finished run.
        assert!(places.len() >= 4, "{name}: {places:?}");
        for (place, want) in places {
            let args = ["eval", "--checkpoint", place, "--json", "--device", "cpu"];
            let stdout = run_ok(run.command(&args)).stdout;
            let got: Value = serde_json::from_str(&stdout).unwrap();
            for (key, want) in want.as_object().unwrap() {
                let number =
                    got[key].as_f64().unwrap_or_else(|| panic!("{name}/{place}: no `{key}` in {got}"));
                let what = format!("{name}/{place}: {key}");
                assert_all_close(&what, &[number], &[want.as_f64().unwrap()], EVAL_RTOL);
            }
        }
    }
}

#[test]
fn saved_checkpoints_verify() {
    for name in NAMES {
        let run = SavedRun::copy(name);
        for place in ["stopped", "finished"] {
            run_ok(run.command(&["checkpoint", "verify", place]));
        }
    }
}

#[test]
fn stopped_runs_resume_to_the_same_bits() {
    for name in NAMES {
        // With the config in the checkpoint.
        assert_resumes(name, &["train"]);
    }
}

#[test]
fn saved_configs_keep_their_meaning() {
    for name in NAMES {
        // The run's config.toml contains each key and must agree with the checkpoint's config, or resuming is refused. The config
        // of the finished run is the one without `train.stop_after_steps`.
        assert_resumes(name, &["train", "finished/config.toml"]);
    }
}

/// Resumes the stopped run with this command and compares it with the finished run.
#[track_caller]
fn assert_resumes(name: &'static str, command: &[&str]) {
    let run = SavedRun::copy(name);
    let args = ["--resume", "auto", "--out", "stopped", "--device", "cpu", "--quiet"];
    run_ok(run.command(&[command, &args].concat()));
    // Each row once per epoch, over all legs.
    run_ok(run.command(&["checkpoint", "verify", "stopped"]));
    let exact = run.has_same_simd();
    assert_weights(name, &run.weights("stopped"), &run.weights("finished"), exact);
    assert_epochs(name, &run.epochs("stopped"), &run.epochs("finished"), exact);
}

#[track_caller]
fn assert_weights(name: &str, got: &Weights, want: &Weights, exact: bool) {
    let (gap, place) = crate::common::largest_gap(got, want);
    if exact {
        assert!(same_bits(got, want), "{name}: weights differ by up to {gap:e}, at {place}");
        return;
    }
    for (tensor, want) in want {
        for (i, (&g, &w)) in got[tensor].values.iter().zip(&want.values).enumerate() {
            let (g, w) = (f64::from(g), f64::from(w));
            let allowed = RESUME_ATOL + RESUME_RTOL * w.abs();
            assert!((g - w).abs() <= allowed, "{name}: {tensor}[{i}]: {g} against {w}, allowed {allowed:e}");
        }
    }
}

#[track_caller]
fn assert_epochs(name: &str, got: &[Map<String, Value>], want: &[Map<String, Value>], exact: bool) {
    assert_eq!(got.len(), want.len(), "{name}: epochs");
    for (got, want) in got.iter().zip(want) {
        for (key, want) in want {
            let what = format!("{name}: epoch {}: {key}", got["epoch"]);
            if exact {
                assert_eq!(got.get(key), Some(want), "{what}");
            } else if key.ends_with("loss") {
                assert_all_close(
                    &what,
                    &[got[key].as_f64().unwrap()],
                    &[want.as_f64().unwrap()],
                    RESUME_RTOL,
                );
            }
        }
    }
}
