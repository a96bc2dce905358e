//! `comm.register_buffers` on virtual GPUs: which buffers are registered, which rank reports a failure, and stopping and resuming
//! with gradients in bf16.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use super::program::{counts, on_gpus};
use crate::common::{Outcome, read_weights, same_bits, temp_dir};

const RUN: &str = "train --device cuda --progress plain --set train.steps=12 --set data.eval=none \
                   --set checkpoint.every_epochs=0 --set model.hidden=[48,32] --set train.global_batch_size=96";

fn train(n_gpus: usize, n_ranks: usize, out: &Path, line: &str, env: &[(&str, &str)]) -> Option<Outcome> {
    let line = format!("{RUN} --out {} {line}", out.display());
    let args: Vec<&str> = line.split_whitespace().collect();
    on_gpus(n_gpus, n_ranks, &args, env)
}

/// Collectives in registered buffers (all of similar size) of a successful run, and its stderr.
/// Ranks join once.
fn registered(n_gpus: usize, n_ranks: usize, line: &str, env: &[(&str, &str)]) -> Option<(f64, String)> {
    let folder = temp_dir();
    let counted = folder.path().join("counts");
    std::fs::create_dir(&counted).unwrap();
    let env: Vec<_> = env.iter().copied().chain([("VGPU_COUNTS", counted.to_str().unwrap())]).collect();
    let outcome = train(n_gpus, n_ranks, &folder.path().join("out"), line, &env)?;
    outcome.ok();
    let counts = counts(&counted);
    assert_eq!(counts.get("ncclCommInitRankConfig"), Some(&(n_ranks as f64)), "{counts:?}");
    Some((counts.get("nccl_registered").copied().unwrap_or(0.0), outcome.stderr))
}

#[test]
fn gradients_and_gathered_weights_are_registered() {
    // Calls of NCCL in single steps and in captures, on both ranks.
    for (zero, least) in [(0, 2.0), (1, 4.0), (2, 4.0)] {
        let line = format!("--cuda-graph off --set comm.zero={zero}");
        let Some((n, stderr)) = registered(2, 2, &line, &[]) else { return };
        // Gradients of each step, and with sharding also weights.
        assert!(n >= least * 12.0, "{n} with ZeRO {zero}");
        assert!(!stderr.contains("registered"), "{stderr}");
        let off = format!("{line} --set comm.register_buffers=off");
        assert_eq!(registered(2, 2, &off, &[]).unwrap().0, 0.0);
    }
}

#[test]
fn ranks_on_one_gpu_register_on_request_alone() {
    let Some((n, _)) = registered(1, 2, "--share-gpu", &[]) else { return };
    assert_eq!(n, 0.0);
    assert!(registered(1, 2, "--share-gpu --set comm.register_buffers=on", &[]).unwrap().0 > 0.0);
}

/// If one rank cannot register, no rank does; if registration was requested explicitly, one rank reports an error.
#[test]
fn a_rank_that_cannot_register_keeps_all_from_it() {
    let older = [("VGPU_NCCL_VERSION", "21805")];
    let failing = [("VGPU_FAIL", "nccl:register,rank=1")];
    for (env, reason) in [
        (&older, "NCCL is 2.18.5, and registers buffers from 2.19.0 on"),
        (&failing, "rank 1: ncclCommRegister failed"),
    ] {
        let Some((n, stderr)) = registered(2, 2, "-v", env) else { return };
        assert_eq!(n, 0.0);
        let said = "debug: buffers are not registered with NCCL: ";
        assert!(stderr.contains(said) && stderr.contains(reason), "{stderr}");
        assert!(!registered(2, 2, "", env).unwrap().1.contains(said), "at -v alone");
        let folder = temp_dir();
        let line = "--set comm.register_buffers=on";
        let outcome = train(2, 2, &folder.path().join("out"), line, env).unwrap();
        assert!(!outcome.status.success(), "{outcome:#?}");
        let text = "NCCL cannot register the buffers of collectives: ";
        assert_eq!(outcome.stderr.matches(text).count(), 1, "{outcome:#?}");
        assert!(outcome.stderr.contains(reason), "{outcome:#?}");
        assert!(outcome.stderr.contains("hint: comm.register_buffers"), "{outcome:#?}");
    }
}

/// NCCL 2.21 takes 512 MiB for each buffer on a machine with a switch: that is found, and registration takes a request; then the
/// account of memory is that of the device.
#[test]
fn large_steps_of_memory_are_found() {
    let older = [("VGPU_NCCL_VERSION", "22105")];
    let Some((n, stderr)) = registered(2, 2, "-v", &older) else { return };
    assert_eq!(n, 0.0);
    let said = "buffers are not registered with NCCL: it takes memory in steps of 512 MiB";
    assert!(stderr.contains(said), "{stderr}");
    let (n, stderr) = registered(2, 2, "-v --set comm.register_buffers=on", &older).unwrap();
    assert!(n > 0.0);
    let in_use =
        stderr.lines().find(|line| line.contains("bytes of GPU memory by use: ")).unwrap_or_default();
    assert!(in_use.contains("gradients 5368709"), "{stderr}");
}

/// Before the first step the collectives of a step are tried in their buffers, at once and as graphs. If one fails or gives wrong
/// values on any rank, all ranks create new communicators without registration, and the run has the same weights as one that never
/// registered.
#[test]
fn registered_buffers_that_give_wrong_sums_are_not_used() {
    let weights = |name: &str, line: &str, fault: &str| {
        let folder = temp_dir();
        let out = folder.path().join(name);
        let outcome = train(2, 2, &out, line, &[("VGPU_FAIL", fault)])?;
        let weights = outcome.status.success().then(|| read_weights(&out.join("model.safetensors")));
        Some((outcome, weights))
    };
    let gradients = "the reduction of gradients gave ";
    for (zero, fault, reason) in [
        (0, "nccl:registered-sums", &format!("rank 0: {gradients}") as &str),
        (0, "nccl:registered-sums,rank=1", &format!("rank 1: {gradients}")),
        // Gradients have 20 kB, the sums of a step with ZeRO a few bytes.
        (1, "nccl:registered-sums,rank=1,min=8000", gradients),
        (2, "nccl:registered-sums,captured=1", gradients),
        (0, "nccl:registered-sums,rank=1,captured=1,min=8000", gradients),
        (0, "nccl:registered,rank=1", "rank 1: "),
        (1, "nccl:registered,rank=1", "rank 1: "),
        // Without graphs, too: the ranks join three times.
        (1, "nccl:registered-sums,rank=1,nccl:capture,rank=1", gradients),
    ] {
        let stage = format!("--set comm.zero={zero} ");
        let off = format!("{stage} --set comm.register_buffers=off");
        let Some((_, want)) = weights("off", &off, "") else { return };
        let want = want.unwrap();
        let (outcome, weights_without) = weights("auto", &stage, fault).unwrap();
        outcome.ok();
        let warning = "warning: NCCL fails with registered buffers, and does without them: ";
        let said: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains(warning)).collect();
        assert!(said.len() == 1 && said[0].contains(reason), "{fault}: {}", outcome.stderr);
        assert!(same_bits(&weights_without.unwrap(), &want), "{fault}");
        let (outcome, _) = weights("on", &format!("{stage} --set comm.register_buffers=on"), fault).unwrap();
        assert!(!outcome.status.success(), "{fault}: {outcome:#?}");
        assert!(outcome.stderr.contains(reason), "{fault}: {}", outcome.stderr);
        let hint = "comm.register_buffers = \"auto\" or \"off\"";
        assert_eq!(outcome.stderr.matches(hint).count(), 1, "{}", outcome.stderr);
    }
}

/// A rank never enters a collective in registered buffers, at once or in a graph: the wait is bounded, all ranks join anew without
/// registration, and the run has the same weights as one that never registered.
#[test]
fn registered_buffers_whose_collectives_hang_are_not_used() {
    for (zero, fault) in [(0, "nccl:registered-hang,rank=1"), (1, "nccl:registered-hang,rank=1,captured=1")] {
        let folder = temp_dir();
        let (hung, off) = (folder.path().join("hung"), folder.path().join("off"));
        let line = format!("--check-timeout 1.5 --set comm.zero={zero}");
        let started = Instant::now();
        let Some(outcome) = train(2, 2, &hung, &line, &[("VGPU_FAIL", fault)]) else { return };
        outcome.ok();
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        let warning = "warning: NCCL fails with registered buffers, and does without them: ";
        let said: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains(warning)).collect();
        let is_told =
            said.len() == 1 && said[0].contains("a hang") && said[0].contains("not done after 1.9 s");
        assert!(is_told, "{fault}: {}", outcome.stderr);
        let features = "GPU features that are off (docs/gpus.md): registered-buffers\n";
        assert!(outcome.stderr.contains(features), "graphs stay on: {}", outcome.stderr);
        train(2, 2, &off, &format!("{line} --set comm.register_buffers=off"), &[]).unwrap().ok();
        let weights = |out: &Path| read_weights(&out.join("model.safetensors"));
        assert!(same_bits(&weights(&hung), &weights(&off)), "{fault}");
    }
}

/// Matmuls write gradients in bf16; a run that stops and resumes has the same bits as an uninterrupted one.
#[test]
fn a_run_with_gradients_in_bf16_resumes_with_the_same_bits() {
    const BF16: &str = "--set train.precision=bf16 --set comm.dtype=bf16 --set train.deterministic=true \
                        --set comm.bucket_mib=0.004";
    for (n, zero) in [(3, 0), (4, 1)] {
        let folder = temp_dir();
        let line = format!("{BF16} --set comm.zero={zero}");
        let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
        let Some(outcome) = train(n, n, &whole, &line, &[]) else { return };
        outcome.ok();
        let stopping = format!("{line} --set train.stop_after_steps=7");
        assert_eq!(train(n, n, &parts, &stopping, &[]).unwrap().status.code(), Some(85));
        train(n, n, &parts, &format!("{line} --resume auto"), &[]).unwrap().ok();
        let weights = |out: &Path| read_weights(&out.join("model.safetensors"));
        assert!(same_bits(&weights(&parts), &weights(&whole)), "{n} GPUs, ZeRO {zero}");
    }
}
