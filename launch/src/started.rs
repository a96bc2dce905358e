//! The processes that this one has started: a launcher, or the ranks.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::decision::{Ended, SIGNALED};

/// Interval at which a process that should end is checked.
const POLL: Duration = Duration::from_millis(20);
/// Time limit for the launcher to exit after SIGTERM.
const TERM_DEADLINE: Duration = Duration::from_secs(3);
/// Time limit for the other ranks to end after one has failed: they end each other within three seconds.
const FAILED_DEADLINE: Duration = Duration::from_secs(5);

/// The processes, and how they ended.
#[derive(Debug)]
pub(crate) struct Started {
    /// Whether they are the ranks of a job.
    are_ranks: bool,
    running: Vec<Child>,
    /// The first end of a rank that was not a success.
    failed: Option<(i32, Instant)>,
    /// The end of a launcher, or of ranks without a failure.
    ended: Option<Ended>,
}

impl Started {
    /// None yet. With `are_ranks`, the ranks of a job that join by their environment; otherwise a launcher, or a rank alone.
    pub(crate) fn new(are_ranks: bool) -> Self {
        Started { are_ranks, running: Vec::new(), failed: None, ended: None }
    }

    /// Starts one more.
    ///
    /// # Errors
    /// The system's error, after which no process is left.
    pub(crate) fn spawn(&mut self, mut command: Command) -> io::Result<()> {
        let child = command.spawn().inspect_err(|_| self.end())?;
        self.running.push(child);
        Ok(())
    }

    /// Process ids of those that run.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.running.iter().map(|child| child.id().cast_signed())
    }

    /// How they ended, once all have: the launcher, or the first rank that failed.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        let mut is_hung = false;
        let mut ends = Vec::new();
        self.running.retain_mut(|child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ends.push(status);
                false
            }
            // Another part of the process has already collected the status.
            Err(_) => {
                is_hung = true;
                false
            }
        });
        for status in ends {
            self.note(status);
        }
        if is_hung {
            self.ended.get_or_insert(Ended::Hung);
        }
        if self.failed.is_some_and(|(_, since)| since.elapsed() > FAILED_DEADLINE) {
            self.end();
        }
        if !self.running.is_empty() {
            return None;
        }
        self.failed.map(|(code, _)| Ended::Code(code)).or(self.ended)
    }

    fn note(&mut self, status: ExitStatus) {
        let ended = match (status.code(), status.signal()) {
            (Some(code), _) => Ended::Code(code),
            // As mpirun returns the status of a rank.
            (None, Some(signal)) if self.are_ranks => Ended::Code(SIGNALED + signal),
            (None, Some(signal)) => Ended::Signal(signal),
            (None, None) => Ended::Hung,
        };
        match ended {
            Ended::Code(code) if self.are_ranks && code != 0 => {
                self.failed.get_or_insert((code, Instant::now()));
            }
            ended => self.ended = Some(ended),
        }
    }

    /// Ends the launcher with SIGTERM, on which it ends the ranks of all hosts, then with SIGKILL to its group; ranks of this process with
    /// SIGKILL, since they would save a checkpoint on SIGTERM.
    pub(crate) fn end(&mut self) {
        let pids: Vec<_> = self.pids().filter_map(Pid::from_raw).collect();
        if !self.are_ranks {
            pids.iter().for_each(|pid| _ = kill_process(*pid, Signal::TERM));
            let asked = Instant::now();
            while asked.elapsed() < TERM_DEADLINE {
                if self.running.iter_mut().all(|child| !matches!(child.try_wait(), Ok(None))) {
                    return;
                }
                std::thread::sleep(POLL);
            }
        }
        pids.iter().for_each(|pid| _ = kill_process_group(*pid, Signal::KILL));
        self.running.iter_mut().for_each(|child| _ = child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(are_ranks: bool, scripts: &[&str]) -> Ended {
        let mut started = Started::new(are_ranks);
        for script in scripts {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            started.spawn(command).unwrap();
        }
        loop {
            match started.ended() {
                Some(ended) => return ended,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    #[test]
    fn ranks_end_as_the_first_one_that_fails() {
        assert_eq!(ended(true, &["exit 0", "exit 0"]), Ended::Code(0));
        // The second one ends by itself before the first one fails.
        assert_eq!(ended(true, &["kill -KILL $$", "exit 0", "exit 0"]), Ended::Code(137));
        let fifo = tempfile::tempdir().unwrap();
        let path = fifo.path().join("f").display().to_string();
        let (first, second) = (format!("exec 3>{path}; exit 75"), format!("cat {path}; sleep 0.2; exit 3"));
        Command::new("mkfifo").arg(&path).status().unwrap();
        assert_eq!(ended(true, &[&second, &first]), Ended::Code(75));
        assert_eq!(ended(false, &["kill -KILL $$"]), Ended::Signal(9));
    }
}
