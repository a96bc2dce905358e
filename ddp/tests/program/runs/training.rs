//! The training loop between two steps, in whole runs of the program: evaluation, early stopping, saving, loss scaling.

#![allow(clippy::unwrap_used)]

use serde_json::Value;

use crate::common::{assert_all_close, read_weights, run, run_ok, same_bits, single, temp_dir, train, write};

const DIGITS: &str = "[data]\ntrain = \"builtin:digits\"\n\
    [model]\nhidden = [32]\n[train]\nepochs = 4\nglobal_batch_size = 64\n[log]\nevery_steps = 1\n";

fn set(text: &str) -> [&str; 2] {
    ["--set", text]
}

#[test]
fn training_stops_when_evaluations_stop_getting_better() {
    // A learning rate at which the loss does not improve for a long time.
    let args = [set("train.early_stop_patience=2"), set("train.epochs=40"), set("optimizer.lr=0.3")].concat();
    let run = train(1, DIGITS, &args);
    let losses = run.numbers("epoch", "eval_loss");
    let best = losses.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    assert_eq!(losses.len(), best + 3, "two evaluations after the best: {losses:?}");
    assert!(losses.len() < 40);
    assert_eq!([run.end("eval_loss"), run.end("last_loss")], [losses[best], losses[losses.len() - 1]]);
    // A run that stopped early is complete: resuming it does nothing.
    let out = run.out();
    let files = |name: &str| std::fs::read(out.join(name)).unwrap();
    let before = ["metrics.jsonl", "done.json", "report.html", "logs/rank-0.log"].map(files);
    let again = run_ok(single(&["train", "--resume", out.to_str().unwrap(), "--progress", "plain"]));
    assert!(again.stderr.contains("steps: nothing to do\nhint: "), "{}", again.stderr);
    assert!(again.stderr.contains("stopped early: a larger `--patience`"), "{}", again.stderr);
    assert_eq!(["metrics.jsonl", "done.json", "report.html", "logs/rank-0.log"].map(files), before);
    assert_eq!(run.numbers("epoch", "eval_loss"), losses);
}

#[test]
fn a_plateau_reduces_the_rate_alike_in_a_run_that_is_resumed() {
    let keys = [
        "schedule.kind=plateau",
        "schedule.plateau_patience=2",
        "schedule.step_factor=0.5",
        "optimizer.lr=0.3",
    ];
    let keys = [&keys[..], &["train.epochs=14", "train.eval_every_steps=10"]].concat();
    let args: Vec<&str> = keys.iter().flat_map(|key| set(key)).collect();
    let whole = train(1, DIGITS, &args);
    let rates = whole.numbers("step", "lr");
    let mut steps: Vec<f64> = rates.clone();
    steps.dedup();
    assert!(steps.len() >= 3 && steps.windows(2).all(|pair| pair[1] == pair[0] * 0.5), "{steps:?}");
    // At the lowest rate nothing is reduced, so nothing is reported.
    let bounded = train(1, DIGITS, &[&args[..], &set("schedule.final_fraction=0.5")].concat());
    let log = std::fs::read_to_string(bounded.out().join("logs/rank-0.log")).unwrap();
    assert_eq!(log.matches("of the learning rate, after step").count(), 1, "{log}");
    // Stopped between two evaluations after the first reduction, and resumed on its own.
    let first = rates.iter().position(|rate| *rate < 0.3).unwrap();
    let stop = format!("train.stop_after_steps={}", first + 5);
    let folder = temp_dir();
    let (config, out) = (write(folder.path(), "run.toml", DIGITS), folder.path().join("out"));
    let (config, out) = (config.to_str().unwrap(), out.to_str().unwrap());
    let stopped =
        run(single(&[&["train", config, "--quiet", "--out", out, "--set", &stop][..], &args].concat()));
    assert_eq!(stopped.status.code(), Some(85), "{}", stopped.stderr);
    run_ok(single(&["train", "--resume", out, "--quiet"]));
    let events = std::fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let resumed: Vec<f64> =
        events.filter(|event| event["event"] == "step").map(|event| event["lr"].as_f64().unwrap()).collect();
    assert_eq!(resumed, rates);
    assert!(same_bits(&read_weights(&folder.path().join("out/model.safetensors")), &whole.weights()));
    let ranks = train(2, DIGITS, &args);
    assert_eq!(ranks.numbers("step", "lr")[..=first], rates[..=first]);
}

#[test]
fn the_average_of_the_weights_is_what_is_evaluated_and_saved() {
    let plain = train(1, DIGITS, &[]);
    // Else the model would be the better of the averaged and the last weights.
    let keys = [set("train.ema_decay=0.99"), set("train.ema_eval=averaged")].concat();
    let averaged = train(1, DIGITS, &keys);
    // The average does not affect the training itself.
    assert_eq!(averaged.numbers("step", "loss"), plain.numbers("step", "loss"));
    assert_ne!(averaged.numbers("epoch", "eval_loss"), plain.numbers("epoch", "eval_loss"));
    assert!(!same_bits(&averaged.weights(), &plain.weights()));
    let out = averaged.out();
    let eval = run_ok(single(&["eval", "--checkpoint", out.to_str().unwrap(), "--json"]));
    let eval: Value = serde_json::from_str(&eval.stdout).unwrap();
    assert_eq!(eval["eval_loss"].as_f64().unwrap(), averaged.end("eval_loss"));
    // A checkpoint contains the trained weights and, separately, the average.
    let checkpoint = out.join("checkpoints/latest");
    let name = std::fs::read_to_string(&checkpoint).unwrap();
    let folder = out.join("checkpoints").join(name.trim());
    assert!(same_bits(&read_weights(&folder.join("model.safetensors")), &plain.weights()));
    let eval = run_ok(single(&["eval", "--checkpoint", checkpoint.to_str().unwrap(), "--json"]));
    let eval: Value = serde_json::from_str(&eval.stdout).unwrap();
    assert_eq!(eval["eval_loss"].as_f64().unwrap(), averaged.end("eval_loss"), "as the run itself evaluates");
}

#[test]
fn the_same_run_writes_the_same_bytes() {
    let model =
        || std::fs::read(train(1, DIGITS, &set("name=\"same\"")).out().join("model.safetensors")).unwrap();
    assert!(model() == model());
}

#[test]
fn checkpoints_come_by_steps_by_minutes_and_at_once() {
    let saved = |sets: &[&str]| -> Vec<f64> {
        let args: Vec<&str> = sets.iter().flat_map(|text| set(text)).collect();
        train(1, DIGITS, &args).numbers("checkpoint", "step")
    };
    let off = "checkpoint.every_minutes=0";
    assert_eq!(saved(&[off]), [0.0; 0]);
    // By default, every five minutes and at the end.
    assert_eq!(saved(&[]), [92.0]);
    // 23 steps per epoch; the last step of the run is also saved.
    let none = "checkpoint.keep_best=\"none\"";
    assert_eq!(saved(&[off, none, "checkpoint.every_steps=40"]), [40.0, 80.0, 92.0]);
    // An evaluation that is the best so far also triggers a save.
    assert_eq!(saved(&[off, "checkpoint.every_steps=40"]), [23.0, 40.0, 46.0, 69.0, 80.0, 92.0]);
    assert_eq!(saved(&[off, "checkpoint.every_epochs=3", none, "checkpoint.async=false"]), [69.0, 92.0]);
    let by_minutes = saved(&["checkpoint.every_minutes=1e-9"]);
    assert!(by_minutes.len() > 20 && by_minutes.is_sorted(), "{by_minutes:?}");
}

/// At this scale the gradients of the first steps overflow f16.
#[test]
fn a_loss_that_is_scaled_too_far_costs_steps_of_the_data_but_none_of_the_run() {
    let config = DIGITS.replace("epochs = 4", "steps = 60");
    let f16 = set("train.precision=\"f16\"");
    let usual = train(1, &config, &f16);
    let args = [f16, set("train.loss_scale_init=1073741824.0")].concat();
    let recovered = train(1, &config, &args);
    for run in [&usual, &recovered] {
        assert_eq!(run.numbers("step", "step"), (1..=60).map(f64::from).collect::<Vec<_>>());
        assert!(run.numbers("step", "loss").iter().all(|loss| loss.is_finite()));
    }
    assert!(recovered.end("samples") > usual.end("samples"), "steps were skipped, and their rows were used");
    assert_eq!(recovered.end("steps"), 60.0);
    let f32 = train(1, &config, &[]);
    // f16 has 11 bits; 60 steps are few.
    assert_all_close("f16 against f32", &usual.numbers("step", "loss"), &f32.numbers("step", "loss"), 0.02);
}

#[test]
fn another_order_of_the_gradient_is_told_with_its_price() {
    let args =
        [set("train.deterministic=\"world\""), set("train.micro_shards=4"), set("train.epochs=1")].concat();
    let out = temp_dir();
    let path = out.path().join("out");
    let outcome = run(single(&[&["train", "--out", path.to_str().unwrap()], &args[..]].concat()));
    assert!(outcome.stderr.contains("4 micro-shards per step, 4 of them on this rank"), "{}", outcome.stderr);
}

/// The step that diverges has a finite loss; only the next one shows it. No run may resume from such weights.
#[test]
fn weights_that_are_not_finite_are_not_saved() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let config = write(folder.path(), "run.toml", DIGITS);
    let sets = [
        "optimizer.kind=\"sgd\"",
        "optimizer.lr=1e30",
        "optimizer.groups=[{ match = \"layers.1.*\", lr_scale = 1e30 }]",
        "checkpoint.every_steps=1",
        "checkpoint.async=false",
        "log.every_steps=1000",
    ];
    let mut args =
        vec!["train", config.to_str().unwrap(), "--out", out.to_str().unwrap(), "--progress", "plain"];
    sets.iter().for_each(|text| args.extend(set(text)));
    let outcome = run(single(&args));
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("not saved: its weights are not all finite"), "{}", outcome.stderr);
    let verified = run(single(&["checkpoint", "verify", out.to_str().unwrap()]));
    assert!(!verified.stdout.contains("step-1"), "{verified:?}");
}
