//! The data-parallel law for whole programs: any number of ranks trains the same model as one rank, step by step.

#![allow(clippy::unwrap_used)]

use crate::common::{assert_all_close, largest_gap, made_up_csv, quoted, temp_dir, train, write};

/// Trains on 1 to 4 ranks and compares every step, every evaluation and the final weights with those of one rank.
///
/// - `rest`: the sections of the config except `[data]`, with a global batch size that is the same for all
/// - `data`: additional keys of `[data]`
/// - `metric`: a metric that evaluations measure besides the loss
fn check(task: &str, data: &str, rest: &str, metric: &str, n_rows: usize, n_eval_rows: usize) {
    let folder = temp_dir();
    let file = |name: &str, csv: String| quoted(&write(folder.path(), name, &csv));
    let train_csv = file("train.csv", made_up_csv(n_rows, 7, task, 0));
    let eval_csv = file("eval.csv", made_up_csv(n_eval_rows, 7, task, n_rows));
    let config = format!(
        "[data]\ntrain = {train_csv}\neval = {eval_csv}\ntask = \"{task}\"\n{data}\n{rest}\n[log]\nevery_steps = 1\n"
    );

    let alone = train(1, &config, &["--threads", "1"]);
    let (losses, norms) = (alone.numbers("step", "loss"), alone.numbers("step", "grad_norm"));
    for n_ranks in 2..=4 {
        let run = train(n_ranks, &config, &["--threads", "1"]);
        let what = |name: &str| format!("{task}, {n_ranks} ranks, {name}");
        assert_eq!(run.end("world_size"), n_ranks as f64);
        assert_eq!(run.end("steps"), losses.len() as f64);
        assert_eq!(run.end("samples"), alone.end("samples"), "{}", what("samples"));
        assert_all_close(&what("loss"), &run.numbers("step", "loss"), &losses, LOSS_RTOL);
        assert_all_close(&what("grad_norm"), &run.numbers("step", "grad_norm"), &norms, NORM_RTOL);
        for key in ["train_loss", "eval_loss", metric] {
            // An accuracy is a ratio of counts, so it is equal unless outputs are tied to 6 digits.
            let rtol = if key == "eval_accuracy" { 0.0 } else { LOSS_RTOL };
            let (got, want) = (run.numbers("epoch", key), alone.numbers("epoch", key));
            assert_all_close(&what(key), &got, &want, rtol);
        }
        let (gap, place) = largest_gap(&run.weights(), &alone.weights());
        assert!(gap <= WEIGHT_ATOL, "{}: {place}: {gap:e} apart", what("weights"));
    }
}

// Rows are divided into different matrices, whose matmuls sum in a different order: outputs and gradients differ by a few
// EPS = 2^-24 = 6e-8 of their size. A dozen steps round each weight, below 2, just as often: 1e-6 is 16 EPS, about five times the
// observed difference. A mean over different rows, or a different dropout mask, would differ by 1e-3 and more.
const LOSS_RTOL: f64 = 1e-6;
const WEIGHT_ATOL: f64 = 1e-6;
/// All parts of the norm may err in the same direction.
const NORM_RTOL: f64 = 2e-6;

/// 53 rows in steps of 17: the last step of an epoch has 2 rows, so some of 3 or 4 ranks have none, and most of two micro-batches
/// are empty. Everything that depends on the row is on: dropout, norm, residual, class weights, clipping.
#[test]
fn classification_with_everything_on() {
    check(
        "classification",
        "classes = 4",
        "[model]\nhidden = [16, 16, 16]\nactivation = \"gelu\"\ndropout = 0.3\nnorm = \"layer\"\nresidual = true\n\
         [loss]\nlabel_smoothing = 0.1\nclass_weights = [0.5, 1.0, 2.0, 1.5]\n\
         [optimizer]\nkind = \"sgd\"\nlr = 0.1\n\
         [train]\nepochs = 3\nglobal_batch_size = 17\ngrad_accum_steps = 2\nclip_grad_norm = 0.5\nseed = 5\n\
         [comm]\nbucket_mib = 0.001",
        "eval_accuracy",
        53,
        11,
    );
}

/// Three evaluation rows for four ranks; an adaptive optimizer; features normalized by the statistics of all rows.
#[test]
fn regression_with_adamw() {
    check(
        "regression",
        "target = [\"t0\", \"t1\"]\nnormalize = \"standard\"",
        "[model]\nhidden = [16, 8]\nactivation = \"tanh\"\ndropout = 0.2\n\
         [loss]\nkind = \"huber\"\ndelta = 0.5\n\
         [optimizer]\nkind = \"adamw\"\nlr = 0.005\n\
         [train]\nepochs = 3\nglobal_batch_size = 13\nseed = 6\n[comm]\noverlap = false",
        "eval_r2",
        41,
        3,
    );
}

/// Residual blocks of gated units and of two linear layers, as presets and as a list.
#[test]
fn lists_of_layers() {
    let rest = "[optimizer]\nkind = \"sgd\"\nlr = 0.05\n\
        [train]\nepochs = 2\nglobal_batch_size = 17\ngrad_accum_steps = 2\nclip_grad_norm = 0.5\nseed = 5\n\
        [comm]\nbucket_mib = 0.001";
    let swiglu = "[model]\nkind = \"swiglu\"\nhidden = [16, 16]\ndropout = 0.2";
    check("classification", "classes = 4", &format!("{swiglu}\n{rest}"), "eval_accuracy", 53, 11);
    let list = "[[model.layers]]\nkind = \"linear\"\nout_features = 12\nactivation = \"tanh\"\n\
        [[model.layers]]\nkind = \"residual\"\nrepeat = 2\nlayers = [{ kind = \"layer_norm\" }, \
        { kind = \"linear\", out_features = 24, activation = \"gelu\" }, { kind = \"dropout\", p = 0.2 }, \
        { kind = \"linear\", out_features = 12 }]\n\
        [[model.layers]]\nkind = \"glu\"\nout_features = 8\ngate = \"reglu\"";
    check("regression", "target = [\"t0\", \"t1\"]", &format!("{list}\n{rest}"), "eval_r2", 41, 3);
}

/// Batch norm: statistics of micro-batches across all ranks. The last step of an epoch has 9 rows, three per micro-batch, so one
/// of 4 ranks has none.
#[test]
fn batch_norm() {
    check(
        "classification",
        "classes = 4",
        "[[model.layers]]\nkind = \"linear\"\nout_features = 16\nbias = false\n\
         [[model.layers]]\nkind = \"batch_norm\"\n\
         [[model.layers]]\nkind = \"activation\"\nactivation = \"relu\"\n\
         [[model.layers]]\nkind = \"residual\"\nlayers = [{ kind = \"batch_norm\", eps = 1e-3, momentum = 0.5 }, \
         { kind = \"linear\", out_features = 16, activation = \"tanh\" }]\n\
         [optimizer]\nkind = \"sgd\"\nlr = 0.05\n\
         [train]\nepochs = 3\nglobal_batch_size = 17\ngrad_accum_steps = 3\nclip_grad_norm = 0.5\nseed = 5\n\
         [comm]\nbucket_mib = 0.001",
        "eval_accuracy",
        60,
        11,
    );
}

/// Runs that end within an epoch; micro-batches with one row or none.
#[test]
fn multilabel_without_bias() {
    check(
        "multilabel",
        "target = [\"t0\", \"t1\", \"t2\"]",
        "[model]\nhidden = [9]\nactivation = \"silu\"\nbias = false\n\
         [optimizer]\nkind = \"adam\"\nlr = 0.005\n\
         [train]\nsteps = 7\nglobal_batch_size = 10\ngrad_accum_steps = 3",
        "eval_accuracy",
        31,
        6,
    );
}
