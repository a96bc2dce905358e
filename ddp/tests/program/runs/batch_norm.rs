//! Running statistics are stored with the weights: in the model file, in checkpoints and their best weights, and loaded by a new
//! run.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{run_ok, single, temp_dir, train};
use serde_json::Value;

const RUN: &str = "[data]\ntrain = \"builtin:digits\"\neval_fraction = 0.2\n\
    [[model.layers]]\nkind = \"linear\"\nout_features = 12\nbias = false\n\
    [[model.layers]]\nkind = \"batch_norm\"\n\
    [[model.layers]]\nkind = \"activation\"\nactivation = \"relu\"\n\
    [optimizer]\nlr = 0.1\n\
    [train]\nepochs = 3\nglobal_batch_size = 128\ngrad_accum_steps = 2\nema_decay = 0.5\nema_statistics = false\nema_eval = \"averaged\"\n\
    [checkpoint]\nevery_epochs = 1\n";

/// The loss of a saved model on the evaluation rows of the run.
fn eval_loss(model: &Path) -> f64 {
    let outcome = run_ok(single(&["eval", "--checkpoint", model.to_str().unwrap(), "--json"]));
    serde_json::from_str::<Value>(outcome.stdout.lines().last().unwrap()).unwrap()["eval_loss"]
        .as_f64()
        .unwrap()
}

#[test]
fn statistics_go_with_the_weights() {
    let run = train(1, RUN, &[]);
    let losses = run.numbers("epoch", "eval_loss");
    let last = *losses.last().unwrap();
    assert!(losses[..2].iter().all(|loss| *loss > last), "the last epoch is the best: {losses:?}");
    // The run evaluates the averaged weights with the run's statistics.
    let checkpoints = run.out().join("checkpoints");
    let mut steps: Vec<_> =
        std::fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().path()).collect();
    steps.retain(|path| path.is_dir() && path.file_name().unwrap().to_str().unwrap().starts_with("step-"));
    steps.sort_by_key(|path| path.file_name().unwrap().len());
    let newest = checkpoints.join("latest");
    for model in [run.out().to_owned(), newest] {
        assert!((eval_loss(&model) - last).abs() < 1e-9, "{}", model.display());
    }
    for step in steps {
        let best = eval_loss(&step.join("best.safetensors"));
        assert!(
            losses.iter().any(|loss| (loss - best).abs() < 1e-9),
            "{}: {best} of {losses:?}",
            step.display()
        );
        assert!(eval_loss(&step.join("model.safetensors")).is_finite());
    }
    let folder = temp_dir();
    let out = folder.path().join("average.safetensors");
    let (from, to) = (run.out().display().to_string(), out.display().to_string());
    run_ok(single(&["checkpoint", "average", &from, "--last", "2", "--out", &to]));
    assert!(eval_loss(&out) < losses[0]);
    // One step of length zero from the saved model: its loss is the model's, and the statistics have advanced by one step.
    let again = train(
        1,
        &RUN.replace("epochs = 3", "steps = 1").replace("lr = 0.1", "lr = 1e-12"),
        &["--init-from", &from],
    );
    let loss = again.end("eval_loss");
    assert!((loss - last).abs() < 0.2 * last, "{loss} against {last}");
}
