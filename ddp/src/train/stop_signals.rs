//! Stop signals: after SIGTERM, SIGINT or SIGUSR1 the current step finishes, and the run saves a checkpoint before it exits.
//!
//! A signal reaches one rank, or several at different moments. So a rank only votes to stop with its next step; the votes
//! are reduced with the step's sums, and all ranks see the result in the same step.
//!
//! mpirun sends SIGTERM too: when it is terminated itself, and when a rank has died. One second later it kills the remaining
//! ranks. A rank that received SIGTERM from mpirun and finishes no step in half of that time waits for a dead rank: it exits, and
//! the job ends within 2 s on one host, 3 s on several.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ddp_comm::{Launcher, Watchdog, World};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::{flag, low_level};
use tracing::{info, warn};

use crate::exit_code;
use crate::report::log::{LOG_FILE, STOPPING};

/// Half of the time between mpirun's SIGTERM and its SIGKILL (`odls_base_sigkill_timeout`).
const GRACE: Duration = Duration::from_millis(500);

/// Stop signals received by this process.
#[derive(Debug, Default)]
pub struct StopSignals {
    /// Number of the last signal; 0 for none.
    last: Arc<AtomicUsize>,
    /// Whether the loop has seen it since.
    is_seen: Arc<AtomicBool>,
}

impl StopSignals {
    /// Installs the signal handlers. A second SIGINT ends the process at once; a SIGTERM from mpirun does if no step finishes
    /// soon.
    ///
    /// # Errors
    /// The system's error for a handler or a thread.
    pub fn listen(world: &World) -> io::Result<Self> {
        let signals = StopSignals::default();
        let is_interrupted = Arc::new(AtomicBool::new(false));
        // In this order: the first SIGINT finds the flag down and puts it up.
        flag::register_conditional_shutdown(SIGINT, exit_code::INTERRUPTED.into(), is_interrupted.clone())?;
        flag::register(SIGINT, is_interrupted)?;
        for signal in [SIGTERM, SIGINT, SIGUSR1] {
            flag::register_usize(signal, signals.last.clone(), signal as usize)?;
        }
        signals.answer(world.launcher() == Some(Launcher::OpenMpi), world.watchdog().clone())?;
        Ok(signals)
    }

    /// Starts the thread that answers signals at once; `ends_with_mpirun` if mpirun's SIGTERM ends a rank that finishes no step.
    fn answer(&self, ends_with_mpirun: bool, watchdog: Watchdog) -> io::Result<()> {
        let mut received = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT, SIGUSR1])?;
        let is_seen = self.is_seen.clone();
        let watch = move || {
            for origin in &mut received {
                match origin.signal {
                    SIGINT => info!(target: STOPPING, "stopping after this step; again to quit now"),
                    // On the terminal it could hide the message of the rank whose death is the reason.
                    SIGTERM => info!(target: LOG_FILE, "received SIGTERM; stopping after this step"),
                    _ => info!(target: STOPPING, "stopping after this step"),
                }
                // mpirun, or its daemon on this host.
                let parent = std::os::unix::process::parent_id();
                let is_from_parent =
                    origin.process.is_some_and(|sender| u32::try_from(sender.pid) == Ok(parent));
                if ends_with_mpirun && origin.signal == SIGTERM && is_from_parent {
                    std::thread::sleep(GRACE);
                    // The watchdog ends the process in its own way.
                    if !is_seen.load(Ordering::Relaxed) && !watchdog.is_ending() {
                        watchdog.announce_failure("ended by mpirun's SIGTERM");
                        warn!(target: LOG_FILE, "ended by mpirun's SIGTERM: no step finished within {GRACE:?}");
                        low_level::exit(exit_code::TERMINATED.into());
                    }
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
    }

    /// Name of the last received signal, if any; called between two steps.
    pub fn received(&self) -> Option<&'static str> {
        let last = self.last.load(Ordering::Relaxed) as i32;
        if last != 0 {
            self.is_seen.store(true, Ordering::Relaxed);
        }
        (last != 0).then(|| name(last))
    }
}

/// Name of a signal that is listened for.
fn name(signal: i32) -> &'static str {
    match signal {
        SIGTERM => "SIGTERM",
        SIGINT => "SIGINT",
        _ => "SIGUSR1",
    }
}

/// Votes that the ranks exchange with a step: sums of small whole numbers, exact in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Votes {
    /// Ranks that want to stop.
    pub stop: u64,
    /// Whether rank 0's clock says that a checkpoint is due.
    pub checkpoint: bool,
}

/// Weight of a checkpoint vote, above any number of ranks.
const CHECKPOINT_VOTE: u32 = 1 << 20;

impl Votes {
    /// Encodes one rank's vote. Only one rank may vote for a checkpoint.
    pub fn of_rank(stops: bool, wants_checkpoint: bool) -> u32 {
        u32::from(stops) + if wants_checkpoint { CHECKPOINT_VOTE } else { 0 }
    }

    /// Combines these votes with `other`.
    #[must_use]
    pub fn and(self, other: Votes) -> Self {
        Votes { stop: self.stop.max(other.stop), checkpoint: self.checkpoint || other.checkpoint }
    }

    /// Decodes the sum of all ranks' votes.
    pub fn from_sum(sum: u64) -> Self {
        let unit = u64::from(CHECKPOINT_VOTE);
        Votes { stop: sum % unit, checkpoint: sum >= unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_survive_the_sum() {
        for (n_stops, checkpoint) in [(0, false), (1, false), (4096, true), (0, true)] {
            let sum: u32 =
                (0..5000).map(|rank| Votes::of_rank(rank < n_stops, checkpoint && rank == 0)).sum();
            assert_eq!(Votes::from_sum(u64::from(sum)), Votes { stop: n_stops, checkpoint });
            assert_eq!(sum as f32 as u32, sum, "exact in f32");
        }
    }

    #[test]
    fn a_signal_is_recorded_and_the_process_continues() {
        let signals = StopSignals::listen(&World::single()).unwrap();
        assert_eq!(signals.received(), None);
        low_level::raise(SIGUSR1).unwrap();
        assert_eq!(signals.received(), Some("SIGUSR1"));
    }
}
