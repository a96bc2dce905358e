//! Waiting for something that only asking tells.

use std::time::{Duration, Instant};

/// As long as this it is asked without a break.
const SPIN: Duration = Duration::from_micros(30);
/// As long as this only other threads are let through: a step of a small model is shorter than the shortest sleep, and the
/// device would stand still until the host asks for the next one.
const YIELD: Duration = Duration::from_millis(2);
/// Between two questions after that.
const SLEEP: Duration = Duration::from_micros(50);

/// The pauses of one wait.
pub(super) struct Pause {
    start: Instant,
}

impl Pause {
    pub(super) fn new() -> Self {
        Pause { start: Instant::now() }
    }

    /// A break before the next question.
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

    /// Since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
