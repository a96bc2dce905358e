//! Features of virtual GPUs that are turned off or refused by the driver: training reaches the same result without them.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "mpi")]

use std::collections::BTreeMap;
use std::path::Path;

use super::program::{counts, on_gpus};
use crate::common::{Outcome, Weights, largest_gap, read_weights, same_bits, temp_dir};

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
               mapped-outcome, pinned-memory, cpu-binding\n";
    assert!(safe.outcome.stderr.contains(&format!("{LINE}{off}")), "{}", safe.outcome.stderr);
    let both = train("-v --bind none --set comm.overlap=false", "").unwrap().outcome.stderr;
    let used = "debug: GPU features in use: fused-epilogues, timed-matmuls, cuda-graph, registered-buffers, \
                stream-priorities, memory-pool, mapped-outcome, pinned-memory\n";
    assert!(both.contains(&format!("{LINE}overlap, cpu-binding\n")) && both.contains(used), "{both}");
    let (gap, place) = largest_gap(&safe.weights, &all.weights);
    assert!(gap <= 1e-6, "{place}: {gap:e} apart");
    for name in ["timed-matmuls", "memory-pool", "mapped-outcome", "cuda-graph", "registered-buffers"] {
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
    ] {
        let refused = train("", &format!("refuse:{fault},rank=1")).unwrap();
        let stderr = &refused.outcome.stderr;
        for name in names {
            let warning = format!(
                "warning: the driver refuses {name} (docs/gpus.md), and training does without: rank 1: "
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
