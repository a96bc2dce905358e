//! Stop signals, from the first instant of the process on: those of users and schedulers (SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2),
//! and of the system when the time or the power is used up (SIGXCPU, SIGPWR).
//!
//! While the ranks meet and a run is prepared there is nothing to save: a signal ends the job at once, whatever its main thread waits for;
//! only a rank that MPI is just starting ends in good order, if that is done within 2 s. From then on the current step or evaluation batch finishes, and the run saves a checkpoint before it exits. A signal reaches one rank, or
//! several at different moments. So a rank only votes to stop with its next step; the votes are reduced with the step's sums, and
//! all ranks see the result in the same step. (During an evaluation they vote between batches: [`super::eval_votes`].)
//!
//! mpirun sends SIGTERM too: when it is terminated itself, and when a rank has died. One second later it kills the remaining
//! ranks. A rank that received SIGTERM from mpirun and finishes no step in half of that time waits for a dead rank: it exits, and
//! the job ends within 2 s on one host, 3 s on several.
//!
//! A launcher that is killed can send nothing. So each of several ranks looks for it among its parents, and its end counts as a stop
//! signal. A shell that has started a rank in the background is no launcher.

// Without handlers nothing sets them.
#![cfg_attr(not(feature = "runs"), allow(dead_code))]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ddp_comm::{Launcher, Watchdog, World};
use rustix::process::Signal;
use tracing::{info, warn};

use crate::report::notes::{LOG_FILE, STOPPING};
use crate::storage::unfinished::Unfinished;
use crate::train::error::Result;

/// Stands for a signal: the launcher has ended.
pub(super) const LAUNCHER_ENDED: i32 = 1000;
/// Time that MPI may take to start, after a signal.
const MPI_START: Duration = Duration::from_secs(2);

const SIGINT: i32 = Signal::INT.as_raw();
const SIGTERM: i32 = Signal::TERM.as_raw();

/// Stop signals received by this process.
#[derive(Debug, Clone, Default)]
pub struct StopSignals {
    /// Number of the last signal; 0 for none.
    pub(super) last: Arc<AtomicUsize>,
    /// Whether the run has seen it since.
    pub(super) is_seen: Arc<AtomicBool>,
    /// Whether signals do what they do to any program.
    pub(super) ends_at_once: Arc<AtomicBool>,
    /// The handler that ends the process at a second SIGINT.
    #[cfg(feature = "runs")]
    pub(super) second_interrupt: Option<signal_hook::SigId>,
    pub(super) stage: Arc<CurrentStage>,
    /// Whether the end of this rank's launcher is noticed, or why not.
    pub(super) is_watched: Arc<OnceLock<io::Result<()>>>,
}

/// Stage of the process, which decides how it answers a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// The arguments are not parsed yet: a signal is answered in the next stage, if the command is a run.
    #[default]
    Starting,
    /// The ranks meet: nothing is known of the others, and no log is open.
    Meeting,
    /// Nothing is saved yet, and no step was taken.
    Preparing { rank: usize, world_size: usize },
    /// The run asks between its steps and evaluation batches.
    Running,
}

#[derive(Debug, Default)]
pub(super) struct CurrentStage {
    stage: Mutex<Stage>,
    /// The rank's watchdog, once the ranks are joined.
    pub(super) watchdog: OnceLock<Watchdog>,
    /// Files to remove before a signal ends the process as it ends any program.
    pub(super) unfinished: OnceLock<Unfinished>,
    changed: Condvar,
    /// Set once the log says that the run stops.
    is_answered: OnceLock<()>,
}

impl CurrentStage {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, stage: Stage) {
        *self.lock() = stage;
        self.changed.notify_all();
    }

    /// Waits until the command is known to be a run; by MPI, its ranks may then take some time to join. The stage stays as it is while
    /// the guard lives.
    pub(super) fn wait_for_run(&self) -> MutexGuard<'_, Stage> {
        let is_starting = |stage: &mut Stage| *stage == Stage::Starting;
        let stage = self.changed.wait_while(self.lock(), is_starting).unwrap_or_else(PoisonError::into_inner);
        if *stage != Stage::Meeting || !Launcher::joins_by_mpi() {
            return stage;
        }
        let is_meeting = |stage: &mut Stage| *stage == Stage::Meeting;
        let waited = self.changed.wait_timeout_while(stage, MPI_START, is_meeting);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl StopSignals {
    /// From now on the run asks for signals itself. Returns the reason to stop if a rank has received one. Collective.
    ///
    /// # Errors
    /// Errors of [`Group::all_gather_bytes`](ddp_comm::Group::all_gather_bytes).
    pub fn begin_run(&self, world: &World) -> Result<Option<String>> {
        // Before the vote: a signal that comes later is answered in the first step.
        self.stage.set(Stage::Running);
        let votes = world.group().all_gather_bytes(&[u8::from(self.received().is_some())])?;
        Ok(votes.iter().any(|vote| vote[..] == [1]).then(|| self.reason()))
    }

    /// Name of the last received signal, if any; called between two steps or evaluation batches.
    pub fn received(&self) -> Option<&'static str> {
        let signal = self.last()?;
        self.is_seen.store(true, Ordering::Relaxed);
        self.say_once(signal);
        Some(name(signal))
    }

    /// Says that the run stops: at once from the thread that waits for signals, or from the run if it stops before that thread gets
    /// to it.
    pub(super) fn say_once(&self, signal: i32) {
        self.stage.is_answered.get_or_init(|| match signal {
            SIGINT => info!(target: STOPPING, "stopping after this step; again to quit now"),
            SIGTERM => info!(target: LOG_FILE, "received SIGTERM; stopping after this step"),
            LAUNCHER_ENDED => warn!(target: LOG_FILE, "the launcher has ended; stopping after this step"),
            _ => info!(target: STOPPING, "stopping after this step"),
        });
    }

    /// Why the ranks stop, after one of them has received a signal: only some ranks know which one it was.
    pub fn reason(&self) -> String {
        self.received().unwrap_or("a signal to another rank").to_owned()
    }

    pub(super) fn last(&self) -> Option<i32> {
        let last = self.last.load(Ordering::SeqCst) as i32;
        (last != 0).then_some(last)
    }
}

/// Report of a run that was stopped for `reason` before its first step.
pub fn unsaved(reason: &str) -> String {
    format!("stopped by {reason} before the first step; nothing was saved yet")
}

/// Name of a stop signal, or of the event that stands for one.
pub fn name(signal: i32) -> &'static str {
    if signal == LAUNCHER_ENDED {
        return "the end of its launcher";
    }
    match Signal::from_named_raw(signal) {
        Some(Signal::TERM) => "SIGTERM",
        Some(Signal::INT) => "SIGINT",
        Some(Signal::HUP) => "SIGHUP",
        Some(Signal::QUIT) => "SIGQUIT",
        Some(Signal::USR1) => "SIGUSR1",
        Some(Signal::USR2) => "SIGUSR2",
        Some(Signal::XCPU) => "SIGXCPU",
        Some(Signal::POWER) => "SIGPWR",
        _ => "a signal",
    }
}
