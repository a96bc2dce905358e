//! Training in bf16 reaches the results of f32 on the digits, on one and on two ranks.

use crate::common::train;

/// `|got - want| <= share·|want|`.
#[track_caller]
fn assert_within(what: &str, got: f64, want: f64, share: f64) {
    assert!((got - want).abs() <= share * want.abs(), "{what}: {got} against {want}");
}

/// Mean accuracy and loss on the test rows over three seeds of 64-128-64-10 on digits.
fn digits(n_ranks: usize, precision: &str) -> (f64, f64) {
    let of_seed = |seed: u64| {
        let config = format!(
            "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [128, 64]\n\
             [optimizer]\nkind = \"adamw\"\nlr = 1e-3\n\
             [train]\nepochs = 30\nglobal_batch_size = 32\nseed = {seed}\nprecision = \"{precision}\"\n"
        );
        let run = train(n_ranks, &config, &["--device", "cpu"]);
        (run.end("eval_accuracy"), run.end("eval_loss"))
    };
    let runs: Vec<(f64, f64)> = (0..3).map(of_seed).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| runs.iter().map(of).sum::<f64>() / 3.0;
    (mean(|run| run.0), mean(|run| run.1))
}

/// Within 2% of f32's result, which is the accepted cost of a short format.
fn check_digits(n_ranks: usize) {
    let (want_accuracy, want_loss) = digits(n_ranks, "f32");
    let (accuracy, loss) = digits(n_ranks, "bf16");
    assert_within("accuracy in bf16 and f32", accuracy, want_accuracy, 0.02);
    assert_within("loss in bf16 and f32", loss, want_loss, 0.02);
    assert!(loss != want_loss, "bf16 rounds");
}

#[test]
fn digits_are_learned_in_bf16_as_in_f32() {
    check_digits(1);
}

#[test]
fn digits_are_learned_in_bf16_by_two_ranks() {
    check_digits(2);
}
