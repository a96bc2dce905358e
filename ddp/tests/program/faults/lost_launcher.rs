//! A launcher that is killed: its ranks notice it, save, and end within 10 s.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::{Job, children, kill_9, ranks, run, signal, single, start, temp_dir};

const SAVED: i32 = 85;
const LIMIT: Duration = Duration::from_secs(10);

/// A run that does not end during a test, and saves nothing by itself.
struct Run {
    folder: TempDir,
}

impl Run {
    fn new() -> Self {
        Run { folder: temp_dir() }
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    fn args(&self) -> Vec<String> {
        let sets =
            ["train.epochs=1000000", "model.hidden=[16]", "checkpoint.every_epochs=0", "log.every_steps=1"];
        let own =
            ["--out", self.out().to_str().unwrap(), "--device", "cpu", "--threads", "1"].map(str::to_owned);
        own.into_iter().chain(sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()])).collect()
    }

    /// Starts the program with the words `before`, under mpirun if there are several ranks.
    fn start(&self, n_ranks: usize, before: &[&str]) -> Job {
        let args = self.args();
        let args: Vec<&str> = before.iter().copied().chain(args.iter().map(String::as_str)).collect();
        let job = start(ranks(n_ranks, &args));
        while !std::fs::read_to_string(self.out().join("metrics.jsonl"))
            .is_ok_and(|text| text.lines().count() > 3)
        {
            assert!(job.started.elapsed() < Duration::from_secs(60), "no step within a minute");
            std::thread::sleep(Duration::from_millis(5));
        }
        job
    }

    /// Asserts that `pids` end in time, and that the run resumes from the checkpoint that they saved.
    #[track_caller]
    fn assert_saved(&self, pids: &[u32], killed: Instant) {
        let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
        while pids.iter().any(is_there) {
            assert!(killed.elapsed() < LIMIT, "processes are left after {:?}", killed.elapsed());
            std::thread::sleep(Duration::from_millis(5));
        }
        let verified = run(single(&["checkpoint", "verify", self.out().to_str().unwrap()]));
        assert!(verified.status.success(), "{verified:?}");
        let args = self.args();
        let more = ["--resume", "auto", "--set", "train.stop_after_steps=1"];
        let args: Vec<&str> =
            ["train"].into_iter().chain(args.iter().map(String::as_str)).chain(more).collect();
        let resumed = run(single(&args));
        assert_eq!(resumed.status.code(), Some(SAVED), "{}", resumed.stderr);
        assert!(resumed.stderr.contains("resuming after step "), "{}", resumed.stderr);
    }
}

/// Whether this process, and so the mpirun that it starts, ignores SIGQUIT, as all in the background of a script do.
fn ignores_sigquit() -> bool {
    const SIGQUIT: u32 = 3;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << (SIGQUIT - 1)) != 0
}

#[test]
fn ranks_whose_mpirun_is_killed_save_and_end() {
    for name in ["KILL", "QUIT"].into_iter().filter(|name| *name != "QUIT" || !ignores_sigquit()) {
        let run = Run::new();
        let job = run.start(2, &["train"]);
        let pids = children(job.pid());
        assert_eq!(pids.len(), 2);
        signal(name, job.pid());
        run.assert_saved(&pids, Instant::now());
    }
}

#[test]
fn ranks_whose_supervisor_is_killed_save_and_end() {
    let run = Run::new();
    let job = run.start(1, &["launch", "-n", "2", "--"]);
    let launcher = children(job.pid())[0];
    let pids = [children(launcher), vec![launcher]].concat();
    assert_eq!(pids.len(), 3);
    kill_9(job.pid());
    run.assert_saved(&pids, Instant::now());
}

#[test]
fn a_rank_alone_whose_supervisor_is_killed_saves_and_ends() {
    let run = Run::new();
    let job = run.start(1, &["launch", "-n", "1", "--"]);
    let pids = children(job.pid());
    assert_eq!(pids.len(), 1);
    kill_9(job.pid());
    run.assert_saved(&pids, Instant::now());
}

#[test]
fn a_run_whose_sweep_is_killed_saves_and_ends() {
    let folder = temp_dir();
    let out = folder.path().join("sweep");
    let args = ["sweep", "--grid", "optimizer.lr=0.1,0.2", "--out", out.to_str().unwrap(), "--"];
    let run =
        ["--set", "train.epochs=1000000", "--set", "log.every_steps=1", "--threads", "1", "--device", "cpu"];
    let job = start(single(&[&args[..], &run].concat()));
    let first = out.join("lr=0.1,seed=0");
    while !first.join("metrics.jsonl").exists() {
        assert!(job.started.elapsed() < Duration::from_secs(60), "no run within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pids = children(job.pid());
    kill_9(job.pid());
    let killed = Instant::now();
    while pids.iter().any(|pid| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok()) {
        assert!(killed.elapsed() < LIMIT, "the run is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The supervisor continues from what the ranks have saved.
#[test]
fn a_job_whose_mpirun_is_killed_loses_no_step() {
    let run = Run::new();
    let job = run.start(1, &["launch", "-n", "2", "--"]);
    kill_9(children(job.pid())[0]);
    let saved = Instant::now();
    while !run.out().join("checkpoints/latest").exists() {
        assert!(saved.elapsed() < LIMIT, "nothing is saved");
        std::thread::sleep(Duration::from_millis(5));
    }
    let is_resumed = || {
        std::fs::read_to_string(run.out().join("metrics.jsonl")).is_ok_and(|text| text.contains("\"resume\""))
    };
    while !is_resumed() {
        assert!(saved.elapsed() < Duration::from_secs(60), "it is not resumed");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("TERM", job.pid());
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(SAVED), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("; restart 1 of 3 from step "), "{}", outcome.stderr);
}
