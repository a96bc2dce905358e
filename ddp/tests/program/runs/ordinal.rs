//! Ordered classes, learned with the ordinal loss.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::common::{quoted, refused, run, run_line_ok, run_ok, same_bits, single, temp_dir, train, write};

const ORDER: [&str; 4] = ["poor", "fair", "good", "excellent"];

/// Rows of two features whose sum, with some noise, determines the class; in alphabetical order the classes would be "excellent",
/// "fair", "good", "poor".
fn grades(n_rows: usize, first: usize) -> String {
    let mut csv = "a,b,grade\n".to_owned();
    for row in first..first + n_rows {
        let wave = |step: f64| (row as f64 * step).sin();
        let (a, b) = (wave(0.7), wave(1.3));
        let place = ((a + b + 0.3 * wave(2.9) + 2.0) * 1.0).clamp(0.0, 3.99) as usize;
        writeln!(csv, "{a:.4},{b:.4},{}", ORDER[place]).unwrap();
    }
    csv
}

fn config(folder: &Path, more: &str) -> String {
    let rows = write(folder, "train.csv", &grades(400, 0));
    let test = write(folder, "test.csv", &grades(200, 400));
    format!(
        "[data]\ntrain = {}\neval = {}\ntarget = \"grade\"\n\
         class_order = [\"poor\", \"fair\", \"good\", \"excellent\"]\n[loss]\nkind = \"ordinal\"\n{more}",
        quoted(&rows),
        quoted(&test)
    )
}

/// Rows of a CSV file, cell by cell, without the header.
fn cells(path: &Path) -> (Vec<String>, Vec<Vec<String>>) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    (lines.next().unwrap(), lines.collect())
}

#[test]
fn grades_are_learned_in_their_order() {
    let folder = temp_dir();
    let text = config(
        folder.path(),
        "[train]\nepochs = 30\nbatch_size = 16\n[optimizer]\nlr = 0.01\n[checkpoint]\nkeep_best = \"none\"\n",
    );
    let run = train(1, &text, &[]);
    assert!(run.end("eval_accuracy") > 0.75, "{}", run.end("eval_accuracy"));
    assert!(run.end("eval_class_mae") < 0.25, "{}", run.end("eval_class_mae"));
    assert!(run.end("eval_quadratic_kappa") > 0.85, "{}", run.end("eval_quadratic_kappa"));
    let weights = run.weights();
    let last =
        weights.iter().filter(|(name, _)| name.ends_with(".bias")).map(|(_, tensor)| tensor.values.len());
    assert_eq!(last.min(), Some(3), "an output less than classes");

    let out = folder.path().join("out.csv");
    let model = run.out();
    let line = format!("predict --checkpoint {} --data test.csv --proba --out out.csv", model.display());
    run_line_ok(folder.path(), &line);
    let (header, rows) = cells(&out);
    assert_eq!(header, ["prediction", "proba_poor", "proba_fair", "proba_good", "proba_excellent"]);
    let (_, given) = cells(&folder.path().join("test.csv"));
    let place = |label: &str| ORDER.iter().position(|other| *other == label).unwrap();
    let (mut n_right, mut distance) = (0, 0);
    for (row, given) in rows.iter().zip(&given) {
        let (predicted, label) = (place(&row[0]), place(&given[2]));
        n_right += usize::from(predicted == label);
        distance += predicted.abs_diff(label);
        let probabilities: Vec<f64> = row[1..].iter().map(|value| value.parse().unwrap()).collect();
        assert!(
            (probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-5 && probabilities.iter().all(|p| *p > 0.0)
        );
        // If no probability was clipped, the class is the median.
        let below: f64 = probabilities[..predicted].iter().sum();
        assert!(below < 0.5 + 1e-4 && below + probabilities[predicted] > 0.5 - 1e-4, "{row:?}");
    }
    let n_rows = rows.len() as f64;
    let eval = format!("eval --checkpoint {} --data test.csv --metrics all --json", model.display());
    let eval: Value = serde_json::from_str(&run_line_ok(folder.path(), &eval).stdout).unwrap();
    assert_eq!(eval["eval_accuracy"].as_f64(), Some(n_right as f64 / n_rows));
    assert_eq!(eval["eval_class_mae"].as_f64(), Some(distance as f64 / n_rows));
    assert_eq!(eval["eval_accuracy"].as_f64(), Some(run.end("eval_accuracy")));
    assert_eq!(eval["eval_confusion_matrix"]["classes"], serde_json::json!(ORDER));
    assert!(
        eval["eval_log_loss"].as_f64().unwrap() < 0.7 && eval["eval_roc_auc"].as_f64().unwrap() > 0.9,
        "{eval}"
    );

    let described = run_line_ok(folder.path(), &format!("describe {}", model.join("config.toml").display()));
    assert!(
        described.stdout.contains("4 classes in order, the lowest first: poor, fair, good, excellent"),
        "{}",
        described.stdout
    );
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    let folder = temp_dir();
    let text =
        config(folder.path(), "[train]\nepochs = 2\nbatch_size = 16\n[checkpoint]\nevery_epochs = 1\n");
    let whole = train(1, &text, &[]);
    let (toml, out) = (write(folder.path(), "run.toml", &text), folder.path().join("resumed"));
    let args = |more: &'static str| {
        single(&["train", toml.to_str().unwrap(), "--out", out.to_str().unwrap(), "--quiet", more])
    };
    assert_eq!(run(args("--set=train.stop_after_steps=30")).status.code(), Some(85));
    run_ok(args("--resume=auto"));
    let resumed = crate::common::read_weights(&out.join("model.safetensors"));
    assert!(same_bits(&whole.weights(), &resumed));
}

#[test]
fn labels_must_stand_in_the_order() {
    let folder = temp_dir();
    let text = config(folder.path(), "").replace("\"good\", ", "");
    let toml = write(folder.path(), "run.toml", &text);
    let line = format!("train {} --out o", toml.display());
    let parts = [
        "label \"good\" must appear once in `data.class_order`, which lists poor, fair, excellent",
        "hint: ",
    ];
    refused(folder.path(), &line, &parts);
    // Labels that are listed in the order but occur in no row are classes too.
    let text = config(folder.path(), "[train]\nsteps = 2\n").replace("[\"poor\"", "[\"awful\", \"poor\"");
    let run = train(1, &text, &[]);
    let bytes = std::fs::read(run.out().join("model.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let labels = &header.metadata().as_ref().unwrap()["ddp_train.labels"];
    assert_eq!(labels, r#"["awful","poor","fair","good","excellent"]"#);
}

#[test]
fn an_order_that_nobody_has_stated_is_named() {
    let folder = temp_dir();
    write(folder.path(), "train.csv", &grades(60, 0));
    let order = r#"takes its labels in alphabetical order: "excellent" < "fair" < "good" < "poor""#;
    let line = "train train.csv --epochs 1 --device cpu --threads 1";
    let told =
        run_line_ok(folder.path(), &format!("{line} --target grade --set loss.kind=ordinal --out a")).stderr;
    assert!(
        told.contains(&format!("the ordinal loss of grade {order}")) && told.contains("data.class_order"),
        "{told}"
    );
    let head = r#"--set heads=[{name="grade",task="classification",loss={kind="ordinal"}}]"#;
    let told = run_line_ok(folder.path(), &format!("{line} {head} --out b")).stderr;
    assert!(told.contains(&format!("the ordinal loss of grade {order}")), "{told}");
    let stated =
        r#"--target grade --set loss.kind=ordinal --set data.class_order=["poor","fair","good","excellent"]"#;
    let told = run_line_ok(folder.path(), &format!("{line} {stated} --out c")).stderr;
    assert!(!told.contains("alphabetical"), "{told}");
}
