//! Wishes to stop: SIGTERM, SIGINT and SIGUSR1 let the step under way end, and the run saves itself before it goes.
//!
//! A signal reaches one rank, or some of them at different moments. So a rank only votes to stop, with its next step, and
//! the votes travel with the step's sums: all ranks learn of it in the same step.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

/// Exit status of a second SIGINT: that of a process which SIGINT has ended.
const INTERRUPTED: i32 = 130;

/// The signals that this process has got.
#[derive(Debug, Default)]
pub struct StopSignals {
    /// The last one; 0 for none.
    last: Arc<AtomicUsize>,
}

impl StopSignals {
    /// From now on the signals are noted. A second SIGINT ends the process at once.
    ///
    /// # Errors
    /// The system's, for a handler that it does not take.
    pub fn listen() -> io::Result<Self> {
        let signals = StopSignals::default();
        let is_interrupted = Arc::new(AtomicBool::new(false));
        // In this order: the first SIGINT finds the flag down and puts it up.
        flag::register_conditional_shutdown(SIGINT, INTERRUPTED, is_interrupted.clone())?;
        flag::register(SIGINT, is_interrupted)?;
        for signal in [SIGTERM, SIGINT, SIGUSR1] {
            flag::register_usize(signal, signals.last.clone(), signal as usize)?;
        }
        Ok(signals)
    }

    /// The name of the last signal that this process has got, if it has got one.
    pub fn received(&self) -> Option<&'static str> {
        match self.last.load(Ordering::Relaxed) as i32 {
            0 => None,
            SIGTERM => Some("SIGTERM"),
            SIGINT => Some("SIGINT"),
            _ => Some("SIGUSR1"),
        }
    }
}

/// What ranks tell each other with a step: sums of small whole numbers, exact in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Votes {
    /// Ranks that want to stop.
    pub stop: u64,
    /// Whether rank 0's clock says that a checkpoint is due.
    pub checkpoint: bool,
}

/// More ranks than there are.
const CHECKPOINT_VOTE: u32 = 1 << 20;

impl Votes {
    /// One rank's vote. Of all ranks only one may ask for a checkpoint.
    pub fn of_rank(stops: bool, wants_checkpoint: bool) -> u32 {
        u32::from(stops) + if wants_checkpoint { CHECKPOINT_VOTE } else { 0 }
    }

    /// What the sum of all ranks' votes says.
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
    fn a_signal_is_noted_and_the_process_goes_on() {
        let signals = StopSignals::listen().unwrap();
        assert_eq!(signals.received(), None);
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert_eq!(signals.received(), Some("SIGUSR1"));
    }
}
