//! Averaged weights: both they and the last weights are evaluated, the better ones are kept, and batch norms have their statistics.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{Run, largest_gap, read_weights, run_ok, single, train};
use serde_json::Value;

const DIGITS: &str = "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [32]\n[optimizer]\nlr = 0.003\n";
const BATCH_NORM: &str = "[data]\ntrain = \"builtin:digits\"\n[[model.layers]]\nkind = \"linear\"\nout_features = 48\n\
    [[model.layers]]\nkind = \"batch_norm\"\n[[model.layers]]\nkind = \"activation\"\nactivation = \"relu\"\n\
    [optimizer]\nlr = 0.01\n[checkpoint]\nkeep_best = \"none\"\n";

/// Trains with these keys of `[train]`.
fn run(base: &str, train_keys: &str, n_ranks: usize) -> Run {
    let config = format!("{base}[train]\nepochs = 3\nglobal_batch_size = 32\n{train_keys}\n");
    train(n_ranks, &config, &["--threads", "1"])
}

/// Metrics of the run's model by `ddp-train eval`.
fn evaluated(run: &Run, metric: &str) -> f64 {
    evaluated_at(&run.out(), metric)
}

fn evaluated_at(path: &Path, metric: &str) -> f64 {
    let outcome = run_ok(single(&["eval", "--checkpoint", path.to_str().unwrap(), "--json"]));
    let line: Value = serde_json::from_str(outcome.stdout.trim()).unwrap();
    line[metric].as_f64().unwrap_or_else(|| panic!("no {metric} in {line}"))
}

#[test]
fn both_weights_are_evaluated_where_there_is_an_average() {
    let both = run(DIGITS, "ema_decay = 0.99", 1);
    let (averaged, last) = (both.numbers("epoch", "eval_loss"), both.numbers("epoch", "last_loss"));
    assert!(averaged.len() == 3 && averaged.iter().zip(&last).all(|(a, b)| a != b), "{averaged:?} {last:?}");
    assert!(both.end("last_accuracy") > 0.5);
    // The last weights are those of the same run without an average.
    let none = run(DIGITS, "", 1);
    assert_eq!(none.numbers("epoch", "eval_loss"), last);
    assert!(none.events("end")[0].get("last_loss").is_none());
    let averaged_only = run(DIGITS, "ema_decay = 0.99\nema_eval = \"averaged\"", 1);
    assert_eq!(averaged_only.numbers("epoch", "eval_loss"), averaged);
    assert!(averaged_only.events("end")[0].get("last_loss").is_none());
}

#[test]
fn the_better_weights_are_the_model() {
    // The average of PyTorch, which still holds most of the first weights.
    let slow = run(DIGITS, "ema_decay = 0.999\nema_warmup = false", 1);
    let [last, averaged] = ["eval_accuracy", "last_accuracy"].map(|name| slow.end(name));
    assert!(averaged < last - 0.05, "{averaged}, {last}");
    let best = &slow.events("end")[0]["best"];
    assert_eq!((&best["is_last"], best["value"].as_f64()), (&true.into(), Some(slow.end("eval_loss"))));
    let of_model = evaluated(&slow, "eval_accuracy");
    assert!((of_model - last).abs() < 1e-9, "{of_model}, {last}");
    // Without the last weights the average is the model, and a warning tells how much better they are where that is known.
    let config = format!(
        "{DIGITS}[checkpoint]\nkeep_best = \"none\"\n[train]\nepochs = 3\nbatch_size = 32\nema_decay = 0.999\nema_warmup = false\n"
    );
    let kept = train(1, &config, &["--threads", "1"]);
    let warnings = kept.events("end")[0]["warnings"].to_string();
    assert!(warnings.contains("of the last weights: train.ema_decay=0.999 chose it"), "{warnings}");
    assert!((evaluated(&kept, "eval_accuracy") - kept.end("eval_accuracy")).abs() < 1e-9);
}

/// The best weights of a run that keeps an average are in a file of their own, next to the weights of the step and the average.
#[test]
fn the_best_checkpoint_is_the_best_evaluation() {
    let batch_norm = BATCH_NORM.replace("[checkpoint]\nkeep_best = \"none\"\n", "");
    let slow = "ema_decay = 0.999\nema_warmup = false";
    for (base, keys, is_last) in [(DIGITS, slow, true), (&batch_norm, "ema_decay = 0.9", false)] {
        let run = run(&format!("{base}[checkpoint]\nevery_epochs = 1\n"), keys, 1);
        let best = run.events("end")[0]["best"].clone();
        assert_eq!(best["is_last"].as_bool().unwrap_or(false), is_last, "{best}");
        let value = best["value"].as_f64().unwrap();
        let marker = run.out().join("checkpoints/best");
        let got = evaluated_at(&marker, "eval_loss");
        assert!((got - value).abs() < 1e-6 * value, "{got}, {best}");
        // Its export is the model of the run, and so is what a run begins with.
        let [file, next] = ["best.safetensors", "next"].map(|name| run.out().join(name));
        let [marker, out] = [&marker, &next].map(|path| path.to_str().unwrap());
        run_ok(single(&["checkpoint", "export", marker, "--out", file.to_str().unwrap()]));
        assert!(read_weights(&file) == run.weights(), "the export differs from the model of the run");
        if is_last {
            let config = run.out().join("config.toml");
            let args = ["train", config.to_str().unwrap(), "--out", out, "--init-from", marker, "--quiet"];
            run_ok(single(&[&args[..], &["--set", "optimizer.lr=1e-30"]].concat()));
            let (gap, place) = largest_gap(&read_weights(&next.join("model.safetensors")), &run.weights());
            assert!(gap < 1e-6, "{place}");
        }
    }
}

#[test]
fn batch_norms_have_the_statistics_of_the_averaged_weights() {
    let keys = "ema_decay = 0.99\nema_warmup = false\nema_eval = \"averaged\"\n";
    let renewed = run(BATCH_NORM, keys, 1);
    let of_steps = run(BATCH_NORM, &format!("{keys}ema_statistics = false\n"), 1);
    let [renewed_loss, loss] = [&renewed, &of_steps].map(|run| run.end("eval_loss"));
    assert!(renewed_loss < 0.9 * loss, "{renewed_loss}, {loss}");
    // The saved model is the one that was evaluated, and only its statistics differ.
    for run in [&renewed, &of_steps] {
        let got = evaluated(run, "eval_loss");
        assert!((got - run.end("eval_loss")).abs() < 1e-6, "{got}");
    }
    let (a, b) = (renewed.weights(), of_steps.weights());
    assert!(a.iter().filter(|(name, _)| !name.contains("running_")).all(|(name, of)| b[name] == *of));
    assert!(a["norms.0.running_mean"] != b["norms.0.running_mean"]);
}

/// A step takes no more rows than an epoch has, in micro-batches of which each is smaller.
#[test]
fn statistics_of_an_epoch_shorter_than_a_step() {
    let short = "epochs = 3\nglobal_batch_size = 4000\ngrad_accum_steps = 2\nema_decay = 0.9\n";
    let run = train(1, &format!("{BATCH_NORM}[train]\n{short}"), &["--threads", "1"]);
    assert!(run.end("eval_loss").is_finite());
}

/// A shared micro-batch has two rows at least.
#[test]
fn statistics_where_rows_are_fewer_than_two_per_micro_batch() {
    let keys =
        "steps = 20\nglobal_batch_size = 8\ngrad_accum_steps = 6\nema_decay = 0.9\nema_eval = \"averaged\"\n";
    let [renewed, of_steps] = ["", "ema_statistics = false\n"]
        .map(|more| train(1, &format!("{BATCH_NORM}[train]\n{keys}{more}"), &["--threads", "1"]).weights());
    assert!(renewed["norms.0.running_mean"] != of_steps["norms.0.running_mean"]);
}

#[test]
fn the_statistics_do_not_depend_on_the_number_of_ranks() {
    // A bias before a batch norm has no gradient but rounding errors, which differ.
    let base = BATCH_NORM.replace("out_features = 48\n", "out_features = 48\nbias = false\n");
    let [one, two] = [1, 2].map(|n_ranks| run(&base, "ema_decay = 0.9\nema_eval = \"averaged\"\n", n_ranks));
    let (gap, place) = largest_gap(&two.weights(), &one.weights());
    assert!(gap < 2e-3, "{place}");
    let [one, two] = [one, two].map(|run| run.end("eval_loss"));
    assert!((one - two).abs() < 1e-3 * one, "{one}, {two}");
}
