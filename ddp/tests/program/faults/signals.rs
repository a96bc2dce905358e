//! Signals at any moment: during startup, data loading and evaluation, and to commands that are not runs.
//!
//! `SIGNAL_EVERY_MS=10 cargo test -p ddp-train --test program signals::sweep` sends one every 10 ms during the first 2 s, alone
//! and to ranks.

use std::io::{BufRead as _, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{
    Job, Outcome, Weights, children, ddp_train, kill_9, quoted, ranks, read_weights, run, run_ok, same_bits,
    signal, single, start, temp_dir, write,
};

/// Exit status of a run that stopped on request.
const STOPPED: i32 = 85;
const SIGTERM: i32 = 15;
const SIGINT: i32 = 2;
const SIGUSR1: i32 = 10;
const UNSAVED: &str = "before the first step; nothing was saved yet";

/// Whether process `pid` handles the three signals. Earlier, in the first milliseconds of a process, a signal ends it like any
/// other process.
///
/// # Panics
/// If the program starts threads (as MPI does) before it installs its handlers.
fn handles_signals(pid: u32) -> bool {
    const HANDLED: u64 = 1 << (SIGUSR1 - 1) | 1 << (SIGTERM - 1) | 1 << (SIGINT - 1);
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let is_program = program.is_some_and(|program| {
        assert!(
            !program.to_string_lossy().ends_with(" (deleted)"),
            "the program was replaced during the test"
        );
        program == Path::new(ddp_train()).canonicalize().unwrap()
    });
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("0", str::trim);
    let handles = u64::from_str_radix(value("SigCgt:"), 16).unwrap() & HANDLED == HANDLED;
    let n_threads: usize = value("Threads:").parse().unwrap();
    assert!(!is_program || handles || n_threads <= 1, "{n_threads} threads before signals are handled");
    is_program && handles
}

/// Waits until `condition` holds; returns false if the job ends first.
#[track_caller]
fn wait_for(job: &Job, what: &str, condition: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if !Path::new(&format!("/proc/{}/fd/0", job.pid())).exists() {
            return false;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "no {what} within a minute");
        std::thread::sleep(Duration::from_micros(500));
    }
    true
}

/// A run in its own folder.
struct Run {
    folder: TempDir,
    config: PathBuf,
    n_ranks: usize,
}

impl Run {
    fn new(config: &str, n_ranks: usize) -> Self {
        let folder = temp_dir();
        let config = write(folder.path(), "run.toml", config);
        Run { folder, config, n_ranks }
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// The command that starts the run, or resumes it.
    fn command(&self) -> Command {
        let (config, out) = (self.config.to_str().unwrap(), self.out());
        let args =
            ["train", config, "--out", out.to_str().unwrap(), "--resume", "auto", "--progress", "plain"];
        ranks(self.n_ranks, &[&args[..], &["--threads", "1"]].concat())
    }

    /// Process ids of the ranks.
    fn pids(&self, job: &Job) -> Vec<u32> {
        if self.n_ranks == 1 {
            return vec![job.pid()];
        }
        let mut pids = children(job.pid());
        pids.sort_unstable();
        pids
    }

    fn weights(&self) -> Weights {
        read_weights(&self.out().join("model.safetensors"))
    }

    /// Events without their times.
    fn events(&self, kinds: &[&str]) -> Vec<Value> {
        let text = std::fs::read_to_string(self.out().join("metrics.jsonl")).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| kinds.contains(&event["event"].as_str().unwrap())).collect()
    }
}

/// Config for about a second of training, with evaluations.
const SECOND: &str = "[data]\ntrain = \"builtin:digits\"\neval_fraction = 0.2\n\
    [model]\nhidden = [128, 128]\ndropout = 0.1\n\
    [checkpoint]\nevery_minutes = 0\nevery_epochs = 0\n\
    [train]\nepochs = 40\nglobal_batch_size = 64\neval_every_steps = 5\n\
    [log]\nevery_steps = 100\n";

/// Sends a signal to the ranks some time after they handle signals, then runs the same command again to the end.
#[track_caller]
fn signal_and_resume(n_ranks: usize, name: &str, after: Duration, whole: &Weights) {
    let at = format!("SIG{name} after {after:?} with {n_ranks} ranks");
    let run_of = Run::new(SECOND, n_ranks);
    let job = start(run_of.command());
    let is_ready = || {
        let pids = run_of.pids(&job);
        pids.len() == n_ranks && pids.iter().all(|pid| handles_signals(*pid))
    };
    if !wait_for(&job, "process", is_ready) {
        panic!("{at}: ended at once: {:?}", job.wait());
    }
    std::thread::sleep(after);
    // To all ranks, or only to the last one.
    let to_all = (after.as_millis() / 10).is_multiple_of(2);
    let pids = run_of.pids(&job);
    pids.iter()
        .skip(if to_all { 0 } else { pids.len().saturating_sub(1) })
        .for_each(|pid| signal(name, *pid));
    let Outcome { status, stderr, .. } = job.wait();
    assert!(matches!(status.code(), Some(0 | STOPPED)), "{at}: {status}\n{stderr}");
    let has_checkpoint = run_of.out().join("checkpoints/latest").exists();
    let is_unsaved = stderr.contains(UNSAVED);
    if status.code() == Some(STOPPED) {
        assert!(is_unsaved != has_checkpoint, "{at}: {stderr}");
        assert!(is_unsaved || stderr.contains("--resume"), "{at}: {stderr}");
        run_ok(run_of.command());
    }
    assert!(same_bits(&run_of.weights(), whole), "{at}: other weights than those of a run without a signal");
}

/// The delays of the sweep: regular intervals up to 2 s, or only some of them.
fn times(some: &[u64]) -> Vec<Duration> {
    let every = std::env::var("SIGNAL_EVERY_MS").ok().map(|every| every.parse::<usize>().unwrap());
    let all = every.map(|every| (0..=2000).step_by(every).collect());
    all.unwrap_or_else(|| some.to_vec()).into_iter().map(Duration::from_millis).collect()
}

fn sweep(n_ranks: usize, some: &[u64]) {
    let whole = Run::new(SECOND, n_ranks);
    run_ok(whole.command());
    let whole = whole.weights();
    for (i, after) in times(some).into_iter().enumerate() {
        let name = if n_ranks > 1 { "USR1" } else { ["USR1", "TERM", "INT"][i % 3] };
        signal_and_resume(n_ranks, name, after, &whole);
    }
}

#[test]
fn sweep_alone() {
    sweep(1, &[1, 2, 3, 10, 40, 200, 500]);
}

#[test]
fn sweep_of_ranks() {
    sweep(2, &[2, 50, 170, 610]);
}

/// Reads data from a pipe without a writer.
#[track_caller]
fn waiting_for_data(command: &str, name: &str) -> Outcome {
    let out = temp_dir();
    let line = format!("exec {} {command} <(exec sleep 100)", ddp_train());
    let mut bash = Command::new("bash");
    bash.args(["-c", &line]).current_dir(out.path());
    let job = start(bash);
    wait_for(&job, "process", || handles_signals(job.pid()));
    std::thread::sleep(Duration::from_millis(300));
    // The process at the pipe's other end, which holds stderr open.
    let sleepers = children(job.pid());
    signal(name, job.pid());
    let sent = Instant::now();
    while Path::new(&format!("/proc/{}/fd/0", job.pid())).exists() && sent.elapsed() < Duration::from_secs(30)
    {
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = sent.elapsed();
    sleepers.into_iter().for_each(kill_9);
    let outcome = job.wait();
    assert!(took < Duration::from_secs(2), "SIG{name} took {took:?}: {}", outcome.stderr);
    let left: Vec<_> = std::fs::read_dir(out.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?} is left: {}", outcome.stderr);
    outcome
}

#[test]
fn a_signal_while_data_is_read_stops_a_run_that_has_saved_nothing() {
    for name in ["TERM", "INT", "USR1"] {
        let outcome = waiting_for_data("train --target y --out out --data", name);
        assert_eq!(outcome.status.code(), Some(STOPPED), "{}", outcome.stderr);
        assert_eq!(outcome.stderr, format!("stopped by SIG{name} {UNSAVED}\n"));
    }
}

#[test]
fn signals_end_other_commands_as_any_program() {
    for command in ["train --dry-run --target y --data", "data inspect"] {
        for (name, number) in [("TERM", SIGTERM), ("INT", SIGINT)] {
            let outcome = waiting_for_data(command, name);
            assert_eq!(outcome.status.signal(), Some(number), "{command}: {}", outcome.stderr);
        }
    }
}

/// A config with one step per epoch, followed by a long evaluation.
fn long_evaluations(folder: &Path) -> String {
    let row = |i: usize| format!("{},{},{}\n", i % 17, i % 5, i % 2);
    let rows = |n: usize| format!("a,b,y\n{}", (0..n).map(row).collect::<String>());
    let train = quoted(&write(folder, "train.csv", &rows(100)));
    let eval = quoted(&write(folder, "eval.csv", &rows(80_000)));
    format!(
        "[data]\ntrain = {train}\neval = {eval}\ntarget = \"y\"\n\
         [model]\nhidden = [512, 512]\n\
         [checkpoint]\nevery_minutes = 0\nevery_epochs = 1\nkeep_best = \"eval_loss\"\n\
         [train]\nepochs = 2\nglobal_batch_size = 100\n[log]\nevery_steps = 1\n"
    )
}

/// The run stops quickly, and the resumed run repeats the evaluation.
#[track_caller]
fn stop_in_evaluation(n_ranks: usize) {
    const JUDGED: [&str; 2] = ["epoch", "end"];
    let figures = |run: &Run| -> Vec<Value> {
        let keys = ["epoch", "step", "steps", "train_loss", "eval_loss", "eval_accuracy", "best"];
        let of = |event: &Value| keys.iter().map(|key| event[*key].clone()).collect::<Value>();
        run.events(&JUDGED).iter().map(of).collect()
    };
    let rows = temp_dir();
    let config = long_evaluations(rows.path());
    let whole = Run::new(&config, n_ranks);
    run_ok(whole.command());
    let stopped = Run::new(&config, n_ranks);
    // First during the first evaluation, then during the last one.
    for step in 1..=2 {
        let job = start(stopped.command());
        assert!(wait_for(&job, "step", || stopped.events(&["step"]).len() == step));
        // Wait until the evaluation is in progress.
        std::thread::sleep(Duration::from_millis(30));
        let last = *stopped.pids(&job).last().unwrap();
        signal("TERM", last);
        let sent = Instant::now();
        let outcome = job.wait();
        assert_eq!(outcome.status.code(), Some(STOPPED), "{}", outcome.stderr);
        // mpirun may take 2.5 s of this time.
        assert!(
            outcome.ended - sent < Duration::from_secs(5),
            "{:?}: {}",
            outcome.ended - sent,
            outcome.stderr
        );
        assert_eq!(stopped.events(&JUDGED).len(), step - 1, "evaluation {step} did not end");
        let text =
            std::fs::read_to_string(stopped.out().join(format!("checkpoints/step-{step}/manifest.json")));
        assert!(text.unwrap().contains("\"evaluation_is_due\": true"));
    }
    run_ok(stopped.command());
    assert!(same_bits(&stopped.weights(), &whole.weights()));
    assert_eq!(figures(&stopped), figures(&whole));
    let newest = std::fs::read_to_string(stopped.out().join("checkpoints/step-2/manifest.json")).unwrap();
    assert!(!newest.contains("evaluation_is_due"), "the checkpoint of the complete run replaces the other");
    let verified = run(single(&["checkpoint", "verify", stopped.out().to_str().unwrap()]));
    assert!(verified.status.success(), "{verified:?}");
}

#[test]
fn a_signal_stops_an_evaluation_which_the_resumed_run_repeats() {
    stop_in_evaluation(1);
}

#[test]
fn a_signal_to_one_rank_stops_the_evaluation_of_all() {
    stop_in_evaluation(2);
}

/// A run that logs each step while nobody reads its stderr still stops and saves.
#[track_caller]
fn stop_unread(n_ranks: usize, name: &str) {
    // Several times the number of lines that the pipe and the run's own queue can hold.
    const STEPS: usize = 4000;
    let config = "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [4]\n[checkpoint]\nevery_minutes = 0\n\
        [train]\nepochs = 1000000\nglobal_batch_size = 16\n[log]\nevery_steps = 1\n";
    let run_of = Run::new(config, n_ranks);
    let mut command = run_of.command();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    let n_steps = || std::fs::read(run_of.out().join("metrics.jsonl")).map_or(0, |text| text.lines().count());
    while n_steps() < STEPS && started.elapsed() < Duration::from_secs(100) {
        assert!(child.try_wait().unwrap().is_none(), "the run has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    let n_steps = n_steps();
    signal(name, child.id());
    while child.try_wait().unwrap().is_none() && started.elapsed() < Duration::from_secs(200) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = child.try_wait().unwrap();
    let _ = child.kill();
    assert!(n_steps >= STEPS, "waits for its stderr after {n_steps} events");
    assert_eq!(status.and_then(|status| status.code()), Some(STOPPED));
    assert!(run_of.out().join("checkpoints/latest").exists());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let shown = stderr.lines().filter(|line| line.starts_with("step "));
    let numbers: Vec<usize> = shown.map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "the first lines are whole and in order");
}

#[test]
fn a_run_whose_stderr_nobody_reads_stops_and_saves() {
    for name in ["TERM", "INT", "USR1"] {
        stop_unread(1, name);
    }
}
