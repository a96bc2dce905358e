//! Work next to collectives: matmuls of backward, which are made for the multiprocessors that these leave free, and the update of
//! buckets that are reduced already.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::program::{counts, on_gpus};
use crate::common::{Weights, read_weights, same_bits, temp_dir};

/// Layers with weights; each has a matmul in forward, and in backward two or, at the first one, one.
const N_LAYERS: usize = 3;
const N_STEPS: usize = 4;
const RUN: &str = "train -q --device cuda --set data.eval=none --set checkpoint.every_epochs=0 --set model.hidden=[32,16] \
                   --set train.global_batch_size=96 --set train.gpu_without=[\"timed-matmuls\"] --set train.steps=4";

/// Matmuls that are made for `n_free` of 132 multiprocessors, for others, and all.
fn matmuls(n_gpus: usize, n_free: usize, line: &str, env: &[(&str, &str)]) -> Option<[f64; 3]> {
    let folder = temp_dir();
    let counted = folder.path().join("counts");
    std::fs::create_dir(&counted).unwrap();
    let line = format!("{RUN} --out {} {line}", folder.path().join("out").display());
    let args: Vec<&str> = line.split_whitespace().collect();
    let env: Vec<_> = env.iter().copied().chain([("VGPU_COUNTS", counted.to_str().unwrap())]).collect();
    on_gpus(n_gpus, n_gpus, &args, &env)?.ok();
    let counts = counts(&counted);
    // NCCL is limited where matmuls make use of it, and free elsewhere.
    let is_limited = counts.keys().any(|name| name.starts_with("nccl_max_ctas:"));
    assert_eq!(is_limited, counts.keys().any(|name| name.starts_with("matmul_on:")), "{line}: {counts:?}");
    let sum = |begins: &str| counts.iter().filter(|(name, _)| name.starts_with(begins)).map(|(_, n)| n).sum();
    let meant = counts.get(&format!("matmul_on:{n_free}")).copied().unwrap_or(0.0);
    let on: f64 = sum("matmul_on:");
    Some([meant, on - meant, sum("matmul_algorithm:")])
}

#[test]
fn matmuls_of_backward_leave_multiprocessors_to_collectives() {
    let of = |n_gpus: usize, per_step: usize| (n_gpus * N_STEPS * per_step) as f64;
    let (backward, all) = (2 * N_LAYERS - 1, 3 * N_LAYERS - 1);
    let off = "--set comm.register_buffers=off";
    let Some(two) = matmuls(2, 116, "", &[]) else { return };
    assert_eq!(two, [of(2, backward), 0.0, of(2, all)]);
    // Registered buffers need fewer blocks inside a switch, between more than two GPUs.
    assert_eq!(matmuls(4, 122, "", &[]).unwrap(), [of(4, backward), 0.0, of(4, all)]);
    assert_eq!(matmuls(4, 116, off, &[]).unwrap(), [of(4, backward), 0.0, of(4, all)]);
    assert_eq!(matmuls(2, 124, "", &[("NCCL_MAX_CTAS", "8")]).unwrap(), [of(2, backward), 0.0, of(2, all)]);
    // Only the last micro-batch of a step is next to collectives.
    let of_two = matmuls(2, 116, "--set train.grad_accum_steps=2", &[]).unwrap();
    assert_eq!(of_two, [of(2, backward), 0.0, of(2, 2 * all)]);
    for line in ["--set comm.overlap=false", "--set train.deterministic=true", "--safe"] {
        let [meant, others, n] = matmuls(2, 116, line, &[]).unwrap();
        assert!((meant, others) == (0.0, 0.0) && n > 0.0, "{line}: {meant}, {others}, {n}");
    }
    assert_eq!(matmuls(1, 116, "", &[]).unwrap()[..2], [0.0, 0.0]);
    assert_eq!(matmuls(2, 116, "", &[("VGPU_ARCH", "8.0")]).unwrap()[..2], [0.0, 0.0], "no such kernels");
}

/// Final weights and counts of a run on two GPUs whose layers are a bucket each, with all checks of the order of streams.
fn trained(line: &str) -> Option<(Weights, BTreeMap<String, f64>)> {
    let folder = temp_dir();
    let (out, counted) = (folder.path().join("out"), folder.path().join("counts"));
    std::fs::create_dir(&counted).unwrap();
    let line = format!("{RUN} --out {} --set comm.bucket_mib=0.001 {line}", out.display());
    let args: Vec<&str> = line.split_whitespace().collect();
    let env = [("VGPU_CHECK", "1"), ("VGPU_FUZZ", "1"), ("VGPU_COUNTS", counted.to_str().unwrap())];
    on_gpus(2, 2, &args, &env)?.ok();
    Some((read_weights(&out.join("model.safetensors")), counts(&counted)))
}

#[test]
fn weights_of_a_bucket_are_updated_while_others_are_reduced() {
    let updates = |counts: &BTreeMap<String, f64>| {
        let of_kernels = counts.iter().filter(|(name, _)| name.starts_with("kernel:adam_"));
        of_kernels.map(|(_, n)| n).sum::<f64>() / (2 * N_STEPS) as f64
    };
    for (line, per_step) in [
        ("", N_LAYERS),
        ("--cuda-graph off", N_LAYERS),
        ("--set train.precision=bf16 --set comm.dtype=bf16", N_LAYERS),
        ("--set train.grad_accum_steps=2", N_LAYERS),
        // The update needs the norm of all gradients.
        ("--set train.clip_grad_norm=0.1", 1),
    ] {
        let Some((weights, counts)) = trained(line) else { return };
        assert_eq!(updates(&counts), per_step as f64, "{line}");
        let (want, at_once) = trained(&format!("{line} --set comm.overlap=false")).unwrap();
        assert_eq!(updates(&at_once), 1.0, "{line}");
        assert!(same_bits(&weights, &want), "{line}");
    }
}
