//! Exported models give the same outputs in onnxruntime as `predict`, and pass the checker of the package `onnx`.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::cases::{Case, case, cases};
use crate::common::{run_ok, single, temp_dir, write};

/// The files of a case to compare, with the predictions of its rows.
fn entry(dir: &Path, name: &str, onnx: &Path, case: &Case) -> Value {
    let out = dir.join(format!("{name}.csv"));
    let (run, rows) = (case.run.to_str().unwrap(), case.rows.to_str().unwrap());
    let mut args = vec!["predict", "--checkpoint", run, "--data", rows, "--out", out.to_str().unwrap()];
    if case.has_probabilities {
        args.push("--proba");
    }
    run_ok(single(&args));
    json!({ "name": name, "model": onnx, "rows": case.rows, "predictions": out })
}

fn has_packages() -> bool {
    let imports = Command::new("python3").args(["-c", "import numpy, onnx, onnxruntime"]).output();
    let has_packages = imports.is_ok_and(|output| output.status.success());
    if !has_packages {
        eprintln!("skipped: needs the Python packages onnx, onnxruntime and numpy");
    }
    has_packages
}

#[test]
fn outputs_are_those_of_predict() {
    if !has_packages() {
        return;
    }
    let dir = temp_dir();
    let mut entries: Vec<Value> =
        cases().iter().map(|case| entry(dir.path(), case.name, &case.onnx, case)).collect();
    // The same model with its weights in a second file.
    let case = case("csv");
    let second = dir.path().join("second.onnx");
    let (run, out) = (case.run.to_str().unwrap(), second.to_str().unwrap());
    run_ok(single(&["checkpoint", "export", run, "--out", out, "--external-data"]));
    entries.push(entry(dir.path(), "second file", &second, case));
    let manifest = write(dir.path(), "cases.json", &json!(entries).to_string());

    let folder = crate::common::ddp_folder();
    let mut python = Command::new("python3");
    python.arg(folder.join("tests/program/commands/export/compare.py"));
    python.args([&manifest, &folder.parent().unwrap().join("examples")]);
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    let printed = run_ok(python).stdout;
    assert_eq!(printed.lines().count(), entries.len(), "{printed}");
    println!("{printed}");
}

/// Runs the example as a user would, and checks its output.
#[test]
fn the_example_prints_labels_and_accuracy() {
    if !has_packages() {
        return;
    }
    let case = case("csv");
    let example = crate::common::ddp_folder().parent().unwrap().join("examples/predict_with_onnxruntime.py");
    let mut python = Command::new("python3");
    python.arg(example).args([&case.onnx, &case.rows]);
    let outcome = run_ok(python);
    assert_eq!(outcome.stdout.lines().count(), 359);
    let first: Value = serde_json::from_str(outcome.stdout.lines().next().unwrap()).unwrap();
    assert!(first["label"].is_u64() && first["probability"].as_f64().unwrap() > 0.1, "{first}");
    let (run, rows) = (case.run.to_str().unwrap(), case.rows.to_str().unwrap());
    let eval = run_ok(single(&["eval", "--checkpoint", run, "--data", rows, "--json"])).stdout;
    let eval: Value = serde_json::from_str(&eval).unwrap();
    let accuracy = format!("accuracy {:.6} (", eval["eval_accuracy"].as_f64().unwrap());
    assert!(outcome.stderr.starts_with(&accuracy), "{accuracy}: {}", outcome.stderr);
}
