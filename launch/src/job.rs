//! One attempt: the launcher in a process group of its own, watched until nothing of it is left.
//!
//! The launcher's end is not waited for without a bound: mpirun may hang after its ranks have ended. Nor is it enough: a launcher
//! that was killed leaves ranks behind, in process groups of their own. So this process is their subreaper, to which they come.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, set_child_subreaper};
use tracing::{info, warn};

use super::processes;
use crate::decision::Ended;
use crate::run_watch::RunWatch;
use crate::starter::CommandLine;
use crate::stop_requests::{Request, StopRequests};

/// Time between two looks at the launcher and at signals.
const POLL: Duration = Duration::from_millis(20);
/// Time between two looks at the ranks and the folder of the run.
const LOOK: Duration = Duration::from_secs(1);
/// Time that the launcher may take to end once its ranks have ended, or reported a failure or the end of the run.
const GRACE: Duration = Duration::from_secs(5);
/// Looks in a row after which a process that a signal has stopped counts as lost. Where the whole job is suspended, nobody looks.
const FROZEN_LOOKS: usize = 10;
/// Time that it may take to end after SIGTERM.
const TERM_DEADLINE: Duration = Duration::from_secs(3);
/// Time that processes may take to end after SIGKILL.
const KILL_DEADLINE: Duration = Duration::from_secs(5);
/// Time between two signals to stop: the first may arrive before there are ranks that it could be forwarded to.
const RESEND: Duration = Duration::from_secs(1);

/// A launcher with its ranks.
#[derive(Debug)]
pub(crate) struct Job {
    launcher: Child,
    /// This program, which the ranks run.
    program: PathBuf,
    started: Instant,
}

impl Job {
    /// Starts `line`. Stdout and stderr are those of this process.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn start(line: &CommandLine) -> io::Result<Self> {
        // Any process number but 0 switches it on.
        set_child_subreaper(Some(Pid::INIT))?;
        let mut command = Command::new(&line.program);
        command.args(&line.args).stdin(Stdio::null()).process_group(0);
        for (name, value) in line.env.iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
            command.env(name, value);
        }
        let launcher = command.spawn()?;
        Ok(Job { launcher, program: processes::own_program(), started: Instant::now() })
    }

    /// Waits for the end of the launcher and of all its processes on this host. Signals to this process stop the ranks; returns also
    /// whether one did.
    pub(crate) fn wait(mut self, requests: &mut StopRequests, watch: &RunWatch) -> (Ended, bool) {
        let mut last_sent: Option<Instant> = None;
        let (mut over, mut frozen) = (Over::default(), Frozen::default());
        let mut last_look = self.started;
        let ended = loop {
            match self.launcher.try_wait() {
                Ok(Some(status)) => break of_status(status),
                Ok(None) => {}
                // Another part of the process has taken the status.
                Err(_) => break Ended::Hung,
            }
            match requests.poll() {
                Some(Request::Stop(name)) => info!("received {name}; the ranks save a checkpoint and stop"),
                Some(Request::EndNow) => {
                    warn!("interrupted again: ending the ranks at once");
                    self.end();
                    break Ended::Interrupted;
                }
                None => {}
            }
            let is_due = last_sent.is_none_or(|sent| sent.elapsed() >= RESEND);
            if requests.stop().is_some() && is_due && self.ask_to_stop() {
                last_sent = Some(Instant::now());
            }
            if last_look.elapsed() >= LOOK {
                last_look = Instant::now();
                let ranks = processes::running(&self.program);
                let n_ranks = ranks.len();
                let n_ended = if n_ranks == 0 { processes::n_unreaped(&self.program) } else { 0 };
                if over.since(n_ranks, n_ended, watch).is_some_and(|since| since.elapsed() > GRACE) {
                    self.end();
                    break Ended::Hung;
                }
                // Ranks that train have a watchdog; one that is alone, or still starts, has none. Ranks that train need no launcher.
                let is_needed = |pid: &i32| ranks.contains(pid) || !watch.has_events();
                if frozen.is_lost(processes::frozen().into_iter().filter(is_needed).collect()) {
                    self.end();
                    break Ended::Frozen;
                }
            }
            std::thread::sleep(POLL);
        };
        let n_left = processes::kill_all(KILL_DEADLINE);
        if n_left > 0 {
            warn!("{n_left} processes of the job did not end within {KILL_DEADLINE:?} of SIGKILL");
        }
        (ended, requests.stop().is_some())
    }

    /// Sends the launcher SIGUSR1, which it forwards to the ranks, or the ranks of this host themselves if it would end by it, as a
    /// script would; one rank suffices. False if there is no process yet that handles the signal.
    fn ask_to_stop(&self) -> bool {
        let notify = |pid| processes::notify(pid, Signal::USR1);
        let ranks = || processes::running(&self.program).into_iter().filter(|pid| notify(*pid)).count();
        notify(self.launcher.id().cast_signed()) || ranks() > 0
    }

    /// Ends the launcher: SIGTERM, with which it ends the ranks of all hosts, then SIGKILL to its group.
    fn end(&mut self) {
        let Some(pid) = self.pid() else { return };
        let _ = kill_process(pid, Signal::TERM);
        let asked = Instant::now();
        while asked.elapsed() < TERM_DEADLINE {
            if !matches!(self.launcher.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(POLL);
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.launcher.wait();
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.launcher.id().cast_signed())
    }
}

/// Since when there are signs that the job is over although its launcher runs.
#[derive(Debug, Default)]
struct Over {
    /// Whether ranks were seen on this host.
    had_ranks: bool,
    since: Option<Instant>,
}

impl Over {
    /// `n_ranks` are alive on this host, and `n_ended` have ended unnoticed by the launcher.
    fn since(&mut self, n_ranks: usize, n_ended: usize, watch: &RunWatch) -> Option<Instant> {
        self.had_ranks |= n_ranks + n_ended > 0;
        let is_over = (self.had_ranks && n_ranks == 0) || watch.is_done() || watch.reported().is_some();
        self.since = self.since.filter(|_| is_over).or_else(|| is_over.then(Instant::now));
        self.since
    }
}

/// Processes that a signal has stopped, as they were seen in a row of looks.
#[derive(Debug, Default)]
struct Frozen {
    pids: BTreeSet<i32>,
    n_looks: usize,
}

impl Frozen {
    /// Whether one of `pids`, those that are frozen now, was so at each look for too long.
    fn is_lost(&mut self, pids: BTreeSet<i32>) -> bool {
        self.pids = match self.n_looks {
            0 => pids,
            _ => self.pids.intersection(&pids).copied().collect(),
        };
        self.n_looks = if self.pids.is_empty() { 0 } else { self.n_looks + 1 };
        self.n_looks > FROZEN_LOOKS
    }
}

fn of_status(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Hung,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_lost_when_it_was_frozen_at_many_looks_in_a_row() {
        let looks = |frozen: &mut Frozen, pids: &[i32], n: usize| {
            (0..n).map(|_| frozen.is_lost(pids.iter().copied().collect())).filter(|lost| *lost).count()
        };
        let mut frozen = Frozen::default();
        assert_eq!(looks(&mut frozen, &[1, 2], FROZEN_LOOKS), 0);
        assert_eq!(looks(&mut frozen, &[2, 3], 1), 1, "process 2");
        let mut frozen = Frozen::default();
        assert_eq!(looks(&mut frozen, &[1], FROZEN_LOOKS), 0);
        assert_eq!(looks(&mut frozen, &[], 1), 0, "it continues");
        assert_eq!(looks(&mut frozen, &[1], FROZEN_LOOKS), 0);
        assert_eq!(looks(&mut frozen, &[2], FROZEN_LOOKS), 0, "another one");
    }
}
