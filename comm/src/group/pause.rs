//! Pauses of a polling loop.

use std::time::{Duration, Instant};

/// For this long the loop polls without a pause.
const SPIN: Duration = Duration::from_micros(30);
/// For this long it only yields to other threads: a step of a small model is shorter than the shortest sleep, and the device
/// would be idle until the host enqueues the next step.
const YIELD: Duration = Duration::from_millis(2);
/// The pause after that.
const SLEEP: Duration = Duration::from_micros(50);

/// The pauses of one polling loop.
pub(super) struct Pause {
    start: Instant,
}

impl Pause {
    pub(super) fn new() -> Self {
        Pause { start: Instant::now() }
    }

    /// Pauses before the next poll.
    pub(super) fn once(&mut self) {
        let waited = self.start.elapsed();
        if waited < SPIN {
            std::hint::spin_loop();
        } else if waited < YIELD {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
    }

    /// Time since the loop began.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
