//! Waiting for something that only asking tells.

use std::time::{Duration, Instant};

/// As long as this it is asked without a break: most waits for a device are shorter, and sleep takes longer.
const SPIN: Duration = Duration::from_micros(30);
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
        if self.start.elapsed() < SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(SLEEP);
        }
    }

    /// Since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
