//! The program on virtual GPUs as a user would start it: it trains as on the CPU, and steps neither wait nor allocate.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ddp_kernels::cpu::cpu_set::CpuSet;

use crate::common::{Outcome, largest_gap, mpirun, read_weights, run_ok, single, temp_dir};
use crate::virtual_gpu::{command_under_virtual_gpus, under_virtual_gpus};

/// A short run of a model with everything that a GPU computes differently from the CPU.
const RUN: [&str; 10] = [
    "--set",
    "train.epochs=2",
    "--set",
    "train.global_batch_size=96",
    "--set",
    "model.hidden=[48,32]",
    "--set",
    "model.dropout=0.1",
    "--set",
    "train.clip_grad_norm=1.0",
];

pub(crate) fn train_args<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "-q", "--out", out];
    args.extend(RUN);
    args.extend(more);
    args
}

/// Runs `n_ranks` ranks on `n_gpus` virtual GPUs; returns `None` if they are not available.
pub(crate) fn on_gpus(n_gpus: usize, n_ranks: usize, args: &[&str], env: &[(&str, &str)]) -> Option<Outcome> {
    let mut command: Command = if n_ranks == 1 { single(args) } else { mpirun(&[(n_ranks, args)]) };
    command.envs(env.iter().copied());
    command_under_virtual_gpus(n_gpus, &command)
}

#[test]
fn four_gpus_train_as_one_cpu_rank() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let cpu = path("cpu");
    run_ok(single(&train_args(&cpu, &["--device", "cpu", "--threads", "1"])));
    let want = read_weights(&Path::new(&cpu).join("model.safetensors"));
    for (n, more) in [(1, &[] as &[&str]), (4, &[]), (4, &["--cuda-graph", "off"]), (2, &["--share-gpu"])] {
        let out = path(&format!("gpu-{n}-{}", more.len() * 10 + more.first().map_or(0, |m| m.len())));
        let args: Vec<_> = ["--device", "cuda"].into_iter().chain(more.iter().copied()).collect();
        let n_gpus = if more.contains(&"--share-gpu") { 1 } else { n };
        let Some(outcome) = on_gpus(n_gpus, n, &train_args(&out, &args), &[]) else { return };
        outcome.ok();
        let got = read_weights(&Path::new(&out).join("model.safetensors"));
        let (gap, place) = largest_gap(&got, &want);
        // 30 steps with sums in a different order: a few units of 6e-8 per step. A different dropout mask or a mean over
        // different rows would differ by 1e-3 and more.
        assert!(gap <= 2e-5, "{n} ranks, {more:?}: {place}: {gap:e} apart");
    }
}

/// All counts of the processes that wrote to `folder`.
pub(crate) fn counts(folder: &Path) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let counts: BTreeMap<String, f64> = serde_json::from_str(&text).unwrap();
        for (name, count) in counts {
            *sums.entry(name).or_default() += count;
        }
    }
    assert!(!sums.is_empty(), "no counts in {}", folder.display());
    sums
}

/// Two runs with different numbers of steps differ only by the calls of the additional steps.
fn check_calls_of_a_step(n_gpus: usize, graph: &str, replays: bool) {
    const MORE_STEPS: f64 = 40.0;
    let folder = temp_dir();
    let mut of_runs = Vec::new();
    for steps in [20, 60] {
        let (out, counted) =
            (folder.path().join(format!("run{steps}")), folder.path().join(format!("c{steps}")));
        std::fs::create_dir(&counted).unwrap();
        let (out, steps) = (out.to_str().unwrap().to_owned(), format!("train.steps={steps}"));
        let args = [
            "train",
            "-q",
            "--device",
            "cuda",
            "--out",
            &out,
            "--cuda-graph",
            graph,
            "--set",
            &steps,
            "--set",
            "data.eval=none",
            "--set",
            // Saving is not part of a step.
            "checkpoint.every_epochs=0",
            "--set",
            "log.every_steps=1000",
            "--set",
            "train.global_batch_size=80",
            // 1440 rows: each epoch has 18 whole batches less two rows, so its last batch is smaller.
        ];
        let counted_path = counted.to_str().unwrap().to_owned();
        let Some(outcome) = on_gpus(n_gpus, n_gpus, &args, &[("VGPU_COUNTS", &counted_path)]) else { return };
        outcome.ok();
        of_runs.push(counts(&counted));
    }
    let more = |name: &str| {
        let of = |run: usize| of_runs[run].get(name).copied().unwrap_or(0.0);
        (of(1) - of(0)) / n_gpus as f64
    };
    let none = [
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuMemAlloc_v2",
        "cuMemAllocAsync",
        "cuMemAllocFromPoolAsync",
        "cuMemHostAlloc",
        "cuEventCreate",
        "cuMemcpyHtoD_v2",
        "cuMemcpyDtoH_v2",
        "cuModuleLoadData",
        "bytes:htod_pageable",
    ];
    for name in none {
        assert_eq!(more(name), 0.0, "{name} is called in steps, on {n_gpus} GPUs with --cuda-graph {graph}");
    }
    // The host waits only for results that are a step old: the outcome, and three pinned buffers before they are rewritten.
    assert!(more("cuEventSynchronize") <= 5.0 * MORE_STEPS, "{} waits", more("cuEventSynchronize"));
    if replays {
        // Two or three smaller batches are among these steps.
        assert!(more("cuGraphLaunch") >= MORE_STEPS - 4.0, "{} replays", more("cuGraphLaunch"));
        let n_single = more("cuLaunchKernel") + more("cuLaunchKernelEx");
        assert!(n_single <= 4.0 * 40.0, "{n_single} single kernels");
    } else {
        assert_eq!(more("cuGraphLaunch"), 0.0);
    }
}

#[test]
fn a_step_neither_waits_nor_allocates() {
    check_calls_of_a_step(1, "off", false);
    check_calls_of_a_step(1, "on", true);
    check_calls_of_a_step(2, "on", true);
}

/// Counts the host calls of a small step of (64, 128, 10) and 32 rows: calls of the driver, except polls of the last outcome, and
/// the nodes of its graph.
#[test]
fn a_small_step_makes_few_calls_and_its_graph_is_small() {
    const MORE_STEPS: f64 = 40.0;
    let folder = temp_dir();
    // One update serves weights and biases, which have weight decays of their own.
    let cases = [("", "0.0", 6.0, 7.0), ("likely", "0.0", 6.0, 9.0), ("", "1.0", 6.0, 8.0)];
    for (refused, clip, max_calls, max_nodes) in cases {
        let clipped = format!("train.clip_grad_norm={clip}");
        let mut of_runs = Vec::new();
        // More than an epoch each, because its last batch has a different size, whose matmuls are timed once.
        for steps in [60, 100] {
            let path = folder.path().join(format!("{refused}{}{steps}", &clip[..1]));
            let counted = path.with_extension("counts");
            std::fs::create_dir(&counted).unwrap();
            let (out, steps) = (path.to_str().unwrap().to_owned(), format!("train.steps={steps}"));
            let args =
                ["train", "-q", "--device", "cuda", "--cuda-graph", "on", "--out", &out, "--set", &steps];
            let settings = [
                "data.eval=none",
                "checkpoint.every_epochs=0",
                "log.every_steps=1000",
                "train.global_batch_size=32",
                "model.hidden=[128]",
                &clipped,
            ];
            let settings = settings.iter().flat_map(|setting| ["--set", setting]);
            let args: Vec<&str> = args.into_iter().chain(settings).collect();
            let env = [("VGPU_LT_REFUSE", refused), ("VGPU_COUNTS", counted.to_str().unwrap())];
            let Some(outcome) = under_virtual_gpus(1, &args, &env) else { return };
            outcome.ok();
            of_runs.push(counts(&counted));
        }
        let more = |name: &str| {
            let of = |run: usize| of_runs[run].get(name).copied().unwrap_or(0.0);
            of(1) - of(0)
        };
        let is_call = |name: &&String| name.starts_with("cu") && !name.starts_with("cublas");
        let names = of_runs[1].keys().filter(is_call).filter(|name| *name != "cuEventQuery");
        let calls = names.map(|name| more(name)).sum::<f64>() / MORE_STEPS;
        let nodes = more("graph_nodes") / more("cuGraphLaunch");
        assert!(
            calls <= max_calls + 0.5,
            "{refused}, clipped to {clip}: {calls} calls of the driver in a step"
        );
        assert!(nodes <= max_nodes, "{refused}, clipped to {clip}: a graph of {nodes} nodes");
        // The update writes the outcome to host memory directly.
        assert!(more("cuMemcpyDtoHAsync_v2") <= 2.0, "{} copies", more("cuMemcpyDtoHAsync_v2"));
    }
}

/// Copies of rows from the host are timed only in logged steps.
#[test]
fn a_step_that_is_not_logged_times_no_copies() {
    let folder = temp_dir();
    // More than an epoch each: the matmuls of its last, smaller batch are timed too.
    let n_timed = [(60, 1000), (100, 1000), (60, 2)].map(|(steps, every)| {
        let path = folder.path().join(format!("{steps}-{every}"));
        let counted = path.with_extension("counts");
        std::fs::create_dir(&counted).unwrap();
        let line = format!(
            "train -q --device cuda --out {} --set train.steps={steps} --set log.every_steps={every} \
             --set data.placement=host --set data.eval=none --set checkpoint.every_epochs=0",
            path.display()
        );
        let args: Vec<&str> = line.split_whitespace().collect();
        let outcome = under_virtual_gpus(1, &args, &[("VGPU_COUNTS", counted.to_str().unwrap())])?;
        outcome.ok();
        Some(counts(&counted).get("cuEventElapsedTime_v2").copied().unwrap_or(0.0))
    });
    let [Some(few), Some(more), Some(logged)] = n_timed else { return };
    assert!(few > 0.0 && more == few, "{few} copies timed in 60 steps, {more} in 100");
    // Features and targets of about thirty steps; those of the last ones are not read.
    assert!(logged > more + 40.0, "{logged} copies timed where 30 steps are logged");
}

/// Runs of the same length that are saved twice and ten times differ only by the calls of a checkpoint.
#[test]
fn a_snapshot_goes_through_pinned_memory_and_is_waited_for_once() {
    const MORE_CHECKPOINTS: f64 = 8.0;
    // Weights and biases of 64, 48, 32 and 10, each padded to a multiple of 16, and the two moments of AdamW.
    const SNAPSHOT_BYTES: f64 = ((3072 + 48 + 1536 + 32 + 320 + 16) * 3 * 4) as f64;
    // Sums over the rows used since the last checkpoint, which the GPU numbered.
    const ROW_SUMS_BYTES: f64 = (5 * 8) as f64;
    let folder = temp_dir();
    let mut of_runs = Vec::new();
    for every in [15, 3] {
        let (out, counted) =
            (folder.path().join(format!("run{every}")), folder.path().join(format!("c{every}")));
        std::fs::create_dir(&counted).unwrap();
        let every = format!("checkpoint.every_steps={every}");
        let mut args = train_args(out.to_str().unwrap(), &["--device", "cuda", "--set", &every]);
        // 2 epochs of 15 steps.
        args.extend(["--set", "data.eval=none"]);
        let counted_path = counted.to_str().unwrap().to_owned();
        let Some(outcome) = on_gpus(1, 1, &args, &[("VGPU_COUNTS", &counted_path)]) else { return };
        outcome.ok();
        of_runs.push(counts(&counted));
        let of_checkpoint = read_weights(&out.join("checkpoints/step-30/model.safetensors"));
        assert_eq!(of_checkpoint, read_weights(&out.join("model.safetensors")));
    }
    let more = |name: &str| {
        let of = |run: usize| of_runs[run].get(name).copied().unwrap_or(0.0);
        of(1) - of(0)
    };
    for name in
        ["cuMemHostAlloc", "cuMemFreeHost", "bytes:dtoh_pageable", "cuStreamSynchronize", "cuCtxSynchronize"]
    {
        assert_eq!(more(name), 0.0, "{name} is called for a checkpoint");
    }
    assert_eq!(more("bytes:dtoh_pinned"), MORE_CHECKPOINTS * (SNAPSHOT_BYTES + ROW_SUMS_BYTES));
    // One wait for these sums, after their steps are over, and one for the snapshot.
    let waits = more("cuEventSynchronize") / MORE_CHECKPOINTS;
    assert!(waits <= 2.0, "{waits} waits for a checkpoint");
}

/// Page-locked buffers of the first evaluation serve the later ones: to lock pages takes longer than a small evaluation.
#[test]
fn evaluations_lock_pages_once() {
    let folder = temp_dir();
    let mut of_runs = Vec::new();
    for epochs in ["2", "6"] {
        let counted = folder.path().join(format!("c{epochs}"));
        std::fs::create_dir(&counted).unwrap();
        let out = folder.path().join(epochs);
        let set = format!("train.epochs={epochs}");
        let args = train_args(out.to_str().unwrap(), &["--device", "cuda", "--set", &set]);
        let Some(outcome) = on_gpus(1, 1, &args, &[("VGPU_COUNTS", counted.to_str().unwrap())]) else {
            return;
        };
        outcome.ok();
        of_runs.push(counts(&counted));
    }
    for name in ["cuMemHostAlloc", "cuMemFreeHost"] {
        let of = |run: usize| of_runs[run].get(name).copied().unwrap_or(0.0);
        assert_eq!(of(0), of(1), "{name}");
    }
}

#[test]
fn checkpoints_do_without_pinned_memory_and_say_so() {
    let folder = temp_dir();
    let run = |name: &str, more: &[&str], env: &[(&str, &str)]| {
        let out = folder.path().join(name);
        let args = ["train", "--device", "cuda", "--progress", "plain", "--out", out.to_str().unwrap()];
        // Otherwise the rows would stay in host memory.
        let run = ["train.steps=4", "data.eval=none", "data.placement=device", "checkpoint.every_steps=2"];
        let run = run.map(|setting| ["--set", setting]).concat();
        let outcome = under_virtual_gpus(1, &[&args[..], &run, more].concat(), env)?;
        Some((out, outcome))
    };
    let counted = folder.path().join("counts");
    std::fs::create_dir(&counted).unwrap();
    let counted_path = counted.to_str().unwrap();
    let Some((out, outcome)) = run("all", &[], &[("VGPU_COUNTS", counted_path)]) else { return };
    outcome.ok();
    let all = read_weights(&out.join("model.safetensors"));
    const SAID: &str = "1 of 1 ranks could not allocate page-locked host memory";
    assert!(!outcome.stderr.contains(SAID), "{outcome:#?}");
    // It is unknown which of them belongs to the snapshot, but no run works without any of the others.
    let n_pinned = counts(&counted)["cuMemHostAlloc"] as usize;
    let (mut n_without, mut n_rows_without, mut n_tried) = (0, 0, 0);
    const ROWS_SAID: &str =
        "rows: all on the GPU, which gathers the batches; they were copied through plain memory";
    for n in 1..=n_pinned {
        let (out, outcome) = run(&format!("pin{n}"), &[], &[("VGPU_FAIL", &format!("pin:{n}"))]).unwrap();
        if !outcome.status.success() {
            assert!(outcome.stderr.contains("out of memory"), "{outcome:#?}");
            continue;
        }
        let model = read_weights(&out.join("model.safetensors"));
        assert_eq!(model, all, "pin:{n}");
        if outcome.stderr.contains("the driver refuses ") {
            n_tried += 1;
            continue;
        }
        if outcome.stderr.contains(ROWS_SAID) {
            n_rows_without += 1;
            continue;
        }
        n_without += 1;
        assert_eq!(outcome.stderr.matches(SAID).count(), 1, "{outcome:#?}");
        assert_eq!(read_weights(&out.join("checkpoints/step-4/model.safetensors")), model);
    }
    assert_eq!(n_without, 1, "of {n_pinned} allocations");
    assert_eq!(n_tried, 2, "a page that is mapped and one that is locked");
    assert_eq!(n_rows_without, 2, "features and labels, of {n_pinned} allocations");
}

#[test]
fn more_ranks_than_gpus_are_refused_with_both_numbers() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let Some(outcome) = on_gpus(2, 3, &train_args(&out, &["--device", "cuda"]), &[]) else { return };
    assert_eq!(outcome.status.code(), Some(78), "{outcome:#?}");
    assert!(outcome.stderr.contains("2 GPUs and 3 ranks"), "{outcome:#?}");
    assert!(outcome.stderr.contains("--share-gpu"), "{outcome:#?}");
}

#[test]
fn auto_takes_the_gpu_and_says_so_else_it_says_why_not() {
    let folder = temp_dir();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let args = |out| vec!["train", "--progress", "plain", "--out", out, "--set", "train.steps=2"];
    let gpu = out("gpu");
    let Some(outcome) = under_virtual_gpus(1, &args(&gpu), &[]) else { return };
    outcome.ok();
    assert!(outcome.stderr.contains("on cuda:0 (Virtual GPU)"), "{outcome:#?}");
    let cpu = out("cpu");
    let without = under_virtual_gpus(1, &args(&cpu), &[("VGPU_FAIL", "nodevice")]).unwrap();
    without.ok();
    assert!(without.stderr.contains("no GPU is used: the driver does not start: "), "{without:#?}");
}

/// With a driver but without the compute libraries, `auto` uses the CPU and names the packages to install; a named GPU is an
/// error.
#[test]
fn missing_libraries_leave_the_cpu_only_where_no_gpu_was_asked_for() {
    let folder = temp_dir();
    for (library, wheel) in [("libnvrtc", "nvidia-cuda-nvrtc"), ("libcublasLt", "nvidia-cublas")] {
        let run = |device: &str| {
            let out = folder.path().join(format!("{library}-{device}")).to_str().unwrap().to_owned();
            let args =
                ["train", "--progress", "none", "--out", &out, "--set", "train.steps=2", "--device", device];
            under_virtual_gpus(1, &args, &[("VGPU_WITHOUT", library)])
        };
        let Some(auto) = run("auto") else { return };
        auto.ok();
        let told: Vec<&str> = auto.stderr.lines().filter(|line| line.contains("no GPU is used: ")).collect();
        assert!(told.len() == 1 && told[0].contains(library) && told[0].contains(wheel), "{}", auto.stderr);
        let by_name = run("cuda").unwrap();
        assert_eq!(by_name.status.code(), Some(78), "{by_name:#?}");
        assert!(by_name.stderr.contains(library) && by_name.stderr.contains(wheel), "{}", by_name.stderr);
        assert!(!Path::new(&folder.path().join(format!("{library}-cuda"))).exists(), "a run was begun");
    }
}

/// A count of one rank, from what its processes counted.
pub(crate) fn count_of_rank(folder: &Path, rank: usize, name: &str) -> f64 {
    let is_of_rank =
        |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{rank}-"));
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let path = files.iter().find(|path| is_of_rank(path)).expect("each rank writes its counts");
    let counts: BTreeMap<String, f64> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    counts.get(name).copied().unwrap_or(0.0)
}

/// A rank that no launcher has bound runs on the CPUs near its GPU, with as many threads, or on all CPUs with `--bind none`. If
/// the test may mount, the system reports a single CPU near the first virtual GPU.
#[test]
#[allow(clippy::print_stdout)]
fn a_rank_runs_on_the_cpus_near_its_gpu() {
    const DEVICES: &str = "/sys/bus/pci/devices";
    let all = CpuSet::for_thread();
    let may_mount =
        Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "tmpfs", DEVICES]).output();
    if all.len() < 2 || Some(all) != CpuSet::online() || !may_mount.is_ok_and(|tried| tried.status.success())
    {
        println!("skipped: needs two CPUs, all of them allowed, and the right to mount");
        return;
    }
    let folder = temp_dir();
    let near = all.iter().last().unwrap();
    let gpu = format!("{DEVICES}/0000:01:00.0");
    let mounted = format!(
        "mount -t tmpfs tmpfs {DEVICES} && mkdir {gpu} && echo {near} >{gpu}/local_cpulist && exec \"$@\""
    );
    let words = |bind: &str| {
        let out = folder.path().join(bind).to_str().unwrap().to_owned();
        let set = ["--set", "train.steps=1", "--out", &out];
        let train = single(&[&["train", "-v", "--device", "cuda", "--bind", bind], &set[..]].concat());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &mounted, "sh"]).arg(train.get_program()).args(train.get_args());
        let outcome = command_under_virtual_gpus(1, &command)?;
        outcome.ok();
        Some(outcome.stderr.lines().find(|line| line.contains(" on CPUs ")).unwrap_or_default().to_owned())
    };
    let Some(bound) = words("auto") else { return };
    assert!(bound.contains(&format!("1 thread on CPUs {near}, those near cuda:0; --bind none")), "{bound}");
    let free = words("none").unwrap();
    assert!(free.contains(&format!("{} threads on CPUs {all}", all.len())), "{free}");
}

/// A capture fails on one rank (in NCCL or at its end, before the first step or later), or its replay gives wrong sums or hangs: all ranks continue without graphs, reach the
/// same results, and report the reason.
#[test]
fn a_failed_capture_on_one_rank_turns_graphs_off_on_all() {
    let folder = temp_dir();
    let weights = |name: &str, graph: &str, fail: &str| {
        let out = folder.path().join(name).to_str().unwrap().to_owned();
        let args = ["train", "--progress", "none", "--device", "cuda", "--cuda-graph", graph, "--out", &out];
        let args = [&args[..], &["--check-timeout", "1"], &RUN].concat();
        let outcome = on_gpus(2, 2, &args, &[("VGPU_FAIL", fail)])?;
        Some((outcome, Path::new(&out).join("model.safetensors")))
    };
    let Some((eager, want)) = weights("eager", "off", "") else { return };
    eager.ok();
    let want = read_weights(&want);
    let faults = [
        ("nccl:capture,rank=1", "rank 1: ", "ncclUnhandledCudaError"),
        // Registered buffers are turned off first.
        ("nccl:sums,captured=1,rank=1", "rank 1: ", "the reduction of gradients gave "),
        // Each rank waits for the other.
        (
            "nccl:hangs,captured=1,rank=1",
            "rank 0: ",
            "the trial of collectives: not done after 1.4 s (a hang)",
        ),
        // The first capture is the trial of events in graphs.
        ("capture:2,rank=1", "rank 1: ", "INVALIDATED"),
        ("capture:3,rank=1", "rank 1: ", "INVALIDATED"),
    ];
    for (index, (fault, rank, reason)) in faults.into_iter().enumerate() {
        let (outcome, model) = weights(&format!("auto{index}"), "auto", fault).unwrap();
        outcome.ok();
        assert_eq!(largest_gap(&read_weights(&model), &want).0, 0.0, "{fault}");
        let said: Vec<&str> =
            outcome.stderr.lines().filter(|line| line.contains("no CUDA graph could be captured")).collect();
        let is_told = |line: &&str| line.contains(reason) && line.contains(rank);
        assert!(said.len() == 1 && said.iter().all(is_told), "{fault}: {}", outcome.stderr);
    }
    let (outcome, _) = weights("on", "on", "nccl:capture,rank=1").unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    assert_eq!(outcome.stderr.matches("hint: --cuda-graph auto").count(), 1, "{}", outcome.stderr);
    let is_of_all = outcome.stderr.lines().any(|line| line.starts_with("error: the step cannot be captured"));
    assert!(is_of_all, "the error of all ranks names one: {}", outcome.stderr);
    // After a failed trial the ranks join anew, which can fail too.
    let (outcome, _) = weights("anew", "auto", "nccl:capture,rank=1,nccl:init=2,rank=1").unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    assert!(outcome.stderr.contains("ncclCommInitRankConfig failed"), "{}", outcome.stderr);
}

/// Everything that reads whole weights gathers the ranks' shards first: evaluations, checkpoints, the replica comparison, the
/// model file.
#[test]
fn a_run_with_weights_in_parts_evaluates_saves_and_resumes() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let settings = [
        "train.precision=bf16",
        "comm.zero=1",
        "train.replica_check_steps=4",
        "train.eval_every_steps=7",
        "checkpoint.every_steps=5",
        "checkpoint.keep_best=eval_accuracy",
    ];
    let set: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
    for more in [&[] as &[&str], &["--set", "train.ema_decay=0.9"]] {
        let (whole, parts) = (path(&format!("whole{}", more.len())), path(&format!("parts{}", more.len())));
        let args = [&["--device", "cuda"], &set[..], more].concat();
        let Some(outcome) = on_gpus(2, 2, &train_args(&whole, &args), &[]) else { return };
        outcome.ok();
        let stop = [&args[..], &["--set", "train.stop_after_steps=9"]].concat();
        let stopped = on_gpus(2, 2, &train_args(&parts, &stop), &[]).unwrap();
        assert_eq!(stopped.status.code(), Some(85), "{stopped:#?}");
        on_gpus(2, 2, &["train", "-q", "--device", "cuda", "--resume", &parts], &[]).unwrap().ok();
        let weights = |run: &str| read_weights(&Path::new(run).join("model.safetensors"));
        let (gap, place) = largest_gap(&weights(&whole), &weights(&parts));
        assert!(gap == 0.0, "{place}: {gap:e} apart");
    }
}
