//! `ddp-train doctor`: a healthy machine, and one that is not, alone, under mpirun and on virtual GPUs.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

use crate::bad_input::harness::{Place, with_mount};
use crate::common::{Outcome, ddp_train, run, run_ok, single, temp_dir};
use crate::virtual_gpu::{command_under_virtual_gpus, under_virtual_gpus};

/// The checks of a host without GPUs, in order.
const CHECKS: [&str; 12] = [
    "world",
    "network",
    "load",
    "versions",
    "device",
    "cores",
    "shared-memory",
    "limits",
    "memory",
    "all-reduce",
    "clock",
    "cpu-quota",
];

/// The lines of the result, whose form is checked.
#[track_caller]
fn lines(stdout: &str) -> Vec<Value> {
    let json: Value = serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    assert!(json["program"].as_str().unwrap().starts_with("ddp-train "), "{json}");
    let lines = json["checks"].as_array().unwrap().clone();
    let order = |line: &Value| ["ok", "warn", "fail"].iter().position(|status| line["status"] == *status);
    for line in &lines {
        let keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert!(
            keys.iter().all(|key| ["check", "status", "found", "remedy", "rank"].contains(key)),
            "{line}"
        );
        let is_ok = order(line).unwrap() == 0;
        assert_eq!(line["remedy"].is_string(), !is_ok, "a line that is not ok has a remedy: {line}");
        assert!(!line["found"].as_str().unwrap().is_empty(), "{line}");
    }
    assert_eq!(order(&json), lines.iter().map(order).max().unwrap(), "{json}");
    lines
}

/// The text of the only line of `check` with this status.
#[track_caller]
fn found<'a>(lines: &'a [Value], check: &str, status: &str) -> &'a str {
    let of: Vec<_> = lines.iter().filter(|line| line["check"] == check && line["status"] == status).collect();
    assert_eq!(of.len(), 1, "{check} {status}: {lines:#?}");
    of[0]["found"].as_str().unwrap()
}

/// The checks that failed.
fn failed(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter(|line| line["status"] == "fail").map(|line| line["check"].as_str().unwrap()).collect()
}

fn without_gpu(mut command: Command) -> Command {
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("VGPU_DEVICES").env_remove("VGPU");
    command
}

#[test]
fn a_healthy_machine_passes_alone() {
    let folder = temp_dir();
    let mut command = without_gpu(single(&["doctor", "--json"]));
    command.current_dir(folder.path());
    let lines = lines(&run_ok(command).stdout);
    let mut checks: Vec<_> = lines.iter().map(|line| line["check"].as_str().unwrap()).collect();
    checks.dedup();
    assert_eq!(checks, [&CHECKS[..], &["out"]].concat());
    assert_eq!(failed(&lines), [""; 0]);
    assert!(found(&lines, "world", "ok").starts_with("1 rank without a launcher, ddp-train "), "{lines:#?}");
    assert!(
        found(&lines, "out", "ok").starts_with("`runs` in `.`: rename and sync work, 8 MiB"),
        "{lines:#?}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");

    let mut command = without_gpu(single(&["doctor", "--out", "x"]));
    command.current_dir(folder.path());
    let text = run_ok(command).stdout;
    assert!(text.starts_with("ok    world         1 rank without a launcher"), "{text}");
    assert!(
        text.ends_with(", 0 fail\n") && text.lines().any(|line| line.starts_with("ok    out ")),
        "{text}"
    );
}

#[test]
fn ranks_are_one_result() {
    let folder = temp_dir();
    let out = folder.path().display().to_string();
    let command = without_gpu(crate::common::ranks(2, &["doctor", "--json", "--out", &out]));
    let outcome = run_ok(command);
    let lines = lines(&outcome.stdout);
    assert_eq!(failed(&lines), [""; 0], "{outcome:#?}");
    let of = |check| found(&lines, check, "ok");
    assert!(of("world").starts_with("2 ranks on host "), "{lines:#?}");
    assert!(of("versions").ends_with(" (all 2 ranks)") && of("device").contains("cpu"), "{lines:#?}");
    assert!(of("shared-memory").starts_with("the ranks exchange data through memory"), "{lines:#?}");
    assert!(
        of("all-reduce").starts_with("right sums over shared memory in host memory: 4 KiB in "),
        "{lines:#?}"
    );
    let clock = lines.iter().find(|line| line["check"] == "clock").unwrap();
    assert!(clock["status"] == "ok" && clock["rank"] == 1, "one host has one clock: {clock}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");
}

#[test]
fn an_output_folder_that_cannot_be_written_fails() {
    let place = Place::new();
    place.write("file", b"");
    let ended = place.run(&["doctor", "--json", "--out", "file/run"]);
    assert_eq!(ended.status, Some(1), "{ended:#?}");
    assert_eq!(failed(&lines(&ended.stdout)), ["out"], "{ended:#?}");
    ended.says_once(&["error: failed: out\n", "\nhint: "]);
    let words = [ddp_train(), "doctor", "--json", "--out", "disk/run"];
    if let Some(ended) = with_mount(&place, "-oro", &words) {
        assert_eq!(ended.status, Some(1), "{ended:#?}");
        let lines = lines(ended.stdout.lines().next().unwrap());
        assert!(found(&lines, "out", "fail").contains("Read-only file system"), "{lines:#?}");
    }
}

/// Processes each of which would be a world of its own, under a launcher that does not fit or one that the environment hides.
#[test]
fn worlds_of_one_are_named() {
    let fails = |mut command: Command, part: &str| {
        // A singleton of Open MPI looks for a remote shell, too.
        command.env("OMPI_MCA_plm", "isolated");
        let outcome = run(without_gpu(command));
        assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
        let lines = lines(outcome.stdout.lines().next().unwrap());
        assert_eq!(failed(&lines), ["world"], "{outcome:#?}");
        assert!(found(&lines, "world", "fail").contains(part), "{lines:#?}");
    };
    let doctor = || single(&["doctor", "--json"]);
    let mut torchrun = doctor();
    torchrun.envs([("MASTER_ADDR", "localhost"), ("RANK", "0"), ("WORLD_SIZE", "2")]);
    fails(torchrun, "MASTER_PORT is not set");
    {
        let mut hidden = Command::new("mpirun");
        hidden.args(["--allow-run-as-root", "-n", "1", "env", "-i", ddp_train(), "doctor", "--json"]);
        fails(hidden, "mpirun has started this process, but its environment is missing");
        let of_rank = |rank: &str| {
            let mut command = doctor();
            command.envs([("PMI_SIZE", "2"), ("PMI_RANK", rank), ("OMPI_MCA_plm", "isolated")]);
            command
        };
        fails(of_rank("0"), "started 2 ranks, but MPI found 1: each would run alone");
        let other = run(without_gpu(of_rank("1")));
        assert!(other.stdout.is_empty() && other.status.code() == Some(1), "{other:#?}");
    }
}

/// Two ranks under mpirun, on `n` virtual GPUs.
fn two_ranks(n: usize, env: &[(&str, &str)]) -> Option<(Outcome, Vec<Value>)> {
    let folder = temp_dir();
    let out = folder.path().display().to_string();
    let mut command = crate::common::ranks(2, &["doctor", "--json", "--out", &out]);
    command.envs(env.iter().copied());
    let outcome = command_under_virtual_gpus(n, &command)?;
    let lines = lines(&outcome.stdout);
    Some((outcome, lines))
}

#[test]
fn ranks_with_gpus_copy_and_sum() {
    let Some((outcome, lines)) = two_ranks(2, &[]) else { return };
    outcome.ok();
    assert!(found(&lines, "device", "ok").starts_with("a GPU of its own: Virtual GPU"), "{lines:#?}");
    assert!(found(&lines, "gpu-memory", "ok").contains(" GiB free"), "{lines:#?}");
    assert!(found(&lines, "kernel-cache", "ok").ends_with("(all 2 ranks)"), "{lines:#?}");
    assert!(
        found(&lines, "gpu-copies", "ok").ends_with("is right, mapped by CUDA IPC (all 2 ranks)"),
        "{lines:#?}"
    );
    let mut sums =
        lines.iter().filter(|line| line["check"] == "all-reduce").map(|line| line["found"].as_str().unwrap());
    assert!(
        sums.next_back().unwrap().starts_with("right sums over nccl in GPU memory: 4 KiB in "),
        "{lines:#?}"
    );
}

#[test]
fn two_ranks_on_one_gpu_fail() {
    let Some((outcome, lines)) = two_ranks(1, &[]) else { return };
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    assert_eq!(failed(&lines), ["device"], "{lines:#?}");
    let text = found(&lines, "device", "fail");
    assert!(text.starts_with("ranks 0 and 1 both use the GPU Virtual GPU (GPU-"), "{text}");
}

#[test]
fn a_wrong_sum_fails() {
    let Some((outcome, lines)) = two_ranks(2, &[("VGPU_FAIL", "nccl:sums,rank=1")]) else { return };
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    assert_eq!(failed(&lines), ["all-reduce"], "{lines:#?}");
    let text = found(&lines, "all-reduce", "fail");
    assert!(text.starts_with("1024 of 1024 sums are wrong over nccl in GPU memory (rank 1 on "), "{text}");
    assert!(outcome.stderr.contains("error: failed: all-reduce\n"), "{outcome:#?}");
}

/// A collective that fails is a result too: the checks after it run, and the hint does not send to this command.
#[test]
fn a_failing_collective_is_a_result() {
    let Some((outcome, lines)) = two_ranks(2, &[("VGPU_FAIL", "nccl:step=2,rank=1")]) else { return };
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    assert_eq!(failed(&lines), ["all-reduce"], "{lines:#?}");
    assert!(found(&lines, "all-reduce", "fail").contains("ncclSystemError"), "{lines:#?}");
    let remedy =
        lines.iter().find_map(|line| line["remedy"].as_str().filter(|text| text.contains("NCCL_DEBUG")));
    assert!(!remedy.unwrap().contains("doctor"), "{lines:#?}");
    assert_eq!(lines.last().unwrap()["check"], "out");
}

#[test]
fn one_process_copies_to_all_gpus() {
    let folder = temp_dir();
    let out = folder.path().display().to_string();
    let Some(outcome) = under_virtual_gpus(2, &["doctor", "--json", "--out", &out], &[]) else { return };
    let lines = lines(outcome.ok());
    assert!(found(&lines, "device", "ok").starts_with("cuda:0: Virtual GPU"), "{lines:#?}");
    assert!(found(&lines, "gpu-copies", "ok").starts_with("copies to 1 other GPU"), "{lines:#?}");
}
