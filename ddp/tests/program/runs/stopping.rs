//! Signals: for any of them, on any rank, the step completes, the run is saved, and all ranks exit with the same status.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Job, Outcome, ddp_train, run, signal, single, start, temp_dir};
use crate::common::{children, ranks};

/// Exit status of a run that has saved and stopped.
const SAVED: i32 = 85;
const INTERRUPTED: i32 = 130;

/// Arguments of a run that does not end during a test.
fn endless<'a>(out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "--out", out.to_str().unwrap(), "--progress", "plain", "--threads", "1"];
    for set in ["train.epochs=1000000", "model.hidden=[16]", "log.every_steps=1", "checkpoint.every_epochs=0"]
    {
        args.extend(["--set", set]);
    }
    args.extend(more);
    args
}

/// Waits until the run has reported a step.
#[track_caller]
fn wait_for_steps(out: &Path) {
    let started = Instant::now();
    while !std::fs::read_to_string(out.join("metrics.jsonl")).is_ok_and(|text| text.lines().count() > 3) {
        assert!(started.elapsed() < Duration::from_secs(60), "no step within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that the run in `out` has stopped for `reason`, has saved a checkpoint, and resumes from it.
#[track_caller]
fn assert_saved(job: Job, out: &Path, reason: &str) {
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(SAVED), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(reason) && outcome.stderr.contains("--resume"), "{}", outcome.stderr);
    let verified = run(single(&["checkpoint", "verify", out.to_str().unwrap()]));
    assert!(verified.status.success(), "{verified:?}");
    let args = endless(out, &["--resume", "auto", "--set", "train.stop_after_steps=1"]);
    let resumed = run(single(&args));
    assert_eq!(resumed.status.code(), Some(SAVED), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("resuming after step "), "{}", resumed.stderr);
}

#[test]
fn each_signal_saves_the_run() {
    for name in ["TERM", "INT", "USR1", "USR2", "HUP", "XCPU", "PWR"] {
        let folder = temp_dir();
        let out = folder.path().join("out");
        let job = start(with_terminal(&endless(&out, &[])));
        wait_for_steps(&out);
        signal(name, job.pid());
        assert_saved(job, &out, &format!("SIG{name}"));
    }
}

/// A closed terminal does not end a run that was started with `nohup`.
#[test]
fn a_run_that_ignores_hangups_goes_on() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", ddp_train()]).args(endless(&out, &[]));
    let job = start(command);
    wait_for_steps(&out);
    signal("HUP", job.pid());
    std::thread::sleep(Duration::from_millis(300));
    signal("TERM", job.pid());
    assert_saved(job, &out, "SIGTERM");
}

/// Each of many further checkpoints would be larger than the limit: the run ends with an error of the write, not by SIGXFSZ.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_of_the_write() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -f 64; exec \"$0\" \"$@\"", ddp_train()]);
    let sets =
        ["--set", "model.hidden=[256,256]", "--set", "train.epochs=1", "--set", "checkpoint.async=false"];
    let outcome = run_command(command, &endless(&out, &sets));
    assert_eq!(outcome.status.code(), Some(74), "{}", outcome.stderr);
    for part in ["File too large", "hint: ", "ulimit -f"] {
        assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
    }
}

fn run_command(mut command: Command, args: &[&str]) -> Outcome {
    command.args(args);
    run(command)
}

/// The command, with the hangups of a terminal also where the tests themselves run under `nohup`.
fn with_terminal(args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", ddp_train()]).args(args);
    command
}

#[test]
fn repeated_signals_change_nothing() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let job = start(single(&endless(&out, &[])));
    wait_for_steps(&out);
    // Sent from one shell, so that they arrive before the end.
    let pid = job.pid();
    let signals =
        format!("kill -TERM {pid}; kill -USR1 {pid}; kill -TERM {pid}; kill -USR1 {pid}; kill -TERM {pid}");
    let _ = Command::new("sh").args(["-c", &signals]).status().unwrap();
    assert_saved(job, &out, "stopped by SIG");
}

#[test]
fn a_signal_to_one_rank_stops_them_all() {
    for (name, last) in [("USR1", false), ("USR1", true), ("XCPU", false), ("PWR", true)] {
        let folder = temp_dir();
        let out = folder.path().join("out");
        let job = start(ranks(3, &endless(&out, &["--set", "comm.zero=1"])));
        wait_for_steps(&out);
        let mut pids = children(job.pid());
        pids.sort_unstable();
        assert_eq!(pids.len(), 3);
        signal(name, if last { pids[2] } else { pids[0] });
        // Rank 0 reports the reason that it knows.
        assert_saved(
            job,
            &out,
            &if last { "a signal to another rank".to_owned() } else { format!("SIG{name}") },
        );
    }
}

#[test]
fn a_signal_to_mpirun_stops_the_ranks() {
    for name in ["USR1", "USR2", "XCPU", "PWR"] {
        let folder = temp_dir();
        let out = folder.path().join("out");
        let job = start(ranks(2, &endless(&out, &[])));
        wait_for_steps(&out);
        signal(name, job.pid());
        assert_saved(job, &out, &format!("SIG{name}"));
    }
}

/// Ctrl-C, pressed a second time by a user who does not want to wait.
#[test]
fn a_second_interrupt_ends_the_run_at_once() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    // One step takes far longer than the time between the two signals.
    let wide = ["--set", "model.hidden=[1500,1500,1500]", "--set", "train.global_batch_size=1438"];
    let job = start(single(&endless(&out, &wide)));
    wait_for_steps(&out);
    signal("INT", job.pid());
    std::thread::sleep(Duration::from_millis(50));
    signal("INT", job.pid());
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(INTERRUPTED), "{}", outcome.stderr);
    assert!(!out.join("checkpoints/latest").exists());
}
