//! Failures of virtual GPUs and of NCCL under the program: each is named, with a hint, and ends all ranks.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use super::program::{count_of_rank, on_gpus, train_args};
use crate::common::{ddp_train, read_weights, same_bits, temp_dir};
use crate::virtual_gpu::{command_under_virtual_gpus, under_virtual_gpus};

#[test]
fn memory_that_is_short_is_told_with_who_holds_how_much() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let args = ["train", "-q", "--device", "cuda", "--out", &out, "--set", "model.hidden=[2048,2048]"];
    // 16 MiB of weights, 16 MiB of gradients, and 32 MiB for AdamW exceed 48 MiB, of which matmuls take 32.
    let Some(outcome) = under_virtual_gpus(1, &args, &[("VGPU_MEMORY", "50331648")]) else { return };
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    for part in ["out of memory on cuda:0", "parameters 16", "MiB free on the device", "hint: "] {
        assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
    }
}

/// If a device fails in the middle of a step, the run ends with the driver's message and a hint.
#[test]
fn a_failing_device_is_named() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let args = train_args(&out, &["--device", "cuda"]);
    let Some(outcome) = under_virtual_gpus(1, &args, &[("VGPU_FAIL", "ecc:300")]) else { return };
    // What starts the job again may give it another device.
    assert_eq!(outcome.status.code(), Some(75), "{outcome:#?}");
    assert!(outcome.stderr.contains("cuda:0: ") && outcome.stderr.contains("ECC"), "{outcome:#?}");
    // The card to take out of service.
    assert!(
        [" on Virtual GPU, GPU-", ", PCI 0000:", ", host "].iter().all(|part| outcome.stderr.contains(part)),
        "{outcome:#?}"
    );
    assert!(outcome.stderr.contains("hint: the device's memory is faulty"), "{outcome:#?}");
}

/// A GPU that breaks in two attempts is left out of the third one, where fewer ranks are allowed.
#[test]
fn a_gpu_that_fails_twice_is_left_out() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let train = ["--device", "cuda", "--out", &out, "--set", "train.steps=60", "--set", "log.every_steps=1"];
    for (min_ranks, status) in [("1", 0), ("2", 1), ("3", 2)] {
        let launch =
            ["launch", "-n", "2", "--min-ranks", min_ranks, "--max-restarts", "3", "--", "--overwrite"];
        let args = [&launch[..], &train].concat();
        let Some(outcome) = under_virtual_gpus(2, &args, &[("VGPU_FAIL", "ecc:300,rank=1")]) else { return };
        assert_eq!(outcome.status.code(), Some(status), "{min_ranks}: {outcome:#?}");
        let is_refused = outcome.stderr.contains("--min-ranks 3: the job has 2 ranks");
        assert_eq!(is_refused, status == 2, "{min_ranks}: {outcome:#?}");
        let is_left_out = outcome.stderr.contains(" has failed twice and is left out");
        assert_eq!(is_left_out, min_ranks == "1", "{min_ranks}: {outcome:#?}");
        assert_eq!(
            outcome.stderr.contains("on 1 rank of this host"),
            is_left_out,
            "{min_ranks}: {outcome:#?}"
        );
    }
}

/// A ReLU of NaN is 0 where cuBLASLt computes it: the loss stays finite while the weights in front of it are not numbers.
#[test]
fn weights_that_are_not_finite_end_a_run_although_a_relu_hides_them() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let sets =
        ["model.hidden=[256,256,64,64]", "optimizer.kind=sgd", "optimizer.lr=1e19", "log.every_steps=100"];
    for zero in ["comm.zero=0", "comm.zero=1"] {
        let sets = sets.iter().chain([&zero]).flat_map(|set| ["--set", *set]);
        let launch = [
            "launch",
            "-n",
            "2",
            "--max-restarts",
            "0",
            "--",
            "--overwrite",
            "--device",
            "cuda",
            "--out",
            &out,
        ];
        let args: Vec<_> = launch.into_iter().chain(sets).collect();
        let Some(outcome) = under_virtual_gpus(2, &args, &[]) else { return };
        assert_eq!(outcome.status.code(), Some(1), "{zero}: {outcome:#?}");
        assert!(outcome.stderr.contains("error: loss is NaN at step "), "{zero}: {outcome:#?}");
        let named = ["rank 0: the weights `layers.", ".weight` are not finite"];
        assert!(named.iter().all(|text| outcome.stderr.contains(text)), "{zero}: {outcome:#?}");
    }
}

/// A process that is killed, whose GPU breaks, or for which NCCL fails, at any place of a step costs no complete step, whose update is in one
/// piece: the other rank gives up the collective that never ends and saves. A rank that still can says why it ends. Buckets of the third run are updated one after
/// the other: a state in which some are is not saved.
#[test]
fn survivors_on_gpus_save_what_a_lost_or_broken_rank_cannot_take_with_it() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let job = |name: &str, more: &[&str], env: &[(&str, &str)]| {
        let out = path(name);
        let launch = ["launch", "--launcher", "env", "-n", "2", "--max-restarts", "0", "--"];
        let train = ["-q", "--device", "cuda", "--resume", "auto", "--out", &out];
        let sets = ["train.epochs=6", "log.every_steps=1", "checkpoint.every_epochs=0"];
        let sets = sets.iter().chain(more).flat_map(|set| ["--set", *set]);
        // What the first run has compiled and chosen does not come before the steps of the others.
        let cache = path("cache");
        let env = [&[("DDP_TRAIN_CACHE", cache.as_str())], env].concat();
        under_virtual_gpus(2, &launch.into_iter().chain(train).chain(sets).collect::<Vec<_>>(), &env)
    };
    let batch_norm = r#"model.layers=[{kind="linear",out_features=48},{kind="batch_norm"}]"#;
    let kinds: [(&str, &[&str]); 3] = [
        ("plain", &["model.hidden=[48,32]"]),
        ("averaged", &[batch_norm, "train.ema_decay=0.9", "train.clip_grad_norm=1.0"]),
        ("buckets", &["model.hidden=[48,32]", "comm.bucket_mib=0.005"]),
    ];
    for (kind, more) in kinds {
        let whole = format!("{kind}-whole");
        let Some(outcome) = job(&whole, more, &[]) else { return };
        outcome.ok();
        let weights = |name: &str| read_weights(&Path::new(&path(name)).join("model.safetensors"));
        let mut n_saved = 0;
        for (fault, rank) in [
            ("kill:401", 1),
            ("kill:406", 1),
            ("kill:413", 1),
            ("ecc:404", 1),
            ("ecc:409", 0),
            ("nccl:step=30", 1),
        ] {
            let name = format!("{kind}-{}", fault.replace([':', '='], "-"));
            let killed = job(&name, more, &[("VGPU_FAIL", &format!("{fault},rank={rank}"))]).unwrap();
            assert_eq!(killed.status.code(), Some(75), "{name}: {killed:#?}");
            let has_said = killed.stderr.contains(&format!("[rank {rank} "));
            assert_eq!(has_said, !fault.starts_with("kill"), "{name}: {}", killed.stderr);
            let saved = format!("rank {} has saved the state after step ", 1 - rank);
            let has_saved = killed.stderr.contains(&saved);
            n_saved += usize::from(has_saved);
            assert!(has_saved || kind == "buckets", "{name}: {}", killed.stderr);
            job(&name, more, &[]).unwrap().ok();
            assert!(same_bits(&weights(&name), &weights(&whole)), "{name}: {}", killed.stderr);
        }
        assert!(n_saved > 0, "{kind}");
    }
}

/// Where NCCL fails on every rank, as when a network breaks, each still holds the state.
#[test]
fn nccl_that_fails_on_all_ranks_costs_no_complete_step() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let job = |name: &str, env: &[(&str, &str)]| {
        let (out, cache) = (path(name), path("cache"));
        let train = ["train", "-q", "--device", "cuda", "--resume", "auto", "--out", &out];
        let sets =
            ["--set", "train.epochs=4", "--set", "log.every_steps=1", "--set", "checkpoint.every_epochs=0"];
        on_gpus(3, 3, &[&train[..], &sets].concat(), &[&[("DDP_TRAIN_CACHE", cache.as_str())], env].concat())
    };
    let Some(outcome) = job("whole", &[]) else { return };
    outcome.ok();
    let weights = |name: &str| read_weights(&Path::new(&path(name)).join("model.safetensors"));
    for (name, fault) in [("all", "nccl:step=40"), ("first", "nccl:step=40,rank=0")] {
        let failed = job(name, &[("VGPU_FAIL", fault)]).unwrap();
        assert_eq!(failed.status.code(), Some(75), "{failed:#?}");
        for part in ["ncclSystemError", "rank 0 has saved the state after step ", "no complete step is lost"]
        {
            assert!(failed.stderr.contains(part), "{name}: no {part:?} in {}", failed.stderr);
        }
        assert_eq!(failed.stderr.matches(" has saved the state").count(), 1, "{name}: {}", failed.stderr);
        job(name, &[]).unwrap().ok();
        assert!(same_bits(&weights(name), &weights("whole")), "{name}: {}", failed.stderr);
    }
}

/// Shards of a killed rank come from copies that another one has refreshed: a loss at any moment, also within a refresh, costs no more steps
/// than lie between two of them, and the run that goes on has the bits of an undisturbed one.
#[test]
fn survivors_on_gpus_save_the_shards_of_a_killed_rank_from_refreshed_copies() {
    const EVERY: u64 = 4;
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let job = |name: &str, n_ranks: usize, more: &[&str], env: &[(&str, &str)]| {
        let (out, cache, n) = (path(name), path("cache"), n_ranks.to_string());
        let launch = ["launch", "--launcher", "env", "-n", &n, "--max-restarts", "0", "--"];
        let train = ["-q", "--device", "cuda", "--resume", "auto", "--out", out.to_str().unwrap()];
        let copies = format!("comm.zero_copies_every_steps={EVERY}");
        let sets = ["train.epochs=5", "log.every_steps=1", "checkpoint.every_epochs=0", "comm.zero_copies=1"];
        let sets = sets.iter().copied().chain([copies.as_str()]).chain(more.iter().copied());
        let args: Vec<&str> =
            launch.into_iter().chain(train).chain(sets.flat_map(|set| ["--set", set])).collect();
        let env = [&[("DDP_TRAIN_CACHE", cache.to_str().unwrap())], env].concat();
        under_virtual_gpus(n_ranks, &args, &env)
    };
    let last_step = |name: &str| {
        let events = std::fs::read_to_string(path(name).join("metrics.jsonl")).unwrap_or_default();
        let events = events.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        events
            .filter(|event| event["event"] == "step")
            .filter_map(|event| event["step"].as_u64())
            .max()
            .unwrap_or(0)
    };
    let evaluated = |name: &str| -> Vec<u64> {
        let events = std::fs::read_to_string(path(name).join("metrics.jsonl")).unwrap();
        let events = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let evaluations = events.filter(|event| event["event"] == "eval" || event["event"] == "epoch");
        evaluations.map(|event| event["step"].as_u64().unwrap()).collect()
    };
    let saved_step = |name: &str| {
        let steps = std::fs::read_dir(path(name).join("checkpoints")).unwrap();
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
        steps
            .filter_map(|entry| name(entry.unwrap()).strip_prefix("step-")?.parse::<u64>().ok())
            .max()
            .unwrap_or(0)
    };
    let batch_norm = r#"model.layers=[{kind="linear",out_features=48},{kind="batch_norm"}]"#;
    let kinds: [(&str, usize, &[&str]); 3] = [
        ("first", 2, &["comm.zero=1", "model.hidden=[48,32]", "train.precision=bf16", "optimizer.kind=muon"]),
        ("second", 3, &["comm.zero=2", batch_norm, "train.ema_decay=0.9", "train.clip_grad_norm=1.0"]),
        (
            "buckets",
            4,
            // After a state is kept it is evaluated, and the best one is not the last.
            &[
                "comm.zero=1",
                "model.hidden=[48,32]",
                "comm.bucket_mib=0.005",
                "train.eval_every_steps=4",
                "optimizer.lr=0.1",
            ],
        ),
    ];
    for (kind, n_ranks, more) in kinds {
        let whole = format!("{kind}-whole");
        let Some(outcome) = job(&whole, n_ranks, more, &[]) else { return };
        outcome.ok();
        let weights = |name: &str| read_weights(&path(name).join("model.safetensors"));
        let mut n_saved = 0;
        for (index, at) in [403, 460, 517, 571].into_iter().enumerate() {
            let (name, rank) = (format!("{kind}-{at}"), index % n_ranks);
            let fault = format!("{}:{at},rank={rank}", if index == 2 { "ecc" } else { "kill" });
            let killed = job(&name, n_ranks, more, &[("VGPU_FAIL", &fault)]).unwrap();
            assert_eq!(killed.status.code(), Some(75), "{name}: {killed:#?}");
            let (reached, saved) = (last_step(&name), saved_step(&name));
            assert!(
                saved % EVERY == 0 && reached <= saved + EVERY,
                "{name}: {saved} of {reached}: {}",
                killed.stderr
            );
            n_saved += usize::from(killed.stderr.contains(": the newest that the ranks held copies of"));
            job(&name, n_ranks, more, &[]).unwrap().ok();
            assert_eq!(evaluated(&name), evaluated(&whole), "{name}");
            assert!(same_bits(&weights(&name), &weights(&whole)), "{name}: {}", killed.stderr);
        }
        assert!(n_saved > 1, "{kind}");
    }
}

/// Copies of shards are on another host, so that all ranks of one may be lost together. The hosts are namespaces with names of their own.
#[test]
fn survivors_on_gpus_save_the_shards_of_a_killed_host() {
    const RANKS: &str = r#"for rank in 0 1 2 3; do
        export RANK=$rank LOCAL_RANK=$((rank % 2))
        if [ $((rank / 2)) = "$KILLED" ]; then export VGPU_FAIL=kill:700; else unset VGPU_FAIL; fi
        unshare --uts sh -c 'hostname "$0" && exec "$@"' host$((rank / 2)) "$@" &
    done
    wait"#;
    let named = Command::new("unshare").args(["--uts", "hostname", "host0"]).output();
    if !named.is_ok_and(|output| output.status.success()) {
        println!("skipped: needs the right to name a host");
        return;
    }
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let job = |name: &str, killed: &str| {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("sh");
        command.args(["-c", RANKS, "sh"]).arg(ddp_train());
        command.args(["train", "-q", "--device", "cuda", "--resume", "auto", "--threads", "1", "--out"]);
        command.arg(path(name));
        let sets = "train.epochs=5 log.every_steps=1 checkpoint.every_epochs=0 model.hidden=[48,32] comm.zero=2 comm.zero_copies=1 \
                    comm.zero_copies_every_steps=4";
        command.args(sets.split_whitespace().flat_map(|set| ["--set", set]));
        command.envs([("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
        command
            .env("MASTER_PORT", port.to_string())
            .env("KILLED", killed)
            .env("DDP_TRAIN_CACHE", path("cache"));
        command_under_virtual_gpus(2, &command)
    };
    let weights = |name: &str| read_weights(&path(name).join("model.safetensors"));
    let Some(whole) = job("whole", "") else { return };
    whole.ok();
    // The second rank of the first host may be in front of the work that it would die at.
    for (killed, savers) in [("0", ["rank 2", "rank 1"]), ("1", ["rank 0", "rank 0"])] {
        let lost = job(killed, killed).unwrap();
        let has_saved =
            |saver: &&str| lost.stderr.contains(&format!("{saver} has saved the state after step "));
        assert!(savers.iter().any(has_saved), "{lost:#?}");
        job(killed, "").unwrap().ok();
        assert!(same_bits(&weights(killed), &weights("whole")), "{killed}: {}", lost.stderr);
    }
}

/// A collective that fails on one rank ends all of them; the message names NCCL and how to get more information. The same holds
/// for graphs with collectives, for which NCCL's abort waits up to 2.21, and for an abort that returns before its work is over.
#[test]
fn a_failing_collective_ends_the_job() {
    let folder = temp_dir();
    for (version, graph) in [("23003", "off"), ("22005", "on"), ("22703", "on")] {
        let out = folder.path().join(version).to_str().unwrap().to_owned();
        let args = train_args(&out, &["--device", "cuda", "--cuda-graph", graph]);
        let env = [("VGPU_FAIL", "nccl:step=20,rank=1"), ("VGPU_NCCL_VERSION", version)];
        let Some(outcome) = on_gpus(2, 2, &args, &env) else { return };
        assert!(!outcome.status.success(), "{outcome:#?}");
        for part in ["ncclSystemError", "NCCL_DEBUG", "rank 1 on cuda:1"] {
            assert!(outcome.stderr.contains(part), "NCCL {version}: no {part} in {}", outcome.stderr);
        }
        assert!(
            !outcome.stderr.contains("aborting the communicator failed"),
            "{version}: {}",
            outcome.stderr
        );
    }
}

/// Rank 0 never enters a collective of a step, and rank 1 fails by itself in the next step: it reports that before anything waits
/// for its device, whose work never ends.
#[test]
fn an_error_of_one_rank_is_told_though_its_device_waits_for_another() {
    let folder = temp_dir();
    let run = |name: &str, steps: &str, env: &[(&str, &str)]| {
        let out = folder.path().join(name).to_str().unwrap().to_owned();
        let mut args = vec!["train", "-q", "--device", "cuda", "--cuda-graph", "off", "--out", &out];
        args.extend(["--set", "data.eval=none", "--set", "checkpoint.every_epochs=0", "--set", steps]);
        on_gpus(2, 2, &args, env)
    };
    let counted = |name: &str, steps: &str| {
        let counts = folder.path().join(format!("counts-{name}"));
        std::fs::create_dir(&counts).unwrap();
        run(name, steps, &[("VGPU_COUNTS", counts.to_str().unwrap())])?.ok();
        let count = |call: &str| count_of_rank(&counts, 1, call);
        let collectives = ["ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast"];
        Some([count("cuLaunchKernel") + count("cuLaunchKernelEx"), collectives.into_iter().map(count).sum()])
    };
    let Some([launches, collectives]) = counted("six", "train.steps=6") else { return };
    let [more_launches, more_collectives] = counted("seven", "train.steps=7").unwrap();
    let (of_step, n) = (more_launches - launches, more_collectives - collectives);
    assert!(of_step >= 4.0 && n >= 1.0, "{of_step} launches and {n} collectives in a step");
    let fail = format!("nccl:hang={collectives},rank=0,launch:{},rank=1", (launches + 0.5 * of_step).floor());
    let outcome = run("failed", "train.steps=20", &[("VGPU_FAIL", &fail), ("VGPU_TIMEOUT", "30")]).unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{fail}: {outcome:#?}");
    assert!(
        outcome.stderr.contains("[rank 1 ") && outcome.stderr.contains("LAUNCH_OUT_OF_RESOURCES"),
        "{fail}: {}",
        outcome.stderr
    );
    assert!(!outcome.stderr.contains("no progress"), "{fail}: {}", outcome.stderr);
}

/// Graphs are destroyed before the communicator is aborted. A driver call that never returns from this hides no error message.
/// The first three graphs, and nine collectives and more, belong to the trials before the first step.
#[test]
fn an_error_of_a_replayed_step_is_told_though_its_graph_can_not_be_destroyed() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let args =
        ["train", "-q", "--device", "cuda", "--cuda-graph", "on", "--set", "train.steps=40", "--out", &out];
    let fail = "nccl:step=29,rank=1,graph-destroy:4,rank=1";
    let Some(outcome) = on_gpus(2, 2, &args, &[("VGPU_FAIL", fail)]) else { return };
    assert_eq!(outcome.status.code(), Some(75), "{outcome:#?}");
    assert!(outcome.stderr.contains("fault on request: graph-destroy"), "{}", outcome.stderr);
    let is_told = |line: &str| line.starts_with("[rank 1") && line.contains("ncclSystemError");
    assert!(outcome.stderr.lines().any(is_told), "{}", outcome.stderr);
}

/// A communicator that takes long to end is waited for; one that does not come to its end is a warning, since the run is complete.
#[test]
fn a_slow_end_of_nccl_is_no_failure_of_a_complete_run() {
    let folder = temp_dir();
    let run = |seconds: u32| {
        let out = folder.path().join(seconds.to_string()).to_str().unwrap().to_owned();
        let mut args = vec!["train", "--progress", "none", "--device", "cuda", "--cuda-graph", "off"];
        args.extend(["--set", "train.steps=2", "--out", &out]);
        let fail = format!("nccl:slow-destroy={seconds},rank=1");
        Some((on_gpus(2, 2, &args, &[("VGPU_FAIL", &fail)])?, Path::new(&out).join("done.json").exists()))
    };
    let late = "ncclCommDestroy has not returned after 15.2 s";
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| run(6));
        let endless = scope.spawn(|| run(120));
        let Some((slow, is_done)) = slow.join().unwrap() else { return };
        slow.ok();
        assert!(is_done && !slow.stderr.contains("ncclCommDestroy"), "{slow:#?}");
        let (endless, is_done) = endless.join().unwrap().unwrap();
        endless.ok();
        let told: Vec<_> = endless.stderr.lines().filter(|line| line.contains(late)).collect();
        assert!(is_done && told.len() == 1 && told[0].contains("rank 1 on cuda:1"), "{endless:#?}");
    });
}

/// The usual first errors on a new machine come with a hint, and a GPU instance has its own UUID.
#[test]
fn errors_of_a_new_machine_are_told_with_a_way_out() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let args = ["train", "-q", "--device", "cuda", "--out", &out];
    let has_uvm = Path::new("/dev/nvidia-uvm").exists();
    let of_unknown = if has_uvm { "nvidia-smi" } else { "no /dev/nvidia-uvm: run nvidia-modprobe" };
    let cases = [
        (("VGPU_FAIL", "driver:802"), "nvidia-fabricmanager"),
        (("VGPU_FAIL", "driver:803"), "restart the machine"),
        (("VGPU_FAIL", "driver:804"), "take cuda/compat out of LD_LIBRARY_PATH"),
        (("VGPU_FAIL", "driver:999"), of_unknown),
        (("VGPU_FAIL", "context:46"), "nvidia-smi -c DEFAULT"),
        (("CUDA_VISIBLE_DEVICES", "MIG-00000000-0000-0000-0000-000000000000"), "nvidia-smi -L"),
    ];
    for (variable, way_out) in cases {
        let Some(outcome) = under_virtual_gpus(1, &args, &[variable]) else { return };
        assert!(!outcome.status.success(), "{variable:?}: {outcome:#?}");
        assert!(outcome.stderr.contains(way_out), "{variable:?}: no {way_out} in {}", outcome.stderr);
    }
    let uuid = "MIG-76697274-7561-6c20-4750-552020203031";
    let env = [("VGPU_MIG", "1"), ("CUDA_VISIBLE_DEVICES", uuid)];
    let listed = under_virtual_gpus(4, &["devices", "--json"], &env).unwrap();
    let listed: serde_json::Value = serde_json::from_str(listed.ok()).unwrap();
    assert_eq!(listed["gpus"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["gpus"][0]["uuid"], uuid);
}
