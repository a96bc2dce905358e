//! `ddp-train bench`: every benchmark measures something and reports it as JSON, on the CPU and, if allowed, on a virtual GPU,
//! whose times it otherwise refuses to report. These tests check that something is measured, not the values.

#![allow(clippy::unwrap_used)]

use serde_json::Value;

use crate::common::{mpirun, run, run_ok, single};
use crate::virtual_gpu::{command_under_virtual_gpus, under_virtual_gpus};

const QUICK_BUILD: &str = "warning: this program is a quick build, which reads tables and trains small networks slowly\n\
                           hint: ./launch/build optimizes it\n";

/// A benchmark, its smallest form, and the keys whose values must be above 0 in each line.
const BENCHMARKS: [(&str, &[&str], &[&str]); 7] = [
    (
        "step",
        &["--dims", "8,16,4", "--batch", "4", "--steps", "5", "--warmup", "1"],
        &[
            "samples_per_s",
            "step_ms_median",
            "step_ms_min",
            "optimizer_ms_median",
            "gemm_gflops_per_s",
            "gflops_per_s",
            "peak_rss_mib",
            "peak_rss_mib_all_ranks",
            "final_loss",
            "params",
        ],
    ),
    (
        "step",
        &["--forward", "--dims", "8,16,4", "--batch", "4", "--steps", "5", "--warmup", "1"],
        &["samples_per_s", "forward_ms_median", "forward_ms_min", "forward_ms_max", "gflops_per_s"],
    ),
    (
        "addmm",
        &["--dims", "8,16,4", "--batch", "4", "--square", "16", "--repeats", "2", "--repeat-ms", "0"],
        &["m", "n", "k", "ms_median", "tflops_per_s", "fraction_of_best"],
    ),
    (
        "copy",
        &["--sizes", "4KiB,10", "--repeats", "2", "--repeat-ms", "0"],
        &["size_bytes", "counted_bytes", "ms_median", "ms_min", "ms_max", "gb_per_s"],
    ),
    (
        "allreduce",
        &["--sizes", "4KiB,12", "--repeats", "2", "--repeat-ms", "0"],
        &["size_bytes", "ms_median", "algbw_gb_per_s"],
    ),
    (
        "kernels",
        &["--rows", "16", "--cols", "24", "--repeats", "2", "--repeat-ms", "0"],
        &["moved_bytes", "ms_median", "gb_per_s", "fraction_of_copy"],
    ),
    (
        "loader",
        &["--repeats", "2", "--repeat-ms", "1"],
        &[
            "rows",
            "row_bytes",
            "batch",
            "rows_timed",
            "rows_per_s",
            "gb_per_s",
            "memcpy_gb_per_s",
            "of_memcpy",
        ],
    ),
];

fn command_line<'a>(name: &'a str, args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&["bench", name, "--threads", "1"], args, more].concat()
}

/// The objects of stdout, in each of which these values are above 0.
#[track_caller]
fn lines(stdout: &str, keys: &[&str]) -> Vec<Value> {
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty());
    for line in &lines {
        for key in keys {
            assert!(line[key].as_f64().is_some_and(|v| v > 0.0), "{key} of {line}");
        }
        let time = |key: &str| line[key].as_f64();
        if let (Some(min), Some(median), Some(max)) = (time("ms_min"), time("ms_median"), time("ms_max")) {
            assert!(min <= median && median <= max, "{line}");
        }
    }
    lines
}

/// The distinct values of a key.
fn values(lines: &[Value], key: &str) -> Vec<String> {
    let mut values: Vec<_> = lines.iter().map(|line| line[key].as_str().unwrap_or("?").to_owned()).collect();
    values.sort();
    values.dedup();
    values
}

#[test]
fn each_measures_on_the_cpu() {
    for (name, args, keys) in BENCHMARKS {
        let place = ["--device", "cpu", "--json"];
        let outcome = run_ok(single(&command_line(name, args, &place)));
        // Without DDP_TRAIN, the program is compiled like the tests, and prints a note about it.
        let notes = outcome.stderr.replace(QUICK_BUILD, "");
        assert_eq!(notes, "", "{name}");
        for line in lines(&outcome.stdout, keys) {
            assert_eq!(
                (line["device"].as_str(), line["world_size"].as_u64()),
                (Some("cpu"), Some(1)),
                "{line}"
            );
            assert!(line.get("virtual").is_none() && line["device_name"].is_string(), "{line}");
        }
        let table = run_ok(single(&command_line(name, args, &["--device", "cpu"]))).stdout;
        assert!(table.starts_with("cpu (") && table.contains("1 rank, 1 thread each"), "{table}");
    }
}

#[test]
fn sums_over_two_ranks_are_counted_as_nccl_tests_does() {
    let args = [
        "bench",
        "allreduce",
        "--sizes",
        "4KiB",
        "--repeats",
        "2",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--json",
    ];
    let lines = lines(&run_ok(mpirun(&[(2, &args)])).stdout, &["busbw_gb_per_s"]);
    // One rank reports; with two ranks 2(n - 1)/n = 1.
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["busbw_gb_per_s"], lines[0]["algbw_gb_per_s"]);
    assert_eq!((lines[0]["world_size"].as_u64(), lines[0]["wrong_elements"].as_u64()), (Some(2), Some(0)));
}

#[test]
fn sums_go_by_every_path() {
    let args = |more: &[&'static str]| {
        let (name, args, _) = *BENCHMARKS.iter().find(|(name, ..)| *name == "allreduce").unwrap();
        command_line(name, args, &[&["--device", "cpu", "--json"], more].concat())
    };
    let all = args(&["--path", "group,scope,messages,mpi"]);
    let of_ranks = lines(&run_ok(mpirun(&[(2, &all)])).stdout, &["busbw_gb_per_s"]);
    let found: Vec<_> = of_ranks
        .iter()
        .map(|line| (line["path"].as_str().unwrap(), line["transport"].as_str().unwrap()))
        .collect();
    let expected =
        [("group", "shared memory"), ("scope", "shared memory"), ("messages", "mpi"), ("mpi", "mpi")];
    assert_eq!(found, expected.map(|path| [path, path]).concat());
    let of_threads = lines(
        &run_ok(single(&args(&["--path", "group,scope", "--rank-threads", "3"]))).stdout,
        &["busbw_gb_per_s"],
    );
    assert_eq!(values(&of_threads, "transport"), ["threads"]);
    assert!(of_threads.iter().all(|line| line["world_size"].as_u64() == Some(3)));
    assert!(of_ranks.iter().chain(&of_threads).all(|line| line["wrong_elements"].as_u64() == Some(0)));

    let refused = run(single(&args(&["--path", "mpi"])));
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    assert!(
        refused.stderr.contains("not processes joined by MPI\nhint: start them by `mpirun"),
        "{refused:?}"
    );
    let both = args(&["--rank-threads", "2"]);
    let refused = run(mpirun(&[(2, &both)]));
    assert!(refused.stderr.contains("the launcher has started 2 processes"), "{refused:?}");
}

#[test]
fn formats_that_the_cpu_has_not_are_refused() {
    for (name, dtype) in [("step", "tf32"), ("step", "f32x3"), ("addmm", "f32,tf32"), ("kernels", "bf16")] {
        let outcome = run(single(&["bench", name, "--device", "cpu", "--dtype", dtype]));
        assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
        let named = dtype.rsplit(',').next().unwrap();
        let reason = format!("only GPUs have matmuls in {named}");
        assert!(
            outcome.stderr.contains(&reason) && outcome.stderr.contains("hint: --dtype f32"),
            "{outcome:?}"
        );
    }
}

#[test]
fn a_virtual_gpu_is_refused() {
    for (name, args, _) in BENCHMARKS {
        let Some(outcome) = under_virtual_gpus(1, &command_line(name, args, &["--device", "cuda"]), &[])
        else {
            return;
        };
        assert_eq!(outcome.status.code(), Some(78), "{name}: {outcome:?}");
        assert!(outcome.stderr.contains("cuda:0") && outcome.stderr.contains("virtual GPU"), "{outcome:?}");
        assert!(outcome.stderr.contains("hint: ") && outcome.stdout.is_empty(), "{outcome:?}");
    }
}

/// The lines of a benchmark on virtual GPUs, which are marked as virtual.
fn on_virtual_gpus(n: usize, name: &str, more: &[&str]) -> Option<Vec<Value>> {
    let (name, args, keys) = BENCHMARKS.into_iter().find(|(other, ..)| *other == name).unwrap();
    let more = [&["--device", "cuda", "--json"], more].concat();
    let allowed = [("DDP_TRAIN_BENCH_VIRTUAL", "1")];
    let outcome = under_virtual_gpus(n, &command_line(name, args, &more), &allowed)?;
    let lines = lines(outcome.ok(), keys);
    for line in &lines {
        assert_eq!(
            (line["virtual"].as_bool(), line["device"].as_str()),
            (Some(true), Some("cuda:0")),
            "{line}"
        );
    }
    Some(lines)
}

#[test]
fn steps_on_a_gpu_tell_of_graphs_memory_and_the_best_product() {
    for (mode, dtype) in [("on", "bf16"), ("on", "f32x3"), ("off", "f32")] {
        let Some(lines) = on_virtual_gpus(1, "step", &["--cuda-graph", mode, "--dtype", dtype]) else {
            return;
        };
        let line = &lines[0];
        assert_eq!((line["cuda_graph"].as_bool(), line["dtype"].as_str()), (Some(mode == "on"), Some(dtype)));
        for key in ["tflops_per_s", "best_gemm_tflops_per_s", "mfu", "peak_gpu_memory_mib"] {
            assert!(line[key].as_f64().is_some_and(|v| v > 0.0), "{key} of {line}");
        }
        for kind in ["parameters", "gradients", "optimizer", "activations", "data"] {
            assert!(line["gpu_memory_mib"][kind].as_f64().is_some_and(|v| v > 0.0), "{kind} of {line}");
        }
    }
}

#[test]
fn products_on_a_gpu_come_in_all_formats() {
    let Some(lines) = on_virtual_gpus(1, "addmm", &[]) else { return };
    assert_eq!(values(&lines, "dtype"), ["bf16", "f32", "f32x3", "tf32"]);
    assert_eq!(values(&lines, "pass"), ["d_input", "d_weight", "forward", "square"]);
    // Two layers forward, two gradients of weights, one of an input, one square matmul; each in four formats.
    assert_eq!(lines.len(), 24);
    let best = lines.iter().filter(|line| line["fraction_of_best"].as_f64() == Some(1.0)).count();
    assert!(best >= 4, "each format has its best");
}

#[test]
fn copies_on_gpus_go_every_way() {
    let Some(lines) = on_virtual_gpus(2, "copy", &[]) else { return };
    let ways = values(&lines, "way");
    let expected =
        ["cuda:0 to cuda:1, peer to peer", "gpu to host, pageable", "gpu to host, pinned", "gpu to itself"];
    assert_eq!(ways[..4], expected);
    assert_eq!(ways[4..], ["host to gpu, pageable", "host to gpu, pinned"]);
    for line in &lines {
        let passes = if line["way"] == "gpu to itself" { 2 } else { 1 };
        assert_eq!(line["counted_bytes"].as_u64(), line["size_bytes"].as_u64().map(|n| n * passes), "{line}");
    }
}

#[test]
fn operations_on_a_gpu_are_held_against_a_copy() {
    let Some(lines) = on_virtual_gpus(1, "kernels", &[]) else { return };
    assert_eq!(values(&lines, "dtype"), ["bf16", "f32"]);
    let ops = values(&lines, "op");
    for op in [
        "adam_step",
        "batch_norm_backward",
        "copy",
        "dropout",
        "gather_rows",
        "layer_norm_backward",
        "muon_step",
        "numeric_embedding_backward",
        "ordinal",
        "select_targets",
        "softmax_cross_entropy",
    ] {
        assert!(ops.iter().any(|found| found == op), "no {op} in {ops:?}");
    }
    let copies = lines.iter().filter(|line| line["op"] == "copy");
    assert!(copies.map(|line| line["fraction_of_copy"].as_f64()).eq([Some(1.0), Some(1.0)]));
}

#[test]
fn sums_over_two_gpus_go_through_nccl() {
    let (name, args, keys) = *BENCHMARKS.iter().find(|(name, ..)| *name == "allreduce").unwrap();
    let args = command_line(name, args, &["--device", "cuda", "--json"]);
    let mut job = mpirun(&[(2, &args)]);
    job.env("DDP_TRAIN_BENCH_VIRTUAL", "1");
    let Some(outcome) = command_under_virtual_gpus(2, &job) else { return };
    let lines = lines(outcome.ok(), &[keys, &["busbw_gb_per_s"]].concat());
    let of_gpus: Vec<_> = lines.into_iter().filter(|line| line["memory"] == "gpu").collect();
    assert_eq!((values(&of_gpus, "transport"), of_gpus.len()), (vec!["nccl".to_owned()], 2));
    assert!(of_gpus.iter().all(|line| line["wrong_elements"].as_u64() == Some(0)), "{of_gpus:?}");
}

#[test]
fn sums_on_a_gpu_are_right() {
    let Some(lines) = on_virtual_gpus(1, "allreduce", &[]) else { return };
    assert_eq!(values(&lines, "memory"), ["gpu", "host"]);
    assert!(lines.iter().all(|line| line["wrong_elements"].as_u64() == Some(0)));
}
