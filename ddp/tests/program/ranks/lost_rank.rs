//! A rank that dies or freezes is named within seconds, and the others end; a pause does not count as a loss.
//! `tests/lost_ranks.py` tests the same in every phase and on several hosts.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Job, children, ranks, run, signal, start, temp_dir, write};

/// Time limit for reporting a loss with a timeout of 1 s.
const DETECTED: Duration = Duration::from_secs(3);
/// Time limit after that for all ranks to end.
const ENDED: Duration = Duration::from_secs(2);

/// Imitates NCCL's own report of the job.
const NCCL_REPORT: &str = "Job summary: 3 processes, 1 of them does not answer";

/// Serves [`NCCL_REPORT`] like NCCL's RAS service, and returns the address.
fn nccl_service() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream);
            for answer in ["SERVER PROTOCOL 2", "OK", NCCL_REPORT] {
                let mut line = String::new();
                // A client that is ended in the meantime is not a failure of the test.
                let _ = lines.read_line(&mut line);
                let _ = writeln!(&stream, "{answer}");
            }
        }
    });
    address
}

/// Starts a run that does not end during a test.
fn endless(out: &Path, n_ranks: usize) -> Job {
    let mut args = vec!["train", "--out", out.to_str().unwrap(), "--quiet", "--threads", "1"];
    let sets = [
        "train.epochs=1000000",
        "model.hidden=[16]",
        "log.every_steps=1",
        "checkpoint.every_epochs=0",
        "watchdog.timeout_s=1",
    ];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    let mut command = ranks(n_ranks, &args);
    command.env("NCCL_RAS_ADDR", nccl_service());
    let job = start(command);
    let metrics = out.join("metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
        assert!(job.started.elapsed() < Duration::from_secs(60), "no step within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    job
}

fn pids(job: &Job) -> Vec<u32> {
    let mut pids = children(job.pid());
    pids.sort_unstable();
    pids
}

/// Sends the signal `name` to rank `victim`, and expects the job to end and report that rank with these words.
#[track_caller]
fn assert_named(name: &str, n_ranks: usize, victim: usize, words: &str) {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let job = endless(&out, n_ranks);
    let pids = pids(&job);
    assert_eq!(pids.len(), n_ranks);
    signal(name, pids[victim]);
    let lost = Instant::now();
    let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
    while pids.iter().any(is_there) {
        assert!(lost.elapsed() < DETECTED + ENDED, "ranks still run {:?} after the loss", lost.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    let stderr = job.wait();
    let (status, stderr) = (stderr.status, stderr.stderr);
    // mpirun may notice a death first, and then returns its own status.
    assert!(
        status.code() == Some(75) || (name == "KILL" && status.code() == Some(137)),
        "{status}\n{stderr}"
    );
    assert_eq!(stderr.matches("error: ").count(), 1, "one rank speaks for all:\n{stderr}");
    let reporter = usize::from(victim == 0);
    assert!(stderr.contains(&format!("[rank {reporter} ")), "not rank {reporter}:\n{stderr}");
    let pid = pids[victim];
    for part in [&format!("error: rank {victim} (host "), &format!(", pid {pid}"), words, "in phase "] {
        assert!(stderr.contains(part), "no {part:?} in:\n{stderr}");
    }
    if name == "STOP" {
        // Then one line about the state of the others.
        let is_of_save = |line: &&str| line.contains("saved the state after step ");
        let last = stderr.trim_end().lines().rfind(|line| !is_of_save(line));
        assert!(last.unwrap().starts_with("hint: "), "not the last line:\n{stderr}");
        assert!(stderr.contains("has saved the state after step "), "{stderr}");
    }
    let events = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let mut events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    // A rank 0 that was frozen may write a step when mpirun wakes it to end it.
    let last = events.rfind(|event| name != "STOP" || event["event"] != "step").unwrap();
    assert_eq!((&last["event"], &last["exit_code"]), (&"failed".into(), &75.into()), "{last}");
    assert_eq!(last["rank"], victim, "{last}");
    let error = last["error"].as_str().unwrap();
    assert!(error.contains(words), "{last}");
    let place = error.split_once("t was ").unwrap().1;
    let step = last["step"].as_u64().map_or("before ".to_owned(), |step| format!("at step {step},"));
    assert!(place.starts_with(&step), "{last}");
    assert_flight(&out, n_ranks, victim, name == "STOP");
    let uses_gpus =
        std::fs::read_to_string(out.join("logs/rank-0.log")).unwrap().contains("one GPU each: cuda:");
    for survivor in (0..n_ranks).filter(|rank| *rank != victim) {
        let log = std::fs::read_to_string(out.join(format!("logs/rank-{survivor}.log"))).unwrap();
        assert!(log.contains(words) && log.contains("last operations of this rank"), "{log}");
        assert!(log.contains(": all_reduce(sum) of "), "{log}");
        // mpirun may end the surviving ranks before NCCL is asked.
        if name == "STOP" {
            let is_asked = survivor == reporter && uses_gpus;
            assert_eq!(log.contains(NCCL_REPORT), is_asked, "rank {survivor}:\n{log}");
        }
    }
}

/// Checks the last operations of the ranks before a loss: those of the rank that reports and, unless the launcher was faster, of all others
/// that were not lost.
#[track_caller]
fn assert_flight(out: &Path, n_ranks: usize, victim: usize, has_all: bool) {
    let text = std::fs::read_to_string(out.join("flight.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let begins: Vec<f64> = lines.iter().map(|line| line["begin_s"].as_f64().unwrap()).collect();
    assert!(begins.is_sorted() && begins.iter().all(|begin| *begin <= 0.0), "{begins:?}");
    let of_rank = |rank: usize| lines.iter().filter(move |line| line["rank"] == rank);
    assert_eq!(of_rank(victim).count(), 0);
    for rank in (0..n_ranks).filter(|rank| *rank != victim) {
        let n_operations = of_rank(rank).count();
        if has_all || rank == usize::from(victim == 0) {
            assert!((10..=200).contains(&n_operations), "rank {rank}: {n_operations} operations");
            let bucket = of_rank(rank)
                .find(|line| line["operation"].as_str().unwrap().starts_with("all_reduce(sum) of "));
            assert!(bucket.unwrap()["bytes"].as_u64().unwrap() > 0);
            // They wait for the lost rank.
            assert!(of_rank(rank).any(|line| line["end_s"].is_null()), "rank {rank}");
            assert!(
                of_rank(rank).any(|line| line["end_s"].as_f64() >= line["begin_s"].as_f64()),
                "rank {rank}"
            );
        }
    }
}

#[test]
fn a_rank_that_died_is_named() {
    assert_named("KILL", 3, 2, "died: its connection closed without a goodbye");
    assert_named("KILL", 3, 0, "died: its connection closed without a goodbye");
}

/// Kills `victim` after the run is complete but before it has left the world; returns its stderr and last event, or `None` if it
/// had left.
fn killed_after_the_end(victim: usize) -> Option<(String, Value)> {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let args = ["train", "--out", out.to_str().unwrap(), "--threads", "1", "--set", "train.epochs=20"];
    let job = start(ranks(2, &args));
    let wait_for = |name: &str| {
        while std::fs::metadata(out.join(name)).map_or(0, |file| file.len()) == 0 {
            assert!(job.started.elapsed() < Duration::from_secs(60), "no {name} within a minute");
            std::thread::yield_now();
        }
    };
    wait_for("metrics.jsonl");
    let pids = pids(&job);
    assert_eq!(pids.len(), 2);
    wait_for("done.json");
    let kill =
        Command::new("sh").args(["-c", &format!("kill -KILL {} 2>&1", pids[victim])]).output().unwrap();
    let outcome = job.wait();
    let events = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let last = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    (kill.status.success() && !outcome.status.success()).then_some((outcome.stderr, last))
}

/// Such a run is complete, so its last event reports no failure.
#[test]
fn a_rank_that_dies_after_the_run_is_complete_fails_nothing() {
    for victim in [0, 1] {
        let (stderr, last) = (0..20).find_map(|_| killed_after_the_end(victim)).expect("killed in time");
        assert_eq!(last["event"], "end", "{last}\n{stderr}");
        // Rank 0, which completed the run, knows this without reading its folder.
        if victim == 1 && stderr.contains("error: rank 1 ") {
            let failed = stderr.split_once("error: rank 1 ").unwrap().1;
            assert!(failed.contains("\nhint: the run is complete, and its model is saved"), "{stderr}");
        }
    }
}

#[test]
fn a_frozen_rank_is_named() {
    assert_named("STOP", 3, 1, "is frozen or cut off: no heartbeat for ");
}

#[test]
fn a_frozen_rank_0_is_named_by_its_deputy() {
    assert_named("STOP", 3, 0, "is frozen or cut off: no heartbeat for ");
}

#[test]
fn a_rank_that_is_waited_for_is_named() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let mut args = vec!["train", "--out", out.to_str().unwrap(), "--progress", "none", "--threads", "1"];
    ["train.epochs=1000000", "log.every_steps=1"].iter().for_each(|set| args.extend(["--set", set]));
    let job = start(ranks(2, &args));
    let until = |file: &str, words: &str| {
        while !std::fs::read_to_string(out.join(file)).is_ok_and(|text| text.contains(words)) {
            assert!(job.started.elapsed() < Duration::from_secs(60), "no {words} within a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("metrics.jsonl", "\"step\":2,");
    let ranks = pids(&job);
    signal("STOP", ranks[1]);
    until("logs/rank-0.log", "waiting for 1 of 2 ranks: 1 ");
    signal("CONT", ranks[1]);
    signal("USR1", ranks[0]);
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(85), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("waiting for").count(), 1, "{}", outcome.stderr);
}

#[test]
fn a_pause_of_a_second_ends_nothing() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let job = endless(&out, 2);
    let ranks = pids(&job);
    for pid in &ranks {
        signal("STOP", *pid);
        std::thread::sleep(Duration::from_secs(1));
        signal("CONT", *pid);
    }
    std::thread::sleep(Duration::from_millis(300));
    signal("USR1", ranks[1]);
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(85), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("error: "), "{}", outcome.stderr);
}

/// Replaces MPI's finalization: rank 0 is killed in it, and the others stay in it, as after a Ctrl-C, when mpirun kills ranks one
/// by one.
const KILLED_IN_FINALIZE: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int MPI_Finalize(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank) return 0;
    if (rank[0] == '0') kill(getpid(), SIGKILL);
    for (;;) pause();
}
"#;

#[test]
fn ranks_that_have_saved_may_end_in_any_order() {
    let folder = temp_dir();
    let source = write(folder.path(), "finalize.c", KILLED_IN_FINALIZE);
    let library = folder.path().join("finalize.so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: needs a C compiler, `cc`");
        return;
    }
    let out = folder.path().join("out");
    let args = ["train", "--out", out.to_str().unwrap(), "--threads", "1", "--set", "model.hidden=[16]"];
    let mut command = ranks(2, &[&args[..], &["--set", "train.stop_after_steps=3"]].concat());
    command.env("LD_PRELOAD", &library);
    let stderr = run(command).stderr;
    assert!(stderr.contains("checkpoint saved"), "{stderr}");
    assert!(!stderr.contains("died") && !stderr.contains("error: "), "{stderr}");
}
