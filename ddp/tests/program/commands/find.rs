//! `find-lr` and `find-batch-size`: settings that the run itself decides, and nothing is written.

use std::path::Path;

use serde_json::Value;

use crate::common::{assert_all_close, ranks, refused, run, run_line, run_line_ok, run_ok, temp_dir};
use crate::virtual_gpu::under_virtual_gpus;

/// Runs the command on so many ranks in `folder` and returns its JSON, after checking that it left nothing there.
#[track_caller]
fn found(folder: &Path, n_ranks: usize, line: &str) -> Value {
    let args: Vec<&str> = line.split_whitespace().collect();
    let mut command = ranks(n_ranks, &args);
    command.current_dir(folder);
    let outcome = run_ok(command);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "nothing is written");
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"))
}

fn losses(report: &Value) -> Vec<f64> {
    report["curve"].as_array().unwrap().iter().map(|point| point["loss"].as_f64().unwrap()).collect()
}

/// The digits train well with AdamW from 1e-3 to 1e-2: the suggestion lies within a factor of 5 of that.
#[test]
fn the_rate_of_the_digits_is_found_and_the_same_on_two_ranks() {
    let folder = temp_dir();
    let line = "find-lr --json --device cpu --threads 1 --global-batch-size 64";
    let one = found(folder.path(), 1, line);
    let suggested = one["suggested_lr"].as_f64().unwrap();
    assert!((2e-4..5e-2).contains(&suggested), "{suggested}");
    assert_eq!(one["diverged"], true);
    let losses_of_one = losses(&one);
    assert!(losses_of_one.len() > 40 && losses_of_one.len() < 91, "{}", losses_of_one.len());
    let command = one["command"].as_str().unwrap();
    let want = format!(
        "ddp-train train --set train.global_batch_size=64 --set optimizer.lr={suggested:.1e} --device cpu --threads 1"
    );
    assert_eq!(command, want);
    run_line_ok(folder.path(), &format!("{} --dry-run -q", command.strip_prefix("ddp-train ").unwrap()));

    let two = found(folder.path(), 2, line);
    // Sums in another order; the rounding grows where the loss diverges.
    let n = losses_of_one.len().min(losses(&two).len()) - 10;
    assert_all_close("losses", &losses(&two)[..n], &losses_of_one[..n], 1e-3);
    for key in ["steepest_lr", "tenth_of_minimum_lr"] {
        assert_all_close(key, &[two[key].as_f64().unwrap()], &[one[key].as_f64().unwrap()], 1e-6);
    }
    assert!(two["command"].as_str().unwrap().starts_with("mpirun -n 2 ddp-train train "));
}

#[test]
fn a_table_shows_both_suggestions_and_the_next_command() {
    let folder = temp_dir();
    let line = "find-lr --lr 5 --steps 60 --device cpu --threads 1 --set schedule.warmup_steps=50";
    let outcome = run_line_ok(folder.path(), line);
    for part in ["steepest\n", "minimum\n", "steepest descent: ", "minimum / 10: ", "\nsuggested: "] {
        assert!(outcome.stdout.contains(part), "no {part:?} in {}", outcome.stdout);
    }
    let next = outcome.stdout.lines().last().unwrap();
    assert!(
        next.starts_with("next: ddp-train train --set schedule.warmup_steps=50 --set optimizer.lr="),
        "{next}"
    );
    assert_eq!(next.matches("optimizer.lr").count(), 1, "it takes the place of --lr: {next}");
    let flags = "--comm-dtype bf16 --cuda-graph off --check off --bind none --threads 1";
    let next = run_line_ok(folder.path(), &format!("{} {flags}", line.replace("--threads 1", ""))).stdout;
    let kept = "--device cpu --bind none --cuda-graph off --check off --comm-dtype bf16 --threads 1";
    assert!(next.trim_end().ends_with(kept), "{next}");
    let muon = format!("{line} --set optimizer.kind=muon --set optimizer.adamw_lr=0.01 --json");
    let report: Value = serde_json::from_str(&run_line_ok(folder.path(), &muon).stdout).unwrap();
    let rate = |key: &str| {
        let (_, rest) = report["command"].as_str().unwrap().split_once(key).unwrap();
        rest.split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    // They keep the ratio in which they were tested.
    assert!((rate("optimizer.adamw_lr=") / rate("optimizer.lr=") - 0.01 / 5.0).abs() < 2e-4, "{report}");
    refused(folder.path(), "find-lr --out x", &["--out: this command makes no run", "hint: remove --out"]);
    refused(folder.path(), "find-batch-size --resume auto", &["--resume: this command makes no run"]);
    for flag in ["--allow-batchnorm-change", "--keep-schedule"] {
        refused(folder.path(), &format!("find-lr {flag}"), &[&format!("{flag}: this command makes no run")]);
    }
    refused(folder.path(), "find-lr --from 1 --to 0.1", &["expected a rate above that of --from"]);
    let high = run_line(folder.path(), "find-lr --from 5 --to 50 --device cpu --threads 1");
    assert_eq!(high.status.code(), Some(1), "{high:?}");
    assert!(high.stderr.contains("the loss fell at no learning rate from 5e0 to 5e1"), "{}", high.stderr);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn the_largest_batch_is_tried_and_the_same_on_two_ranks() {
    let folder = temp_dir();
    for (n_ranks, line, key, largest) in [
        // All 1438 rows fit.
        (1, "", "train.batch_size=", 1438),
        (2, "", "train.batch_size=", 719),
        (2, " --global-batch-size 64 --max 16", "train.global_batch_size=", 16),
        (1, " --max 8 --set model.layers=[{kind=\"batch_norm\"}]", "train.batch_size=", 8),
    ] {
        let line = format!("find-batch-size --json --device cpu --threads 1{line}");
        let report = found(folder.path(), n_ranks, &line);
        let batches = report["batches"].as_array().unwrap();
        assert_eq!(report["largest_batch_size"], largest, "{line}");
        assert_eq!(batches.last().unwrap()["batch_size"], largest, "{line}");
        assert_eq!(batches.last().unwrap()["global_rows"], largest * n_ranks as u64, "{line}");
        let best = batches.iter().map(|batch| batch["samples_per_s"].as_f64().unwrap()).fold(0.0, f64::max);
        let suggested =
            batches.iter().find(|batch| batch["batch_size"] == report["suggested_batch_size"]).unwrap();
        assert!(suggested["samples_per_s"].as_f64().unwrap() >= 0.9 * best, "{report}");
        let rows = suggested["batch_size"].as_u64().unwrap();
        let rows = if key.contains("global") { rows * n_ranks as u64 } else { rows };
        assert!(report["command"].as_str().unwrap().contains(&format!("--set {key}{rows}")), "{report}");
    }
    // The fastest batch is among the larger ones, whose few steps are too short for the schedule: an epoch of 8 rows has 180 steps.
    for schedule in [
        "--set schedule.kind=wsd --set schedule.warmup_steps=100 --set schedule.decay_steps=70",
        "--set optimizer.groups=[{match=\"*.bias\",schedule={kind=\"wsd\",warmup_steps=100,decay_steps=70}}]",
    ] {
        let line = format!("find-batch-size --device cpu --threads 1 --batch-size 8 --epochs 1 {schedule}");
        let shown = run_line_ok(folder.path(), &line).stdout;
        let why = "suggested: 8, the largest with steps enough for the schedule; another batch size";
        assert!(shown.contains(why), "{shown}");
        let next = shown.lines().last().unwrap().strip_prefix("next: ddp-train ").unwrap();
        run_line_ok(folder.path(), &format!("{} --dry-run -q", next.replace('\'', "")));
    }
    let args = ["find-batch-size", "--max", "2", "--device", "cpu", "--threads", "1"];
    let outcome = run(ranks(1, &args));
    assert!(outcome.stdout.contains("largest batch that fits: 2 rows per rank"), "{outcome:?}");
    assert!(outcome.stdout.contains("\nnext: ddp-train train --set train.batch_size="), "{outcome:?}");
}

#[test]
fn a_batch_fits_the_memory_of_the_gpu_and_is_smaller_where_there_is_less_than_planned() {
    let line = "find-batch-size --json --device cuda --check off --hidden 4096";
    let args: Vec<&str> = line.split_whitespace().collect();
    let largest = |args: &[&str], env: (&str, &str)| {
        let outcome = under_virtual_gpus(1, args, &[env])?;
        let report: Value = serde_json::from_str(outcome.ok()).unwrap();
        assert!(
            report["batches"].as_array().unwrap().last().unwrap()["memory_bytes"].as_u64()
                <= report["room_bytes"].as_u64()
        );
        report["largest_batch_size"].as_u64()
    };
    // Three steps of the driver's pool.
    let Some(small) = largest(&args, ("VGPU_MEMORY", "100663296")) else { return };
    assert!((256..1438).contains(&small), "{small} of 96 MiB");
    let args = [&args[..], &["--max", "16"]].concat();
    assert_eq!(largest(&args, ("VGPU_FAIL", "malloc:8")), Some(12), "three quarters of it");
}
