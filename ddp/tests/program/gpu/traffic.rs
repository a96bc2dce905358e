//! Bytes that a step moves: compares `describe` with the bytes that kernels, matmuls and copies access on a virtual GPU with
//! checks.

use std::collections::BTreeMap;

use super::program::{counts, on_gpus};
use crate::common::{run_ok, single, temp_dir};

/// A batch of half the rows, so that all batches have one size. Registered memory is rounded up to NCCL's sizes, which would make
/// the buffers indistinguishable.
const RUN: [&str; 8] = [
    "data.train=builtin:digits",
    "data.eval=none",
    "data.placement=device",
    "train.global_batch_size=719",
    "train.clip_grad_norm=1",
    "checkpoint.every_epochs=0",
    "log.every_steps=1000",
    "comm.register_buffers=off",
];
const FEW_STEPS: u32 = 4;
const MORE_STEPS: u32 = 4;
/// Rows of a batch, and features of a row.
const N_ROWS: f64 = 719.0;
const N_FEATURES: f64 = 64.0;

fn set<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    RUN.iter().chain(settings).flat_map(|setting| ["--set", *setting]).collect()
}

/// Counts of one step, averaged over the ranks.
struct Counted {
    of_runs: Vec<BTreeMap<String, f64>>,
    n_gpus: usize,
}

impl Counted {
    fn sum(&self, is_meant: impl Fn(&str) -> bool) -> f64 {
        let of = |run: usize| -> f64 {
            self.of_runs[run].iter().filter(|(key, _)| is_meant(key)).map(|(_, count)| count).sum()
        };
        (of(1) - of(0)) / f64::from(MORE_STEPS) / self.n_gpus as f64
    }

    fn of(&self, key: &str) -> f64 {
        self.sum(|other| other == key)
    }

    fn calls_of(&self, prefix: &str) -> f64 {
        self.sum(|key| key.starts_with(prefix))
    }

    /// Bytes read and written in allocations of this size.
    fn calls_of_size(&self, bytes: f64) -> f64 {
        self.of(&format!("read_of:{bytes}")) + self.of(&format!("written_of:{bytes}"))
    }
}

/// Runs that differ only in their number of steps; returns `None` if there are no virtual GPUs.
fn counts_of_a_step(n_gpus: usize, settings: &[&str]) -> Option<Counted> {
    counts_of_a_step_with(n_gpus, &[("VGPU_CHECK", "1"), ("VGPU_LT_REFUSE", "")], &[], settings)
}

fn counts_of_a_step_with(
    n_gpus: usize,
    more_env: &[(&str, &str)],
    more_args: &[&str],
    settings: &[&str],
) -> Option<Counted> {
    let folder = temp_dir();
    let mut of_runs: Vec<BTreeMap<String, f64>> = Vec::new();
    for steps in [FEW_STEPS, FEW_STEPS + MORE_STEPS] {
        let (out, counted) =
            (folder.path().join(format!("run{steps}")), folder.path().join(format!("c{steps}")));
        std::fs::create_dir(&counted).unwrap();
        let steps = format!("train.steps={steps}");
        let mut args =
            vec!["train", "-q", "--device", "cuda", "--out", out.to_str().unwrap(), "--set", &steps];
        args.extend(set(settings));
        args.extend(more_args);
        let env: Vec<_> =
            more_env.iter().copied().chain([("VGPU_COUNTS", counted.to_str().unwrap())]).collect();
        on_gpus(n_gpus, n_gpus, &args, &env)?.ok();
        of_runs.push(counts(&counted));
    }
    Some(Counted { of_runs, n_gpus })
}

/// Bytes of a step and bytes of memory, each by kind, as reported by `describe`.
fn described(n_ranks: usize, settings: &[&str]) -> (BTreeMap<String, f64>, BTreeMap<String, f64>) {
    let world_size = n_ranks.to_string();
    let mut args = vec!["describe", "--json", "--device", "cuda", "--world-size", &world_size];
    args.extend(set(settings));
    let report: serde_json::Value = serde_json::from_str(&run_ok(single(&args)).stdout).unwrap();
    let stage = if settings.contains(&"comm.zero=1") { 1 } else { 0 };
    let traffic = report["traffic"][stage].as_object().unwrap();
    let traffic = traffic.iter().map(|(kind, bytes)| (kind.clone(), bytes.as_f64().unwrap()));
    let memory = report["memory"][stage]["bytes"].as_array().unwrap().iter();
    let memory = memory.map(|of| (of["what"].as_str().unwrap().to_owned(), of["bytes"].as_f64().unwrap()));
    (traffic.collect(), memory.collect())
}

#[track_caller]
fn assert_near(what: &str, got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance * want, "{what}: {got} bytes touched, {want} described");
}

#[test]
fn a_step_moves_as_many_bytes_as_described() {
    // Norms and dropout read a few values again for each row or thread. A cache would hold them, but the virtual GPU has none.
    for settings in [
        &["model.hidden=[128]", "train.ema_decay=0.9"] as &[&str],
        &[
            "model.hidden=[96,64]",
            // Not fused where factors are whole.
            "model.activation=gelu_tanh",
            "train.precision=bf16",
            "optimizer.kind=sgd",
            "optimizer.momentum=0.9",
        ],
        &["model.hidden=[128,96]", "train.precision=bf16"],
        &["model.hidden=[64,64]", "model.residual=true"],
        &["model.hidden=[128]", "optimizer.kind=lamb"],
    ] {
        let Some(step) = counts_of_a_step(1, settings) else { return };
        let (want, memory) = described(1, settings);
        // Weights and state have the same size, the compute weights half of it.
        let mut weights = step.calls_of_size(memory["parameters"]);
        if memory["compute weights"] > 0.0 {
            weights += step.calls_of_size(memory["compute weights"]);
        }
        let what = settings.join(" ");
        assert_near(
            &format!("{what}: weights and state"),
            weights,
            want["weights"] + want["optimizer"],
            0.02,
        );
        let gradients = step.calls_of_size(memory["gradients"]);
        assert_near(&format!("{what}: gradients"), gradients, want["gradients"], 0.02);
        // Each thread that gathers a part of a row reads the row's index.
        let again = step.calls_of("read:load_rows") - N_ROWS * (N_FEATURES * 4.0 + 8.0);
        let all = step.calls_of("read:") + step.calls_of("written:") - again;
        let rest = want["activations"] + want["rows"];
        // The norms of LAMB need two reductions per parameter, whose partial sums are noticeable next to such a small model.
        let tolerance = if what.contains("lamb") { 0.1 } else { 0.05 };
        assert_near(&format!("{what}: activations and rows"), all - weights - gradients, rest, tolerance);
    }
}

/// Gradients exchanged in bf16 are read directly, and the norm of each bucket is computed after its reduction.
#[test]
fn gradients_in_bf16_are_neither_converted_back_nor_read_for_the_norm_at_the_end() {
    let settings = ["model.hidden=[128]", "comm.dtype=bf16", "comm.bucket_mib=0.001"];
    let Some(step) = counts_of_a_step(2, &settings) else { return };
    let (want, memory) = described(2, &settings);
    // The sums of a step follow the gradients; the other part of their memory is in bf16.
    let wire = memory["parameters"] / 2.0;
    let touched = step.calls_of_size(memory["gradients"] - wire) + step.calls_of_size(wire);
    // The all-reduce itself reads and writes each element once.
    let exchanged = 2.0 * wire;
    assert_near("gradients", touched - exchanged, want["gradients"], 0.02);
    assert_eq!(step.of("kernel:sum_of_squares_bf16"), 2.0, "one per bucket");
    assert_eq!(step.of("kernel:sum_of_squares_f32"), 0.0);
    assert_eq!(
        step.of("kernel:adam_f32_grads_bf16"),
        step.calls_of("kernel:adam"),
        "the update reads them in bf16"
    );
}

/// Matmuls write gradients directly in bf16: no gradient of a linear layer is stored in f32.
#[test]
fn matmuls_in_bf16_write_the_gradients_that_travel() {
    let settings = ["model.hidden=[128]", "train.precision=bf16", "comm.dtype=bf16", "comm.bucket_mib=0.001"];
    let Some(step) = counts_of_a_step(2, &settings) else { return };
    let (want, memory) = described(2, &settings);
    let wire = memory["parameters"] / 2.0;
    // Only the sums of a step remain in f32.
    assert!(memory["gradients"] <= wire + 64.0, "{} bytes of gradients", memory["gradients"]);
    // Compute weights are as large as the gradients, and weights as the optimizer state; the all-reduce accesses each gradient
    // twice.
    let touched = step.calls_of_size(wire) + step.calls_of_size(memory["parameters"]) - 2.0 * wire;
    let described = want["weights"] + want["gradients"] + want["optimizer"];
    assert_near("weights, gradients and state", touched, described, 0.02);
    assert_eq!(step.calls_of("kernel:cast_f32_bf16"), 0.0, "rows are gathered in bf16");
    assert_eq!(step.of("kernel:sum_of_squares_bf16"), 2.0, "one per bucket");
}

/// With sharded weights, ranks gather the weights that matmuls read in bf16, and the bias of the last layer in f32.
#[test]
fn sharded_weights_are_gathered_in_the_format_of_matmuls() {
    let settings = ["model.hidden=[128]", "comm.zero=1", "train.precision=bf16"];
    let Some(step) = counts_of_a_step(2, &settings) else { return };
    let (want, memory) = described(2, &settings);
    let (single, short) = (memory["parameters"], memory["compute weights"]);
    // The count includes the ten values of that bias, on one of two ranks.
    assert_near("gathered", step.of("written:ncclAllGather"), short + 40.0, 0.005);
    // A rank reads and writes master weights only of its own half. Its state is as large as the compute weights.
    assert_near("master weights", step.calls_of_size(single), single, 0.02);
    let gathered = step.of("read:ncclAllGather") + step.of("written:ncclAllGather");
    let touched = step.calls_of_size(single) + step.calls_of_size(short) - gathered;
    assert_near("weights and state", touched, want["weights"] + want["optimizer"], 0.02);
    assert_eq!(step.calls_of("kernel:cast_f32_bf16"), 0.0, "rows are gathered in bf16");
    // Half of the gradients are sent in f32, and then half of the weights in bf16.
    let flat_sent = single / 2.0 + short / 2.0;
    assert_near("sent", want["exchange"], flat_sent, 0.005);
}

/// A non-blocking communicator starts a thread for each call or group of calls that is not replayed from a graph.
#[test]
fn a_step_without_a_graph_makes_few_calls_of_nccl() {
    let two_buckets = ["model.hidden=[128]", "comm.bucket_mib=0.001"];
    for (settings, calls, n_collectives) in [
        (&[] as &[&str], 2.0, 2.0),
        // Without a norm weights are updated bucket by bucket: the sums of a step are reduced with the first one.
        (&["train.clip_grad_norm=0"], 2.0, 3.0),
        // All buckets in one group.
        (&["comm.overlap=false"], 1.0, 2.0),
        // The sums of a step are reduced with the first bucket.
        (&["comm.dtype=bf16"], 2.0, 3.0),
        // The norm, and two gathers of weights.
        (&["comm.zero=1"], 5.0, 6.0),
        // The sums of a step are reduced with the first bucket.
        (&["comm.zero=2"], 5.0, 6.0),
        // All directions in one group.
        (&["optimizer.kind=muon", "model.hidden=[128,64,64]"], 4.0 + 1.0, 4.0 + 3.0),
    ] {
        let settings = [&two_buckets[..], &["train.global_batch_size=64"], settings].concat();
        let Some(step) = counts_of_a_step_with(2, &[], &["--cuda-graph", "off"], &settings) else { return };
        let collectives = ["ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast"];
        let n: f64 = collectives.into_iter().map(|name| step.of(name)).sum();
        assert_eq!((step.of("nccl_launches"), n), (calls, n_collectives), "{settings:?}");
    }
}

/// The GPU computes the order of blocks of rows like any other order: only an epoch's blocks are copied to it.
#[test]
fn no_row_numbers_are_sent_of_blocks_on_the_gpu() {
    for mode in ["full", "blocks"] {
        let mode = format!("data.shuffle_mode={mode}");
        let Some(step) = counts_of_a_step_with(1, &[], &[], &["model.hidden=[16]", &mode]) else { return };
        assert_eq!(step.of("bytes:htod_pinned"), 0.0, "{mode}");
        // Two steps are an epoch; each of its blocks is two numbers, and here there is only one block.
        assert!(step.of("bytes:htod_pageable") <= 8.0, "{mode}: {} bytes", step.of("bytes:htod_pageable"));
    }
}

/// The host rounds rows in f32 to the format of activations while it gathers them: half as many bytes on the bus.
#[test]
fn rows_from_the_host_come_in_the_format_of_activations() {
    for (precision, size) in [("f32", 4.0), ("bf16", 2.0), ("f16", 2.0)] {
        let precision = format!("train.precision={precision}");
        let settings = ["model.hidden=[128]", "data.placement=host", &precision];
        let Some(step) = counts_of_a_step(1, &settings) else { return };
        let row_bytes = N_FEATURES * size + 8.0;
        assert_eq!(step.of("bytes:htod_pinned"), N_ROWS * row_bytes, "{precision}");
        assert_eq!(step.calls_of("kernel:cast_f32"), 0.0, "{precision}: nothing is left to convert");
        assert_eq!(described(1, &settings).0["rows"], N_ROWS * row_bytes, "{precision}");
    }
}

/// A table of rows on the GPU is filled through page-locked memory.
#[test]
fn rows_reach_the_gpu_through_pinned_memory() {
    // 1438 rows of 64 features and a label.
    const TABLE_BYTES: f64 = 1438.0 * (64.0 * 4.0 + 8.0);
    let folder = temp_dir();
    let (out, counted) = (folder.path().join("run"), folder.path().join("counts"));
    std::fs::create_dir(&counted).unwrap();
    let mut args =
        vec!["train", "-q", "--device", "cuda", "--out", out.to_str().unwrap(), "--set", "train.steps=2"];
    args.extend(set(&[]));
    let Some(outcome) = on_gpus(1, 1, &args, &[("VGPU_COUNTS", counted.to_str().unwrap())]) else { return };
    outcome.ok();
    let counts = counts(&counted);
    assert!(
        counts["bytes:htod_pinned"] >= TABLE_BYTES,
        "{} bytes from pinned memory",
        counts["bytes:htod_pinned"]
    );
    let pageable = counts.get("bytes:htod_pageable").copied().unwrap_or(0.0);
    assert!(pageable < TABLE_BYTES / 2.0, "{pageable} bytes from pageable memory");
}
