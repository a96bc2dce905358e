//! The metric that judges weights, which may change when a run is resumed, and where no number is defined.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;

use crate::common::{refused, run_line, run_line_ok, temp_dir};

const RUN: &str = "train --data builtin:digits --hidden 16 --epochs 4 --lr 0.05 --set train.global_batch_size=64 \
    --set checkpoint.every_minutes=0 --quiet --device cpu --threads 1 --out run";

/// A leg of the run that stops after `steps` of its steps, of 23 an epoch.
fn leg(folder: &Path, judge: &str, steps: u64, resume: &str) {
    let line =
        format!("{RUN} --set checkpoint.keep_best={judge} --set train.stop_after_steps={steps} {resume}");
    assert_eq!(run_line(folder, &line).status.code(), Some(85), "{line}");
}

/// The loss that the run's end states for its model, and the one that `eval` measures.
fn stated_and_measured(folder: &Path) -> [f64; 2] {
    let events = std::fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    let end: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    let report = run_line_ok(folder, "eval run --json --device cpu").stdout;
    [end, serde_json::from_str(&report).unwrap()].map(|of: Value| of["eval_loss"].as_f64().unwrap())
}

#[test]
fn a_judge_that_comes_back_claims_no_weights_that_are_gone() {
    let folder = temp_dir();
    leg(folder.path(), "eval_loss", 46, "");
    leg(folder.path(), "eval_accuracy", 50, "--resume auto");
    run_line_ok(folder.path(), &format!("{RUN} --set checkpoint.keep_best=eval_loss --resume auto"));
    let [stated, measured] = stated_and_measured(folder.path());
    assert!((stated - measured).abs() <= 1e-5 * measured, "{stated} {measured}");
}

#[test]
fn a_judge_that_comes_later_keeps_the_best_from_then_on() {
    let folder = temp_dir();
    leg(folder.path(), "none", 30, "");
    run_line_ok(folder.path(), &format!("{RUN} --set checkpoint.keep_best=eval_loss --resume auto"));
    let events = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    let end: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!(end["best"]["metric"], "eval_loss", "{end}");
}

#[test]
fn an_epoch_without_an_update_has_no_loss() {
    let folder = temp_dir();
    let line = "sweep --out s --epochs 1 --data builtin:digits --set data.eval=none \
        --set train.on_nonfinite=skip --set optimizer.kind=sgd --grid optimizer.lr=0.01,1e30";
    let outcome = run_line(folder.path(), line);
    assert!(outcome.stdout.contains("best run: s/lr=0.01"), "{outcome:?}");
}

#[test]
fn a_metric_that_no_row_defines_is_no_judge() {
    let folder = temp_dir();
    let rows = |cls: &str| format!("x,v,cls\n1,2,{cls}\n2,3,{cls}\n3,5,{cls}\n4,1,{cls}\n");
    std::fs::write(folder.path().join("train.csv"), rows("a").replace("4,1,a", "4,1,b")).unwrap();
    std::fs::write(folder.path().join("eval.csv"), rows("")).unwrap();
    let heads = "[{name=\"cls\",task=\"classification\"},{name=\"v\",task=\"regression\"}]";
    let line = format!(
        "train train.csv --eval eval.csv --set heads={heads} --set data.missing_target=skip --epochs 1 --quiet --device cpu --overwrite --out o"
    );
    for metric in ["log_loss", "ece", "accuracy"] {
        // Also a flag of its own.
        let line = format!("{line} --checkpoint.keep_best cls.eval_{metric}");
        refused(folder.path(), &line, &["of cls is not defined for the evaluation rows"]);
    }
}
