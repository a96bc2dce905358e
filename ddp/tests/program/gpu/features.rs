//! Features of virtual GPUs that are turned off or refused by the driver: training reaches the same result without them.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use super::program::{counts, on_gpus};
use crate::common::{Outcome, Weights, largest_gap, read_weights, same_bits, temp_dir};
use crate::virtual_gpu::under_virtual_gpus;

const RUN: &str = "train --device cuda --progress plain --set train.steps=12 --set checkpoint.every_epochs=0 \
                   --set model.hidden=[48,32] --set train.global_batch_size=96 --set comm.bucket_mib=0.004 \
                   --set train.eval_every_steps=5";

struct Run {
    outcome: Outcome,
    weights: Weights,
    counts: BTreeMap<String, f64>,
}

/// A run on two GPUs, with all checks.
fn train(line: &str, fault: &str) -> Option<Run> {
    let folder = temp_dir();
    let (out, counted) = (folder.path().join("out"), folder.path().join("counts"));
    std::fs::create_dir(&counted).unwrap();
    let line = format!("{RUN} --out {} {line}", out.display());
    let args: Vec<&str> = line.split_whitespace().collect();
    let env = [("VGPU_CHECK", "1"), ("VGPU_FAIL", fault), ("VGPU_COUNTS", counted.to_str().unwrap())];
    let outcome = on_gpus(2, 2, &args, &env)?;
    outcome.ok();
    let weights = read_weights(&Path::new(&out).join("model.safetensors"));
    Some(Run { outcome, weights, counts: counts(&counted) })
}

/// Calls of the driver that a feature makes, and nothing else.
fn calls_of(feature: &str) -> &'static [&'static str] {
    match feature {
        "timed-matmuls" => &["matmul_algorithm:1"],
        "memory-pool" => &["cuMemAllocFromPoolAsync"],
        "mapped-outcome" => &["cuMemHostGetDevicePointer_v2"],
        "pinned-memory" => &["bytes:htod_pinned", "bytes:dtoh_pinned"],
        "cuda-graph" => &["cuGraphLaunch"],
        "registered-buffers" => &["ncclCommRegister"],
        "step-times" => &["cuEventRecordWithFlags"],
        "dependent-launches" => &["cuLaunchKernelEx", "dependent_launches"],
        _ => &[],
    }
}

const LINE: &str = "GPU features that are off (docs/gpus.md): ";

#[test]
fn each_feature_can_be_off_and_the_result_is_the_same() {
    let Some(all) = train("", "") else { return };
    assert!(!all.outcome.stderr.contains(LINE), "{}", all.outcome.stderr);
    let named = [
        "fused-epilogues",
        "timed-matmuls",
        "stream-priorities",
        "memory-pool",
        "mapped-outcome",
        "pinned-memory",
        "step-times",
        "dependent-launches",
    ];
    let named = named.map(|name| (name, format!("--set train.gpu_without=[\"{name}\"]")));
    let others = [
        ("cuda-graph", "--cuda-graph off"),
        ("registered-buffers", "--set comm.register_buffers=off"),
        ("overlap", "--set comm.overlap=false"),
        ("cpu-binding", "--bind none"),
    ];
    let others = others.map(|(name, line)| (name, line.to_owned()));
    for (name, line) in named.into_iter().chain(others) {
        let without = train(&line, "").unwrap();
        let said = format!("{LINE}{name}\n");
        assert!(without.outcome.stderr.contains(&said), "{name}: {}", without.outcome.stderr);
        let (gap, place) = largest_gap(&without.weights, &all.weights);
        // A fused sum of the rows has another order: a few units in the last place in each step.
        let allowed = if name == "fused-epilogues" { 1e-6 } else { 0.0 };
        assert!(gap <= allowed, "{name}: {place}: {gap:e} apart");
        for call in calls_of(name) {
            assert_eq!(without.counts.get(*call), None, "{name}: {call}");
        }
    }
    let safe = train("--safe -v", "").unwrap();
    let off = "fused-epilogues, timed-matmuls, cuda-graph, registered-buffers, overlap, stream-priorities, memory-pool, \
               mapped-outcome, pinned-memory, step-times, dependent-launches, cpu-binding\n";
    assert!(safe.outcome.stderr.contains(&format!("{LINE}{off}")), "{}", safe.outcome.stderr);
    let both = train("-v --bind none --set comm.overlap=false", "").unwrap().outcome.stderr;
    let used = "debug: GPU features in use: fused-epilogues, timed-matmuls, cuda-graph, registered-buffers, \
                stream-priorities, memory-pool, mapped-outcome, pinned-memory, step-times, dependent-launches\n";
    assert!(both.contains(&format!("{LINE}overlap, cpu-binding\n")) && both.contains(used), "{both}");
    let (gap, place) = largest_gap(&safe.weights, &all.weights);
    assert!(gap <= 1e-6, "{place}: {gap:e} apart");
    for name in [
        "timed-matmuls",
        "memory-pool",
        "mapped-outcome",
        "cuda-graph",
        "registered-buffers",
        "dependent-launches",
    ] {
        for call in calls_of(name) {
            assert_eq!(safe.counts.get(*call), None, "{name}: {call}");
            assert!(all.counts.get(*call).is_some_and(|n| *n > 0.0), "{name}: {call}");
        }
    }
}

#[test]
fn what_the_driver_refuses_to_one_rank_all_do_without() {
    let Some(all) = train("", "") else { return };
    for (fault, names) in [
        ("pool", &["memory-pool"] as &[_]),
        ("priority", &["stream-priorities"]),
        ("map", &["mapped-outcome"]),
        ("pin", &["mapped-outcome", "pinned-memory"]),
        ("event-node", &["step-times"]),
        ("dependent", &["dependent-launches"]),
    ] {
        let refused = train("", &format!("refuse:{fault},rank=1")).unwrap();
        let stderr = &refused.outcome.stderr;
        for name in names {
            let warning = format!(
                "warning: the driver refuses {name} (docs/gpus.md), which this run does without: rank 1: "
            );
            assert_eq!(stderr.matches(&warning).count(), 1, "{fault}: {stderr}");
        }
        assert_eq!(stderr.matches("the driver refuses").count(), names.len(), "{fault}: {stderr}");
        assert!(stderr.contains(&format!("{LINE}{}\n", names.join(", "))), "{fault}: {stderr}");
        assert!(same_bits(&refused.weights, &all.weights), "{fault}");
        // A feature that is off is not tried.
        let without = format!("--set train.gpu_without={}", format!("{names:?}").replace(' ', ""));
        let quiet = train(&without, &format!("refuse:{fault},rank=1")).unwrap();
        assert!(!quiet.outcome.stderr.contains("refuses"), "{fault}: {}", quiet.outcome.stderr);
    }
}

/// `eval`, `predict` and `bench step` do without all features by `--safe`; the first two, and evaluations of the model elsewhere, without
/// those that its run did without.
#[test]
fn other_commands_can_do_without_features_too() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let train = |name: &str, line: &str| {
        let line = format!("{RUN} --out {} --eval-fraction 0.2 {line}", path(name));
        Some(under_virtual_gpus(1, &line.split_whitespace().collect::<Vec<_>>(), &[])?.ok().to_owned())
    };
    let Some(_) = train("all", "") else { return };
    train("without", "--set train.gpu_without=[\"memory-pool\"]").unwrap();
    // What is printed or written, and the counts.
    let run = |line: &str, file: Option<&str>| {
        let counted = temp_dir();
        let env = [("VGPU_COUNTS", counted.path().to_str().unwrap()), ("DDP_TRAIN_BENCH_VIRTUAL", "1")];
        let line = format!("{line} --device cuda");
        let outcome = under_virtual_gpus(1, &line.split_whitespace().collect::<Vec<_>>(), &env).unwrap();
        let text = outcome.ok().to_owned();
        (file.map_or(text, |file| std::fs::read_to_string(file).unwrap()), counts(counted.path()))
    };
    let used = |counts: &BTreeMap<String, f64>, name: &str| {
        calls_of(name).iter().any(|call| counts.get(*call).is_some_and(|n| *n > 0.0))
    };
    let (eval, predict) = (format!("eval --checkpoint {}", path("all")), |model: &str, out: &str| {
        format!("predict --checkpoint {} --data builtin:digits --proba --out {out}", path(model))
    });
    let (metrics, with) = run(&eval, None);
    let (safe_metrics, safe) = run(&format!("{eval} --safe"), None);
    assert_eq!(metrics, safe_metrics);
    assert!(used(&with, "memory-pool") && used(&with, "pinned-memory"), "{with:?}");
    assert!(!used(&safe, "memory-pool") && !used(&safe, "pinned-memory"), "{safe:?}");

    let outs = ["plain.csv", "safe.csv", "without.csv"].map(path);
    let (plain, with) = run(&predict("all", &outs[0]), Some(&outs[0]));
    let (same, safe) = run(&format!("{} --safe", predict("all", &outs[1])), Some(&outs[1]));
    assert_eq!(plain, same);
    assert!(used(&with, "memory-pool") && !used(&safe, "memory-pool"), "{with:?}, {safe:?}");
    let (_, without) = run(&predict("without", &outs[2]), Some(&outs[2]));
    assert!(!used(&without, "memory-pool") && used(&without, "pinned-memory"), "{without:?}");

    let bench = "bench step --json --dims 16,32,8 --batch 8 --steps 3";
    let ((text, with), (safe_text, safe)) = (run(bench, None), run(&format!("{bench} --safe"), None));
    assert!(
        text.contains("\"cuda_graph\":true") && safe_text.contains("\"cuda_graph\":false"),
        "{safe_text}"
    );
    for name in ["memory-pool", "mapped-outcome", "timed-matmuls"] {
        assert!(used(&with, name) && !used(&safe, name), "{name}: {with:?}, {safe:?}");
    }
}
