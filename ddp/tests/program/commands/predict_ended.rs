//! `ddp-train predict` that a signal ends leaves no temporary file; files that SIGKILL leaves behind are removed by the next run.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::{
    Job, Outcome, children, kill_9, made_up_csv, ranks, run_ok, single, start, temp_dir, write,
};

/// A model that needs minutes for the rows of `rows.csv`.
struct Slow {
    folder: TempDir,
}

impl Slow {
    fn new() -> Self {
        let folder = temp_dir();
        let few = made_up_csv(20, 3, "classification", 0);
        write(folder.path(), "few.csv", &few);
        let (_, block) = few.split_once('\n').unwrap();
        let rows = "f0,f1,f2,label\n".to_owned() + &block.repeat(20_000);
        write(folder.path(), "rows.csv", &rows);
        let slow = Slow { folder };
        let (few, run) = (slow.path("few.csv"), slow.path("run"));
        let args = ["train", &few, "--out", &run, "--hidden", "1024,1024,1024", "--epochs", "1", "--quiet"];
        run_ok(single(&[&args[..], &["--device", "cpu", "--set", "watchdog.timeout_s=1"]].concat()));
        slow
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn command(&self, n_ranks: usize, out: &str, more: &[&str]) -> Command {
        let (run, data, out) = (self.path("run"), self.path("rows.csv"), self.path(out));
        let args = ["predict", "--checkpoint", &run, "--data", &data, "--out", &out, "--device", "cpu"];
        ranks(n_ranks, &[&args[..], &["--threads", "1"], more].concat())
    }

    fn temporary(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with('.')).collect()
    }

    /// Starts predicting, and waits until each rank has a temporary file.
    fn start(&self, n_ranks: usize, out: &str) -> Job {
        let mut command = self.command(n_ranks, out, &[]);
        // mpirun kills ranks that do not end within this time, which is enough for a busy machine.
        command.env("OMPI_MCA_odls_base_sigkill_timeout", "5");
        let job = start(command);
        let is_own =
            |path: &PathBuf| n_ranks > 1 || path.to_str().unwrap().contains(&format!(".{}.", job.pid()));
        while self.temporary().iter().filter(|path| is_own(path)).count() < n_ranks {
            assert!(job.started.elapsed() < Duration::from_secs(60), "no temporary files within a minute");
            std::thread::sleep(Duration::from_millis(2));
        }
        job
    }

    /// Sends a signal to the job and waits for its end.
    fn end(&self, job: Job, signal: &str) -> Outcome {
        let command = format!("kill -{signal} {}", job.pid());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
        let sent = Instant::now();
        let outcome = job.wait();
        assert!(sent.elapsed() < Duration::from_secs(60), "{:?} {}", sent.elapsed(), outcome.stderr);
        outcome
    }
}

#[test]
fn a_signal_leaves_no_temporary_file() {
    let slow = Slow::new();
    for (signal, number, out) in [("INT", 2, "out.csv"), ("TERM", 15, "out.npy")] {
        let outcome = slow.end(slow.start(1, out), signal);
        assert_eq!(outcome.status.signal(), Some(number), "{}", outcome.stderr);
        assert!(slow.temporary().is_empty(), "SIG{signal}: {}", outcome.stderr);
        assert!(!slow.folder.path().join(out).exists());
    }
}

#[test]
fn a_signal_to_mpirun_leaves_no_temporary_file_of_any_rank() {
    let slow = Slow::new();
    let outcome = slow.end(slow.start(2, "out.csv"), "INT");
    assert!(!outcome.status.success(), "{}", outcome.stderr);
    assert!(slow.temporary().is_empty(), "{}", outcome.stderr);
}

/// If a rank is killed or frozen, the others name it, remove their files and end.
#[test]
fn a_lost_rank_is_named() {
    let slow = Slow::new();
    let (run, data) = (slow.path("run"), slow.path("rows.csv"));
    let evaluate = ["eval", "--checkpoint", &run, "--data", &data, "--device", "cpu"];
    for (signal, words, is_eval) in [
        ("KILL", "died: its connection closed without a goodbye", false),
        ("STOP", "is frozen or cut off: no heartbeat for ", false),
        ("STOP", "is frozen or cut off: no heartbeat for ", true),
    ] {
        let job = if is_eval {
            let job = start(ranks(2, &evaluate));
            while children(job.pid()).len() < 2 {
                assert!(job.started.elapsed() < Duration::from_secs(60), "no ranks within a minute");
                std::thread::sleep(Duration::from_millis(2));
            }
            // The watchdog's connection is made at its start; slower work follows later.
            let victim = *children(job.pid()).iter().max().unwrap();
            let mut begun = None;
            while begun.is_none_or(|ticks| cpu_ticks(victim) < ticks + 20) {
                if begun.is_none() && has_thread(victim, "watchdog") {
                    begun = Some(cpu_ticks(victim));
                }
                assert!(job.started.elapsed() < Duration::from_secs(60), "no evaluation within a minute");
                std::thread::sleep(Duration::from_millis(2));
            }
            job
        } else {
            slow.start(2, "out.csv")
        };
        let victim = *children(job.pid()).iter().max().unwrap();
        let command = format!("kill -{signal} {victim}");
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
        let outcome = job.wait();
        // mpirun may notice a death first, and then returns its own status.
        let status = outcome.status.code();
        assert!(status == Some(75) || (signal == "KILL" && status == Some(137)), "{outcome:?}");
        for part in
            ["error: rank 1 (host ", &format!(", pid {victim}"), words, "start the same command again"]
        {
            assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
        }
        assert_eq!(outcome.stderr.matches("error: ").count(), 1, "{}", outcome.stderr);
        let left = slow.temporary();
        assert!(left.iter().all(|path| path.to_str().unwrap().contains(".rank-1.")), "{left:?}");
        left.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

/// CPU time of a process, in 1/100 s.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Whether the process has a thread with this name.
fn has_thread(pid: u32, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default())
        .any(|comm| comm.trim() == name)
}

#[test]
fn the_next_command_removes_what_a_kill_left_and_nothing_else() {
    let slow = Slow::new();
    let killed = slow.start(1, "out.csv");
    let left = slow.temporary();
    kill_9(killed.pid());
    killed.wait();
    assert_eq!(slow.temporary(), left, "nobody can catch SIGKILL");
    // A file of a live process with a different output, one of a live process with the same output, and a file of another
    // program.
    let other = slow.start(1, "other.csv");
    let same = slow.start(1, "out.csv");
    let mut expected = slow.temporary();
    assert_eq!(expected.len(), 2, "the killed one is removed at once: {expected:?}");
    assert!(!expected.contains(&left[0]), "{expected:?}");
    let foreign = write(slow.folder.path(), ".out.csv.whole.txt.predict", "mine");
    run_ok(slow.command(1, "out.csv", &["--rows", "0..10"]));
    expected.push(foreign);
    expected.sort();
    let mut now = slow.temporary();
    now.sort();
    assert_eq!(now, expected);
    for job in [other, same] {
        slow.end(job, "TERM");
    }
}
