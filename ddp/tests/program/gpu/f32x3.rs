//! Training with split factors on virtual GPUs, where products in f32 are slow: near f32, with a memory that `describe` counts.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::program::{counts, on_gpus};
use crate::common::{Weights, largest_gap, read_weights, same_bits, temp_dir};
use crate::virtual_gpu::under_virtual_gpus;

const RUN: &str = "train --device cuda --quiet --set train.steps=12 --set checkpoint.every_epochs=0 --set model.hidden=[48,32] \
                   --set train.global_batch_size=96 --set model.activation=gelu_tanh --set data.eval=none";
/// Products in f32 take longer than the kernels that split factors.
const SLOW: (&str, &str) = ("VGPU_LT_SLOW", "F32=900");

struct Run {
    weights: Weights,
    counts: BTreeMap<String, f64>,
}

impl Run {
    fn n_splits(&self) -> f64 {
        let of = |name: &str| self.counts.get(name).copied().unwrap_or_default();
        of("kernel:split_f32") + of("kernel:split_packed_f32")
    }
}

/// A run on so many GPUs, with all checks.
fn train(n: usize, out: &Path, line: &str) -> Option<Run> {
    let counted = out.with_extension("counts");
    std::fs::create_dir(&counted).unwrap();
    let line = format!("{RUN} --out {} {line}", out.display());
    let args: Vec<&str> = line.split_whitespace().collect();
    let env = [("VGPU_CHECK", "1"), SLOW, ("VGPU_COUNTS", counted.to_str().unwrap())];
    on_gpus(n, n, &args, &env)?.ok();
    Some(Run { weights: read_weights(&out.join("model.safetensors")), counts: counts(&counted) })
}

#[test]
fn a_run_is_near_one_in_f32() {
    let folder = temp_dir();
    for n in [1, 2] {
        let run = |name: &str, line: &str| train(n, &folder.path().join(format!("{name}-{n}")), line);
        let Some(single) = run("f32", "--set train.precision=f32") else { return };
        let split = run("split", "--set train.precision=f32x3").unwrap();
        let rough = run("tf32", "--set train.precision=tf32").unwrap();
        assert_eq!((single.n_splits(), rough.n_splits()), (0.0, 0.0));
        // Three layers, forward and backward, of which the first has no gradient of its input; two factors each, in every step.
        assert!(split.n_splits() >= (12 * n * (3 + 3 + 2) * 2) as f64, "{:?}", split.counts);
        let gap = |run: &Run| largest_gap(&run.weights, &single.weights).0;
        assert!(gap(&split) < 2e-6, "{n}: {:e}", gap(&split));
        assert!(gap(&rough) > 20.0 * gap(&split), "{n}: {:e} and {:e}", gap(&rough), gap(&split));
        let eager = run("eager", "--set train.precision=f32x3 --cuda-graph off").unwrap();
        assert!(same_bits(&eager.weights, &split.weights), "graph and eager");
        // A fixed rule leaves products this small alone.
        let fixed = run("fixed", "--set train.precision=f32x3 --set train.deterministic=true").unwrap();
        assert_eq!(fixed.n_splits(), 0.0);
    }
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_did_not_stop() {
    let folder = temp_dir();
    let (whole, halves) = (folder.path().join("whole"), folder.path().join("halves"));
    let line = "--set train.precision=f32x3 --set checkpoint.every_steps=6";
    let Some(want) = train(1, &whole, line) else { return };
    train(1, &halves, &format!("{line} --set train.steps=6")).unwrap();
    let counted = folder.path().join("resumed");
    std::fs::create_dir(&counted).unwrap();
    let resumed = [
        "train",
        "--quiet",
        "--device",
        "cuda",
        "--resume",
        halves.to_str().unwrap(),
        "--set",
        "train.steps=12",
    ];
    under_virtual_gpus(1, &resumed, &[("VGPU_COUNTS", counted.to_str().unwrap())]).unwrap().ok();
    let got = Run { weights: read_weights(&halves.join("model.safetensors")), counts: counts(&counted) };
    // Nothing is slow any more, but the checkpoint knows what was chosen.
    assert!(got.n_splits() > 0.0 && same_bits(&got.weights, &want.weights));
}

/// Both before a run and in it, on a GPU and on the CPU.
#[test]
fn the_scratch_of_split_factors_is_counted() {
    let workspace = |precision: &str, device: &str| {
        let set = format!("train.precision={precision}");
        let line = ["describe", "--json", "--device", device, "--set", "model.hidden=[48,32]", "--set", &set];
        let outcome = under_virtual_gpus(1, &line, &[])?;
        let report: Value = serde_json::from_str(outcome.ok()).unwrap();
        let kinds = report["memory"][0]["bytes"].as_array().unwrap();
        let bytes = kinds.iter().find(|kind| kind["what"] == "workspace").map(|kind| kind["bytes"].as_u64());
        Some(bytes.flatten().unwrap_or_else(|| panic!("{report:#}")))
    };
    let Some(whole) = workspace("f32", "cuda") else { return };
    let split = workspace("f32x3", "cuda").unwrap();
    // The digits: 64 features, 32 rows or more in a pass, three numbers for each of two factors.
    assert!(split >= whole + 4 * 3 * (32 * 64 + 64 * 48), "{whole} and {split} bytes");
    assert_eq!(workspace("f32x3", "cpu"), workspace("f32", "cpu"));
}
