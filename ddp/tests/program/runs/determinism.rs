//! Repeating a run gives the same bits; a different seed gives different bits; the number of threads makes no difference.

#![allow(clippy::unwrap_used)]

use crate::common::{largest_gap, same_bits, train};

/// Digits with shuffling and dropout, so that all randomness is involved.
fn digits(seed: u64) -> String {
    format!(
        "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [32, 32]\ndropout = 0.2\nnorm = \"layer\"\nresidual = true\n\
         [train]\nsteps = 60\nglobal_batch_size = 50\nseed = {seed}\n[log]\nevery_steps = 1\n"
    )
}

#[track_caller]
fn assert_repeats(n_ranks: usize, config: &str) {
    let first = train(n_ranks, config, &[]);
    let second = train(n_ranks, config, &[]);
    assert!(same_bits(&first.weights(), &second.weights()), "{n_ranks} ranks: other weights");
    assert_eq!(first.numbers("step", "loss"), second.numbers("step", "loss"), "{n_ranks} ranks");
    assert_eq!(first.end("eval_loss"), second.end("eval_loss"), "{n_ranks} ranks");
}

#[test]
fn one_process_repeats_bit_for_bit() {
    assert_repeats(1, &digits(1));
}

#[test]
fn two_and_three_ranks_repeat_bit_for_bit() {
    assert_repeats(2, &digits(1));
    assert_repeats(3, &digits(1));
}

#[test]
fn another_seed_is_another_run() {
    let (one, two) = (train(1, &digits(1), &[]), train(1, &digits(2), &[]));
    let (gap, _) = largest_gap(&one.weights(), &two.weights());
    // The initial weights alone are uniform in ±1/8 or a wider range.
    assert!(gap > 0.05, "only {gap:e} apart");
    assert_ne!(one.numbers("step", "loss"), two.numbers("step", "loss"));
}

/// Wide enough that matmuls, activations, dropout and the optimizer are each divided over the threads.
#[test]
fn threads_change_no_bit() {
    for optimizer in ["adamw", "sgd"] {
        let config = format!(
            "[data]\ntrain = \"builtin:digits\"\n\
             [model]\nhidden = [301, 301]\nactivation = \"gelu\"\ndropout = 0.2\nnorm = \"layer\"\n\
             [optimizer]\nkind = \"{optimizer}\"\n[train]\nsteps = 4\nbatch_size = 401\n[log]\nevery_steps = 1\n"
        );
        let one = train(1, &config, &["--threads", "1"]);
        for threads in ["2", "3"] {
            let run = train(1, &config, &["--threads", threads]);
            let (gap, place) = largest_gap(&run.weights(), &one.weights());
            assert!(
                same_bits(&run.weights(), &one.weights()),
                "{optimizer}, {threads} threads: {place}: {gap:e} apart"
            );
            assert_eq!(run.numbers("step", "loss"), one.numbers("step", "loss"));
            assert_eq!(run.numbers("step", "grad_norm"), one.numbers("step", "grad_norm"));
        }
    }
}
