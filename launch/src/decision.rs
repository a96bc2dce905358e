//! Decides whether a job that ended is complete, ends the command, or is restarted: a pure function.

use ddp::exit_code::{DONE, ENVIRONMENT, FAILED, INTERRUPTED, IO, RESTARTABLE, SAVED, USAGE};
use signal_hook::consts::{
    SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP, SIGUSR1,
};

/// A shell reports a process that was ended by a signal with this status plus the signal's number.
pub(crate) const SIGNALED: i32 = 128;

/// Way in which the launcher's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It exited with this status.
    Code(i32),
    /// It was ended by a signal that the supervisor did not send.
    Signal(i32),
    /// The supervisor ended it, because the ranks had ended and it had not.
    Hung,
    /// The supervisor ended it, because it started no rank.
    Idle,
    /// The supervisor ended it, because a process of the job was frozen.
    Frozen,
    /// The supervisor ended it, because the user requested a stop for the second time.
    Interrupted,
}

impl Ended {
    /// Whether SIGKILL ended the launcher, or the rank whose status it returns.
    pub(crate) fn is_kill(self) -> bool {
        matches!(self, Ended::Signal(SIGKILL)) || self == Ended::Code(SIGNALED + SIGKILL)
    }
}

/// Facts about an attempt that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Whether rank 0 wrote that the run is complete.
    pub(crate) is_done: bool,
    pub(crate) ended: Ended,
    /// Whether the ranks have joined.
    pub(crate) has_joined: bool,
    /// Whether the launcher or a rank has said anything, such as what is wrong; a launcher that a signal ends says nothing.
    pub(crate) is_explained: bool,
    /// Whether a process of this host was killed for want of memory.
    pub(crate) was_killed_for_memory: bool,
    /// Exit status in the run's last event, which reports a failure or a stop.
    pub(crate) reported: Option<u8>,
    /// Whether a signal requested the ranks to stop.
    pub(crate) was_stopped: bool,
    /// Whether a host no longer responds.
    pub(crate) has_lost_hosts: bool,
    /// Whether the attempt has saved a checkpoint, or the next one leaves out a faulty GPU.
    pub(crate) has_gained: bool,
    /// Number of restarts before this attempt.
    pub(crate) n_restarts: usize,
    pub(crate) max_restarts: usize,
}

impl Attempt {
    /// Whether the launcher crashed or was killed, rather than requested to end.
    fn was_lost(&self) -> bool {
        let fatal = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP];
        matches!(self.ended, Ended::Signal(signal) if fatal.contains(&signal))
    }
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// End with this status.
    End(u8, Reason),
    /// Restart the ranks.
    Restart,
}

/// Reason not to restart a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The run is complete.
    Complete,
    /// The run saved a checkpoint and stopped, as requested.
    Stopped,
    /// The run was requested to stop, and was lost before it had saved.
    LostWhileStopping,
    /// The user ended the run immediately.
    Interrupted,
    /// The run failed by itself and would fail again.
    Permanent,
    /// A rank was killed for want of memory, and would be again.
    Memory,
    /// The last restart produced no new checkpoint.
    NoProgress,
    /// All restarts are used up.
    NoRestartsLeft,
}

/// Decides what follows an attempt. The launcher's status is trusted least: if the run itself reports its failure, that report
/// counts.
pub(crate) fn decide(attempt: &Attempt) -> Decision {
    if attempt.is_done {
        return Decision::End(DONE, Reason::Complete);
    }
    let status = match (attempt.reported, attempt.ended) {
        (_, Ended::Interrupted) => return Decision::End(INTERRUPTED, Reason::Interrupted),
        (Some(code), _) => Some(i32::from(code)),
        (None, Ended::Code(code)) => Some(code),
        (None, Ended::Signal(signal)) => Some(SIGNALED + signal),
        (None, Ended::Idle) if attempt.n_restarts == 0 => Some(i32::from(ENVIRONMENT)),
        (None, Ended::Hung | Ended::Idle | Ended::Frozen) => None,
    };
    match status.and_then(|status| u8::try_from(status).ok()) {
        // A launcher that has lost a host stops the ranks on the other hosts, and these may save before they end.
        Some(SAVED) if attempt.has_lost_hosts && !attempt.was_stopped => {}
        // The ranks have saved because their launcher was gone. A signal that requests a stop meant the run.
        Some(SAVED) if attempt.was_lost() && !attempt.was_stopped => {}
        Some(SAVED) => return Decision::End(SAVED, Reason::Stopped),
        Some(INTERRUPTED) => return Decision::End(INTERRUPTED, Reason::Interrupted),
        // The launcher also returns status 1 if it loses a host.
        Some(FAILED) if attempt.reported.is_none() && attempt.has_lost_hosts => {}
        // Its settings or the network are wrong.
        Some(FAILED)
            if !attempt.has_joined
                && attempt.is_explained
                && attempt.reported.is_none()
                && !attempt.was_stopped =>
        {
            return Decision::End(ENVIRONMENT, Reason::Permanent);
        }
        Some(code @ (FAILED | USAGE | IO | ENVIRONMENT)) => return Decision::End(code, Reason::Permanent),
        _ => {}
    }
    if attempt.was_stopped {
        // The signal arrived before the process could catch it, that is, before the first step.
        let is_unsaved = status == Some(SIGNALED + SIGUSR1);
        return if is_unsaved {
            Decision::End(SAVED, Reason::Stopped)
        } else {
            Decision::End(RESTARTABLE, Reason::LostWhileStopping)
        };
    }
    if attempt.was_killed_for_memory {
        return Decision::End(FAILED, Reason::Memory);
    }
    if attempt.n_restarts > 0 && !attempt.has_gained {
        return Decision::End(FAILED, Reason::NoProgress);
    }
    if attempt.n_restarts >= attempt.max_restarts {
        return Decision::End(RESTARTABLE, Reason::NoRestartsLeft);
    }
    Decision::Restart
}

/// Seconds to wait before restart `number`, counted from 1: 1, 2, 4, ... up to a minute.
pub(crate) fn backoff_s(number: usize) -> u64 {
    1 << number.saturating_sub(1).min(6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Attempt = Attempt {
        is_done: false,
        ended: Ended::Code(137),
        has_joined: true,
        is_explained: false,
        was_killed_for_memory: false,
        reported: None,
        was_stopped: false,
        has_lost_hosts: false,
        has_gained: true,
        n_restarts: 0,
        max_restarts: 3,
    };

    #[test]
    fn only_the_runs_own_word_makes_it_complete() {
        for ended in [Ended::Code(0), Ended::Code(1), Ended::Hung, Ended::Interrupted] {
            let done = Attempt { is_done: true, ended, ..KILLED };
            assert_eq!(decide(&done), Decision::End(DONE, Reason::Complete), "{ended:?}");
        }
        // Open MPI 5 exits with this status when its daemon is killed.
        assert_eq!(decide(&Attempt { ended: Ended::Code(0), ..KILLED }), Decision::Restart);
    }

    #[test]
    fn lost_ranks_start_again() {
        let lost = [75, 137, 139, 143, 9, 255].map(Ended::Code);
        for ended in lost.into_iter().chain([Ended::Signal(9), Ended::Hung, Ended::Frozen]) {
            assert_eq!(decide(&Attempt { ended, ..KILLED }), Decision::Restart, "{ended:?}");
        }
    }

    #[test]
    fn a_rank_that_was_killed_for_memory_is_not_started_again() {
        let memory = Attempt { was_killed_for_memory: true, ..KILLED };
        for ended in [Ended::Code(137), Ended::Code(75), Ended::Signal(9)] {
            assert_eq!(decide(&Attempt { ended, ..memory }), Decision::End(FAILED, Reason::Memory));
        }
        let done = Attempt { is_done: true, ..memory };
        assert_eq!(decide(&done), Decision::End(DONE, Reason::Complete), "it was another process");
    }

    #[test]
    fn what_would_fail_again_ends_with_its_status() {
        for code in [1, 2, 74, 78] {
            let permanent = Decision::End(code, Reason::Permanent);
            assert_eq!(decide(&Attempt { ended: Ended::Code(i32::from(code)), ..KILLED }), permanent);
            // The launcher may return the status of a rank that it killed.
            assert_eq!(decide(&Attempt { reported: Some(code), ..KILLED }), permanent);
            assert_eq!(decide(&Attempt { reported: Some(code), has_lost_hosts: true, ..KILLED }), permanent);
        }
        let reported = Attempt { reported: Some(75), ended: Ended::Code(1), ..KILLED };
        assert_eq!(decide(&reported), Decision::Restart, "the watchdog knows better than mpirun");
    }

    #[test]
    fn a_job_that_does_not_start_has_the_wrong_environment() {
        let environment = Decision::End(ENVIRONMENT, Reason::Permanent);
        let early = Attempt { has_joined: false, is_explained: true, has_gained: false, ..KILLED };
        for ended in [Ended::Code(1), Ended::Idle] {
            assert_eq!(decide(&Attempt { ended, ..early }), environment, "{ended:?}");
        }
        assert_eq!(decide(&early), Decision::Restart, "a rank was killed while it started");
        let ended_by_user = Attempt { ended: Ended::Code(1), is_explained: false, ..early };
        assert_eq!(
            decide(&ended_by_user),
            Decision::End(FAILED, Reason::Permanent),
            "a signal to the launcher"
        );
        // It has worked before.
        let later = Attempt { ended: Ended::Idle, n_restarts: 1, has_gained: true, ..early };
        assert_eq!(decide(&later), Decision::Restart);
    }

    #[test]
    fn the_launchers_own_failure_is_that_of_a_lost_host() {
        let failed = Attempt { ended: Ended::Code(1), has_lost_hosts: true, ..KILLED };
        assert_eq!(decide(&failed), Decision::Restart);
    }

    #[test]
    fn a_run_that_saved_since_a_host_was_lost_continues() {
        let lost = Attempt { reported: Some(85), ended: Ended::Code(1), has_lost_hosts: true, ..KILLED };
        assert_eq!(decide(&lost), Decision::Restart);
        let ended = Attempt { reported: None, ended: Ended::Code(85), ..lost };
        assert_eq!(decide(&ended), Decision::Restart);
        let asked = Attempt { was_stopped: true, ..lost };
        assert_eq!(decide(&asked), Decision::End(SAVED, Reason::Stopped), "the user asked for it");
    }

    #[test]
    fn a_run_that_stopped_is_not_started_again() {
        let stopped = Attempt { was_stopped: true, ..KILLED };
        let saved = Attempt { ended: Ended::Code(85), ..stopped };
        assert_eq!(decide(&saved), Decision::End(SAVED, Reason::Stopped));
        assert_eq!(decide(&Attempt { was_stopped: false, ..saved }), Decision::End(SAVED, Reason::Stopped));
        let early = Attempt { ended: Ended::Signal(SIGUSR1), ..stopped };
        assert_eq!(decide(&early), Decision::End(SAVED, Reason::Stopped));
        assert_eq!(decide(&stopped), Decision::End(RESTARTABLE, Reason::LostWhileStopping));
        // On SIGINT, mpirun stops its ranks and exits with 1.
        let of_launcher = Attempt { reported: Some(85), ended: Ended::Code(1), ..KILLED };
        assert_eq!(decide(&of_launcher), Decision::End(SAVED, Reason::Stopped));
        let orphans = Attempt { reported: Some(85), ended: Ended::Signal(9), ..KILLED };
        assert_eq!(decide(&orphans), Decision::Restart, "the ranks saved because mpirun was killed");
        let quit = Attempt { ended: Ended::Signal(signal_hook::consts::SIGQUIT), ..orphans };
        assert_eq!(decide(&quit), Decision::End(SAVED, Reason::Stopped), "the user asked mpirun");
        let failed = Attempt { ended: Ended::Code(74), ..stopped };
        assert_eq!(decide(&failed), Decision::End(IO, Reason::Permanent));
        let twice = Attempt { ended: Ended::Interrupted, ..stopped };
        assert_eq!(decide(&twice), Decision::End(INTERRUPTED, Reason::Interrupted));
    }

    #[test]
    fn restarts_end_without_progress_and_at_their_limit() {
        let stuck = Attempt { has_gained: false, ..KILLED };
        assert_eq!(decide(&stuck), Decision::Restart, "it may have been killed in its first second");
        let again = Attempt { n_restarts: 1, ..stuck };
        assert_eq!(decide(&again), Decision::End(FAILED, Reason::NoProgress));
        let last = Attempt { n_restarts: 3, ..KILLED };
        assert_eq!(decide(&last), Decision::End(RESTARTABLE, Reason::NoRestartsLeft));
        assert_eq!(decide(&Attempt { n_restarts: 2, ..KILLED }), Decision::Restart);
        let none = Attempt { max_restarts: 0, ..KILLED };
        assert_eq!(decide(&none), Decision::End(RESTARTABLE, Reason::NoRestartsLeft));
    }

    #[test]
    fn waits_double() {
        assert_eq!([1, 2, 3, 4, 7, 100].map(backoff_s), [1, 2, 4, 8, 64, 64]);
    }
}
