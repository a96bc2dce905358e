//! Review at the end of a run: each sign of a model that is worse than it should be is one warning, and a good run gets none.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::Path;

use crate::common::{run, single, temp_dir, write};
use serde_json::Value;

/// Trains with the words of `line` in `folder`; the warnings of its end.
#[track_caller]
fn warnings(folder: &Path, line: &str) -> Vec<String> {
    let out = folder.join("out");
    let mut args = vec!["train", "--threads", "1", "--progress", "none", "--out", out.to_str().unwrap()];
    args.extend(line.split_whitespace());
    let mut command = single(&args);
    command.current_dir(folder);
    let outcome = run(command);
    assert!(outcome.status.success(), "{line}: {}", outcome.stderr);
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let end: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(end["event"], "end");
    let warnings = end["warnings"].as_array().cloned().unwrap_or_default();
    let warnings: Vec<String> = warnings.iter().map(|warning| warning.as_str().unwrap().to_owned()).collect();
    for warning in &warnings {
        let first = warning.lines().next().unwrap();
        assert!(outcome.stderr.contains(first), "no {first:?} in {}", outcome.stderr);
    }
    warnings
}

/// One warning, which has these parts.
#[track_caller]
fn warns(line: &str, parts: &[&str]) {
    let folder = temp_dir();
    let found = warnings(folder.path(), line);
    let [warning] = &found[..] else { panic!("{line}: {found:#?}") };
    for part in parts {
        assert!(warning.contains(part), "no {part:?} in {warning}");
    }
}

/// A sequence of numbers without a pattern, from 0 to 1.
fn noise(n: u64) -> f64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 11) as f64 / (1u64 << 53) as f64
}

const DIGITS: &str = "--set data.train=builtin:digits --hidden 32 ";

#[test]
fn good_runs_get_no_warning() {
    for line in [
        "--epochs 10",
        "--epochs 10 --set train.clip_grad_norm=1.0 --set schedule.kind=cosine",
        "--epochs 10 --set train.ema_decay=0.99 --set optimizer.kind=sgd --lr 0.05",
        "--epochs 2",
    ] {
        let folder = temp_dir();
        let found = warnings(folder.path(), &format!("{DIGITS}{line}"));
        assert_eq!(found, Vec::<String>::new(), "{line}");
    }
}

#[test]
fn a_learning_rate_that_is_too_large_is_named() {
    let folder = temp_dir();
    let line = format!("{DIGITS}--epochs 8 --set optimizer.kind=sgd --lr 30 --set optimizer.momentum=0.0");
    let found = warnings(folder.path(), &line);
    // The model is useless too.
    let [warning, _] = &found[..] else { panic!("{found:#?}") };
    for part in
        ["in the last tenth of the steps, above", "optimizer.lr = 30 may be too large", "optimizer.lr=3e0"]
    {
        assert!(warning.contains(part), "no {part:?} in {warning}");
    }
}

#[test]
fn a_loss_that_rises_at_the_end_is_named() {
    warns(
        &format!(
            "{DIGITS}--epochs 24 --set schedule.warmup_fraction=1.0 --set schedule.warmup_start=0.0001 --lr 0.4"
        ),
        &["the training loss rose over the last third of the steps", "schedule.kind=cosine"],
    );
}

#[test]
fn gradients_that_are_all_clipped_are_named() {
    warns(
        &format!("{DIGITS}--epochs 6 --set train.clip_grad_norm=0.001"),
        &["100.0% of the gradients were clipped", "try train.clip_grad_norm="],
    );
}

#[test]
fn saved_weights_that_are_much_worse_are_named() {
    let folder = temp_dir();
    // The label is among the five largest outputs early on.
    let keep = "--lr 0.01 --set checkpoint.keep_best=eval_top_5_accuracy --set train.eval_metrics=[\"all\"]";
    let found = warnings(folder.path(), &format!("{DIGITS}--epochs 10 {keep}"));
    let [warning] = &found[..] else { panic!("{found:#?}") };
    for part in [
        "eval_accuracy of the saved model is",
        "checkpoint.keep_best=eval_top_5_accuracy chose it",
        "checkpoint.keep_best=eval_accuracy",
    ] {
        assert!(warning.contains(part), "no {part:?} in {warning}");
    }
}

#[test]
fn a_model_that_guesses_is_named() {
    let folder = temp_dir();
    let mut rows = "a,b,y\n".to_owned();
    for row in 0..600 {
        let label = if noise(7 * row) < 0.85 { "no" } else { "yes" };
        writeln!(rows, "{:.4},{:.4},{label}", noise(7 * row + 1), noise(7 * row + 2)).unwrap();
    }
    write(folder.path(), "rows.csv", &rows);
    let found = warnings(folder.path(), "rows.csv --target y --eval-fraction 0.3 --epochs 4");
    let [warning] = &found[..] else { panic!("{found:#?}") };
    for part in [
        "eval_balanced_accuracy 0.5000 is that of guessing",
        "1 of 2 classes are predicted",
        "class_weights=balanced",
    ] {
        assert!(warning.contains(part), "no {part:?} in {warning}");
    }
}

#[test]
fn a_class_that_is_never_predicted_is_named() {
    let folder = temp_dir();
    let mut rows = "a,y\n".to_owned();
    for row in 0..600 {
        // Classes b and c have the same features, and c has a third of the rows of b.
        let label = ["a", "a", "b", "b", "b", "c"][(row % 6) as usize];
        let a = if label == "a" { 0.0 } else { 1.0 };
        writeln!(rows, "{:.4},{label}", a + 0.1 * noise(row)).unwrap();
    }
    write(folder.path(), "rows.csv", &rows);
    let found = warnings(folder.path(), "rows.csv --target y --eval-fraction 0.3 --epochs 20 --lr 0.01");
    let [warning] = &found[..] else { panic!("{found:#?}") };
    for part in
        ["1 of 3 classes of the evaluation rows are never predicted: \"c\" (", "class_weights=balanced"]
    {
        assert!(warning.contains(part), "no {part:?} in {warning}");
    }
}

#[test]
fn evaluation_rows_that_are_training_rows_are_named() {
    let folder = temp_dir();
    let row =
        |n: u64| format!("{:.4},{:.4},{}\n", noise(2 * n), noise(2 * n + 1), u8::from(noise(2 * n) > 0.5));
    let table =
        |rows: &mut dyn Iterator<Item = u64>| "a,b,y\n".to_owned() + &rows.map(row).collect::<String>();
    write(folder.path(), "train.csv", &table(&mut (0..400)));
    write(folder.path(), "eval.csv", &table(&mut (0..100).rev().chain(400..420)));
    let line = "train.csv --target y --task classification --epochs 30 --lr 0.01 --eval";
    let found = warnings(folder.path(), &format!("{line} eval.csv"));
    let [warning] = &found[..] else { panic!("{found:#?}") };
    assert!(
        warning.contains("100 of 120 evaluation rows that were looked up are training rows too (83%)"),
        "{warning}"
    );
    write(folder.path(), "other.csv", &table(&mut (400..520)));
    assert_eq!(warnings(folder.path(), &format!("{line} other.csv --overwrite")), Vec::<String>::new());
}

#[test]
fn early_stopping_is_proposed_where_the_best_evaluation_was_early() {
    let propose = |line: &str| {
        let folder = temp_dir();
        // The labels are noise, so that training soon makes the evaluation worse.
        let mut rows = "a,b,c,y\n".to_owned();
        for row in 0..200 {
            let label = u8::from(noise(9 * row) > 0.5);
            let x = |i: u64| noise(9 * row + i);
            writeln!(rows, "{:.4},{:.4},{:.4},{label}", x(1), x(2), x(3)).unwrap();
        }
        write(folder.path(), "rows.csv", &rows);
        let line = format!(
            "rows.csv --plain --target y --eval-fraction 0.3 --lr 0.02 --set loss.class_weights=balanced {line}"
        );
        let mut args = vec!["train", "--threads", "1", "--progress", "none", "--out", "out"];
        args.extend(line.split_whitespace());
        let mut command = single(&args);
        command.current_dir(folder.path());
        let outcome = run(command);
        assert!(outcome.status.success(), "{}", outcome.stderr);
        outcome.stderr
    };
    let said = propose("--epochs 40");
    assert!(
        said.contains("eval_loss was best after step") && said.contains("train.early_stop_patience="),
        "{said}"
    );
    let said = propose("--epochs 40 --set train.early_stop_patience=30");
    assert!(!said.contains("was best after step"), "{said}");
    let said = propose("--epochs 6");
    assert!(!said.contains("was best after step"), "{said}");
}
