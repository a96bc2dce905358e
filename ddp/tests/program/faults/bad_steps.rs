//! Steps that are not finite, and loss spikes: the run ends with a report of rank, layer and rows, skips the update, or returns
//! to its checkpoint; all ranks do the same.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::common::{Outcome, ranks, read_weights, run, run_line, same_bits, temp_dir};
use crate::virtual_gpu::command_under_virtual_gpus;

const N_ROWS: usize = 400;
/// Index of the row with the bad value.
const BAD_ROW: usize = 137;
/// Steps that contain the bad row, in the order of seed 0; epochs have 25 steps.
const BAD_STEPS: [u64; 3] = [25, 30, 75];

/// Writes rows `a,b,y`; the bad row has the value `bad` in `a` and `b`.
fn write_rows(folder: &Path, bad: f64) {
    let mut text = "a,b,y\n".to_owned();
    for row in 0..N_ROWS {
        let number = |k: usize| ((row * k) % 101) as f64 / 50.0 - 1.0;
        let (a, b) = if row == BAD_ROW { (bad, bad) } else { (number(37), number(59)) };
        writeln!(text, "{a:e},{b:e},{}", number(37) / 2.0 - number(59)).unwrap();
    }
    std::fs::write(folder.join("rows.csv"), text).unwrap();
}

const RUN: &str = "train --threads 1 --progress none --set data.train=\"rows.csv\" --set data.target=\"y\" --set data.task=\"regression\" \
    --set data.normalize=\"none\" --set data.normalize_target=\"none\" --set train.global_batch_size=16 --set train.epochs=3 \
    --set model.hidden=[8] --set optimizer.lr=0.01 --set checkpoint.async=false \
    --set checkpoint.every_steps=8";

/// Runs the program in `folder` with the words of [`RUN`] and of `line`.
fn train(folder: &Path, n_ranks: usize, line: &str) -> Outcome {
    run(command(folder, n_ranks, line))
}

fn command(folder: &Path, n_ranks: usize, line: &str) -> std::process::Command {
    let args: Vec<&str> = RUN.split_whitespace().chain(line.split_whitespace()).collect();
    let mut command = ranks(n_ranks, &args);
    command.current_dir(folder);
    command
}

#[track_caller]
fn train_ok(folder: &Path, n_ranks: usize, line: &str) -> Outcome {
    let outcome = train(folder, n_ranks, line);
    assert!(outcome.status.success(), "{line}: {}", outcome.stderr);
    outcome
}

/// The steps that the newest checkpoint in `out` lists as skipped.
fn left_out(out: &Path) -> Vec<(u64, String)> {
    let mut steps: Vec<_> = std::fs::read_dir(out.join("checkpoints"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_prefix("step-")?.parse::<u64>().ok())
        .collect();
    steps.sort_unstable();
    let manifest = out.join(format!("checkpoints/step-{}/manifest.json", steps.last().unwrap()));
    let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    let of_run = manifest["run"]["left_out"].as_array().cloned().unwrap_or_default();
    of_run.iter().map(|of| (of["step"].as_u64().unwrap(), of["why"].as_str().unwrap().to_owned())).collect()
}

#[track_caller]
fn assert_same_weights(folder: &Path, a: &str, b: &str) {
    let weights = |out: &str| read_weights(&folder.join(out).join("model.safetensors"));
    assert!(same_bits(&weights(a), &weights(b)), "{a} and {b} differ");
}

#[test]
fn the_report_names_rank_layer_and_row_and_the_command_prints_it() {
    let folder = temp_dir();
    let folder = folder.path();
    write_rows(folder, 3e38);
    let (layer, loss) = ("the outputs of `layers.0` are", "the loss of finite outputs is");
    for (n_ranks, line, step, rank, place) in [
        (1, "--out one", 25, 0, layer),
        (2, "--out two --set train.grad_accum_steps=2", 25, 0, layer),
        (4, "--out four --set comm.zero=2 --set train.seed=3", 21, 3, loss),
    ] {
        let outcome = train(folder, n_ranks, line);
        let text = &outcome.stderr;
        assert_eq!(outcome.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("at step {step}; weights were not updated\n")), "{text}");
        let finding = format!("\nrank {rank}: {place} not finite for row {BAD_ROW}\n");
        assert!(text.contains(&finding), "{line}: {text}");
        assert_eq!(text.matches("\nrank ").count(), 1, "no other rank has found anything: {text}");
        assert!(
            text.contains("`ddp-train data show rows.csv --rows 137` prints these rows\nhint: "),
            "{text}"
        );
    }
    let shown = run_line(folder, "data show rows.csv --rows 137");
    assert_eq!(shown.stdout.split_whitespace().take(7).collect::<Vec<_>>()[..4], ["row", "a", "b", "y"]);
    assert!(shown.stdout.lines().nth(1).unwrap().starts_with("137  3e38  3e38  "), "{}", shown.stdout);
    // Row indices are those of the file, although some rows are used for evaluation.
    let split = train(folder, 1, "--out split --set data.eval_fraction=0.3 --set train.seed=1");
    let evaluated = train(folder, 1, "--out split2 --set data.eval_fraction=0.3 --set train.seed=3");
    assert!(
        [split, evaluated].iter().any(|outcome| outcome.stderr.contains("not finite for row 137\n")),
        "one of two seeds trains on the row"
    );
}

#[test]
fn a_gradient_that_is_not_finite_is_reported_though_the_loss_is() {
    let folder = temp_dir();
    let folder = folder.path();
    let mut text = (0..64).fold(String::new(), |names, i| format!("{names}x{i},")) + "w,label\n";
    for row in 0..40 {
        let cells = (0..64)
            .map(|i| if row == 29 && i == 5 { "1e37,".to_owned() } else { format!("{}e-3,", row * i % 7) });
        // The model predicts the other class for this row.
        let (weight, label) = if row == 29 { (100, 0) } else { (1, row % 2) };
        writeln!(text, "{}{weight},{label}", cells.collect::<String>()).unwrap();
    }
    std::fs::write(folder.join("heavy.csv"), text).unwrap();
    let line = "train --threads 1 --out out --set data.train=\"heavy.csv\" --set data.weight=\"w\" --set data.task=\"classification\" \
        --set data.normalize=\"none\" --set train.batch_size=1 --set model.hidden=[] --set log.every_steps=1 --set train.epochs=1";
    let stop = run_line(folder, &format!("{line} --set train.clip_grad_norm=1.0"));
    assert!(stop.stderr.contains("gradient is not finite at step "), "{}", stop.stderr);
    assert!(
        stop.stderr.contains("\nrank 0: the gradient of `layers.0.weight` is not finite for row 29\n"),
        "{}",
        stop.stderr
    );
    let skip = run_line(
        folder,
        &format!("{line} --overwrite --set train.on_nonfinite=\"skip\" --set log.every_steps=50"),
    );
    assert!(skip.status.success(), "{}", skip.stderr);
    assert!(skip.stderr.contains("warning: gradient is not finite at step "), "{}", skip.stderr);
}

#[test]
fn skipped_steps_are_counted_and_survive_a_resume() {
    let folder = temp_dir();
    let folder = folder.path();
    write_rows(folder, 3e38);
    let want: Vec<_> = BAD_STEPS.iter().map(|step| (*step, "loss".to_owned())).collect();
    for (n_ranks, more) in
        [(1, ""), (2, "--set comm.zero=1"), (2, "--set train.grad_accum_steps=2 --set comm.zero=2")]
    {
        let line = format!("--overwrite --set train.on_nonfinite=\"skip\" {more}");
        let whole = train_ok(folder, n_ranks, &format!("--out whole {line}"));
        for step in BAD_STEPS {
            let warning = format!("at step {step}; its update is left out\n");
            assert_eq!(whole.stderr.matches(&warning).count(), 1, "{}", whole.stderr);
        }
        assert!(
            whole.stderr.contains("trained without the updates of steps 25, 30, 75\n"),
            "{}",
            whole.stderr
        );
        assert_eq!(left_out(&folder.join("whole")), want);
        let stopped = train(folder, n_ranks, &format!("--out parts {line} --set train.stop_after_steps=28"));
        assert_eq!(stopped.status.code(), Some(85), "{}", stopped.stderr);
        assert_eq!(left_out(&folder.join("parts")), want[..1]);
        train_ok(
            folder,
            n_ranks,
            &format!("--out parts --resume auto --set train.on_nonfinite=\"skip\" {more}"),
        );
        assert_eq!(left_out(&folder.join("parts")), want);
        assert_same_weights(folder, "parts", "whole");
    }
}

#[test]
fn a_rollback_trains_to_the_bits_of_a_skip() {
    let folder = temp_dir();
    let folder = folder.path();
    write_rows(folder, 3e38);
    for n_ranks in [1, 2] {
        let saved = "--overwrite --set checkpoint.async=true";
        train_ok(folder, n_ranks, "--out skip --overwrite --set train.on_nonfinite=\"skip\"");
        let line = format!("--out back {saved} --set train.on_nonfinite=\"rollback\"");
        let outcome = train_ok(folder, n_ranks, &line);
        for (step, checkpoint) in BAD_STEPS.into_iter().zip([24, 24, 72]) {
            let text = format!(
                "at step {step}; the run returns to its checkpoint of step {checkpoint} and leaves this update out\n"
            );
            assert_eq!(outcome.stderr.matches(&text).count(), 1, "{text}: {}", outcome.stderr);
        }
        assert_same_weights(folder, "back", "skip");
        assert_eq!(left_out(&folder.join("back")).len(), 3);
    }
    let outcome =
        train(folder, 1, "--out none --set train.on_nonfinite=\"rollback\" --set checkpoint.every_steps=0");
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("error: the run has no checkpoint to return to: loss is "),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("not finite for row 137\n"), "{}", outcome.stderr);
}

#[test]
fn a_spike_is_withheld_or_ends_the_run() {
    let folder = temp_dir();
    let folder = folder.path();
    write_rows(folder, 1e4);
    let window = "--overwrite --set train.spike_window=10";
    for n_ranks in [1, 2] {
        let skip = train_ok(folder, n_ranks, &format!("--out skip {window} --set train.on_spike=\"skip\""));
        assert_eq!(
            left_out(&folder.join("skip")),
            BAD_STEPS.map(|step| (step, "spike".to_owned())),
            "{}",
            skip.stderr
        );
        let line =
            format!("--out parts {window} --set train.on_spike=\"skip\" --set train.stop_after_steps=29");
        assert_eq!(train(folder, n_ranks, &line).status.code(), Some(85));
        let line = "--out parts --resume auto --set train.spike_window=10 --set train.on_spike=\"skip\"";
        train_ok(folder, n_ranks, line);
        assert_same_weights(folder, "parts", "skip");
        let line =
            format!("--out back {window} --set train.on_spike=\"rollback\" --set checkpoint.every_steps=4");
        train_ok(folder, n_ranks, &line);
        assert_same_weights(folder, "back", "skip");
        let stop = train(folder, n_ranks, &format!("--out stop {window} --set train.on_spike=\"stop\""));
        assert_eq!(stop.status.code(), Some(1), "{}", stop.stderr);
        assert!(stop.stderr.contains(" at step 25, above "), "{}", stop.stderr);
    }
    // Without the check the step trains, because its loss is finite.
    let off = train_ok(folder, 1, "--out off");
    assert!(!off.stderr.contains("at step 25"), "{}", off.stderr);
}

#[test]
fn virtual_gpus_decide_as_the_cpu() {
    let folder = temp_dir();
    let folder = folder.path();
    write_rows(folder, 3e38);
    let gpu = |n: usize, line: &str| {
        command_under_virtual_gpus(n, &command(folder, n, &format!("--device cuda --overwrite {line}")))
    };
    // tests/nightly sets the variable.
    let more_ranks = std::env::var_os("ALL_COMBINATIONS").map(|_| (2, "0"));
    for (n, zero) in [(1, "0"), (2, "2")].into_iter().chain(more_ranks) {
        let more = format!("--set comm.zero={zero} --set train.grad_accum_steps=2");
        let Some(stop) = gpu(n, &format!("--out stop {more}")) else { return };
        assert_eq!(stop.status.code(), Some(1), "{}", stop.stderr);
        assert!(stop.stderr.contains("at step 25; weights were not updated\n"), "{}", stop.stderr);
        assert!(
            stop.stderr.contains("the outputs of `layers.0` are not finite for row 137\n"),
            "{}",
            stop.stderr
        );
        let graph = "--cuda-graph on";
        gpu(n, &format!("--out skip {more} {graph} --set train.on_nonfinite=\"skip\"")).unwrap().ok();
        assert_eq!(left_out(&folder.join("skip")).iter().map(|of| of.0).collect::<Vec<_>>(), BAD_STEPS);
        let saved = "--set train.on_nonfinite=\"rollback\"";
        gpu(n, &format!("--out back {more} {graph} {saved}")).unwrap().ok();
        assert_same_weights(folder, "back", "skip");
        let parts =
            format!("--out parts {more} --set train.on_nonfinite=\"skip\" --set train.stop_after_steps=26");
        assert_eq!(gpu(n, &parts).unwrap().status.code(), Some(85));
        let rest =
            format!("--device cuda --out parts --resume auto {more} --set train.on_nonfinite=\"skip\"");
        command_under_virtual_gpus(n, &command(folder, n, &rest)).unwrap().ok();
        assert_same_weights(folder, "parts", "skip");
    }
}

#[test]
fn virtual_gpus_find_the_spikes_of_the_cpu() {
    let folder = temp_dir();
    let folder = folder.path();
    write_rows(folder, 1e4);
    let spikes = "--overwrite --set train.spike_window=10 --set train.on_spike=\"skip\"";
    for n in [1, 2] {
        let gpu = command(folder, n, &format!("--device cuda --out gpu {spikes}"));
        let Some(outcome) = command_under_virtual_gpus(n, &gpu) else { return };
        outcome.ok();
        assert_eq!(left_out(&folder.join("gpu")), BAD_STEPS.map(|step| (step, "spike".to_owned())));
        // A checkpoint reads all outcomes at its step, which changes no limit.
        let gpu =
            command(folder, n, &format!("--device cuda --out saved {spikes} --set checkpoint.every_steps=1"));
        command_under_virtual_gpus(n, &gpu).unwrap().ok();
        assert_same_weights(folder, "saved", "gpu");
    }
}
