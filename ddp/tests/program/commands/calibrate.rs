//! `ddp-train eval --calibrate`: a temperature that becomes part of the model.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;

use crate::common::{refused, run_line_ok, temp_dir, train, write};

/// Metrics of `ddp-train eval` in `folder`.
fn eval(folder: &Path, more: &str) -> Value {
    let outcome = run_line_ok(folder, &format!("eval --checkpoint out --json {more}"));
    serde_json::from_str(outcome.stdout.trim()).unwrap()
}

/// The predictions of `ddp-train predict --proba` for the table in `folder`: labels, and the largest probability of each row.
fn predictions(folder: &Path) -> (Vec<String>, Vec<f64>) {
    run_line_ok(folder, "predict --checkpoint out --data rows.csv --out predictions.csv --overwrite --proba");
    let text = std::fs::read_to_string(folder.join("predictions.csv")).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let (label, rest) = line.split_once(',').unwrap();
        let probabilities = rest.split(',').map(|value| value.parse::<f64>().unwrap());
        (label.to_owned(), probabilities.fold(0.0, f64::max))
    });
    rows.unzip()
}

/// 500 rows to train on and as many to evaluate, with labels that one of eight features explains in nine of ten rows: a model that
/// learns them by heart is too sure of itself.
fn table() -> String {
    let mut text = "a,b,c,d,e,f,g,h,y\n".to_owned();
    let mut x = 1u64;
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) as f64 / (1u64 << 31) as f64
    };
    for _ in 0..1000 {
        let features: Vec<f64> = (0..8).map(|_| next()).collect();
        let label = (features[0] > 0.5) != (next() < 0.1);
        text += &features.iter().map(|value| format!("{value:.4},")).collect::<String>();
        text += if label { "yes\n" } else { "no\n" };
    }
    text
}

#[test]
fn a_temperature_makes_probabilities_honest_and_stays_with_the_model() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", &table());
    let line = "rows.csv --target y --eval-fraction 0.5 --hidden 64,64 --lr 0.01 --epochs 40 --out out --threads 1 -q";
    run_line_ok(folder.path(), &format!("train {line} --set checkpoint.keep_best=none"));
    let metrics = "--metrics accuracy,log_loss,ece";
    let before = eval(folder.path(), metrics);
    let (labels, sure) = predictions(folder.path());
    let found = eval(folder.path(), "--calibrate");
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or_else(|| panic!("no {key} in {of}"));
    let temperature = number(&found, "temperature");
    assert!(temperature > 1.5, "{found}");
    for key in ["eval_accuracy", "eval_log_loss", "eval_ece"] {
        assert!((number(&found["before"], key) - number(&before, key)).abs() < 1e-6, "{found} {before}");
    }
    assert!(number(&found["after"], "eval_ece") < 0.75 * number(&before, "eval_ece"), "{found}");
    assert!(number(&found["after"], "eval_log_loss") < 0.6 * number(&before, "eval_log_loss"), "{found}");

    // The saved model has it: evaluations, predictions and a second calibration, which finds nothing to do.
    let after = eval(folder.path(), metrics);
    for key in ["eval_accuracy", "eval_log_loss", "eval_ece"] {
        assert!((number(&found["after"], key) - number(&after, key)).abs() < 1e-4, "{found} {after}");
    }
    let (same_labels, less_sure) = predictions(folder.path());
    assert_eq!(same_labels, labels);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    assert!(mean(&less_sure) < mean(&sure) - 0.02, "{} {}", mean(&less_sure), mean(&sure));
    let files = || {
        ["model.safetensors", "calibration.json"]
            .map(|name| std::fs::read(folder.path().join("out").join(name)).unwrap())
    };
    let calibrated = files();
    let again = eval(folder.path(), "--calibrate");
    assert_eq!((number(&again, "temperature"), again["no_fit"].is_string()), (1.0, true), "{again}");
    assert!(files() == calibrated, "a second calibration has written them again");
}

#[test]
fn only_the_model_of_a_complete_classifier_is_calibrated() {
    let run = train(
        1,
        "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [8]\n[train]\nepochs = 1\n[checkpoint]\nevery_epochs = 1\n",
        &[],
    );
    let folder = run.out();
    refused(
        &folder,
        "eval --checkpoint checkpoints/latest --calibrate",
        &["this is a checkpoint", "complete run"],
    );
    // Nor by the name of one of its files, or a link to it.
    let step = std::fs::read_to_string(folder.join("checkpoints/latest")).unwrap();
    let file = folder.join("checkpoints").join(step.trim()).join("model.safetensors");
    std::os::unix::fs::symlink(&file, folder.join("link.safetensors")).unwrap();
    let before = std::fs::read(&file).unwrap();
    for path in [file.to_str().unwrap(), "link.safetensors"] {
        refused(&folder, &format!("eval --checkpoint {path} --calibrate"), &["this is a checkpoint"]);
    }
    assert!(std::fs::read(&file).unwrap() == before, "its file was changed");
    write(&folder, "rows.csv", "a,y\n1.5,2.25\n2.5,3.75\n3.5,4.5\n4.5,6.25\n5.5,8.5\n6.5,9.5\n");
    run_line_ok(
        &folder,
        "train rows.csv --target y --task regression --eval-fraction 0.3 --epochs 1 --out r -q",
    );
    refused(&folder, "eval --checkpoint r --calibrate", &["probabilities of classes"]);
    write(
        &folder,
        "heads.toml",
        "[data]\ntrain = \"rows.csv\"\neval_fraction = 0.3\n[[heads]]\nname = \"size\"\ntask = \"regression\"\ntarget = [\"y\"]\n\
         [train]\nepochs = 1\n",
    );
    run_line_ok(&folder, "train heads.toml --out h -q");
    refused(&folder, "eval --checkpoint h --calibrate", &["this model has several heads"]);
}

#[test]
fn rows_that_the_model_gets_all_right_fit_no_temperature() {
    let folder = temp_dir();
    let row = |x: usize| format!("{x},{}\n", if x < 20 { "low" } else { "high" });
    write(folder.path(), "rows.csv", &format!("x,y\n{}", (0..40).map(row).collect::<String>()));
    let far: String = [0, 1, 2, 37, 38, 39].map(row).concat();
    write(folder.path(), "far.csv", &format!("x,y\n{far}5,neither\n"));
    run_line_ok(
        folder.path(),
        "train rows.csv --target y --plain --hidden 8 --lr 0.01 --epochs 10 --out out --threads 1 -q",
    );
    let model = || std::fs::read(folder.path().join("out/model.safetensors")).unwrap();
    let before = model();
    let line = "eval --checkpoint out --data far.csv --unknown-label skip --calibrate";
    let outcome = run_line_ok(folder.path(), &format!("{line} --json"));
    let found: Value = serde_json::from_str(outcome.stdout.trim()).unwrap();
    assert_eq!(
        (found["temperature"].as_f64(), found["before"] == found["after"]),
        (Some(1.0), true),
        "{found}"
    );
    assert!(found["no_fit"].as_str().unwrap().contains("right on all rows"), "{found}");
    assert_eq!((found["rows"].as_u64(), found["skipped_rows"].as_u64()), (Some(6), Some(1)), "{found}");
    assert!(outcome.stderr.contains("the model is left as it was: "), "{}", outcome.stderr);
    assert!(model() == before && !folder.path().join("out/calibration.json").exists());
    let shown = run_line_ok(folder.path(), line).stdout;
    assert!(shown.contains("of 6 rows of far.csv (left out 1 whose labels"), "{shown}");
}

#[test]
fn a_page_shows_the_calibration_of_the_model_that_is_there() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", &table());
    let line = "rows.csv --target y --eval-fraction 0.5 --hidden 64,64 --lr 0.01 --epochs 40 --out out --threads 1 -q";
    run_line_ok(folder.path(), &format!("train {line} --set train.early_stop_patience=0"));
    let out = folder.path().join("out");
    let is_shown = || {
        run_line_ok(folder.path(), "report out");
        std::fs::read_to_string(out.join("report.html")).unwrap().contains("id=\"calibration\"")
    };
    // The weights of the last step are too sure of themselves.
    std::fs::copy(out.join("last.safetensors"), folder.path().join("last")).unwrap();
    run_line_ok(folder.path(), "eval --checkpoint out/last.safetensors --calibrate");
    assert!(out.join("last.calibration.json").exists() && !out.join("calibration.json").exists());
    assert!(!is_shown(), "the model is another one");
    std::fs::copy(folder.path().join("last"), out.join("model.safetensors")).unwrap();
    run_line_ok(folder.path(), "eval --checkpoint out --calibrate");
    assert!(is_shown());
    std::fs::copy(folder.path().join("last"), out.join("model.safetensors")).unwrap();
    assert!(!is_shown(), "the model was replaced");
}
