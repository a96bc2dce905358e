//! `[watchdog]`: time until a lost rank is detected.

use std::time::Duration;

use super::key::{Range, number, switch};
use super::raw::RawConfig;
use super::section::section;

section! {
    /// `[watchdog]`
    #[derive(Debug, Clone, PartialEq)]
    pub struct WatchdogConfig in "watchdog", read(raw: &RawConfig), write {
        /// Whether ranks watch each other.
        enabled: bool = switch()
            .help("Whether ranks of a run notice a rank that died, froze or is stuck, and end with status 75")
            .default("true")
            .may_change();

        /// Time between two heartbeats of a rank, in s.
        interval_s: f64 = number(Range::from_to(0.01, 60.0, "a number from 0.01 to 60"))
            .help("Seconds between two heartbeats of a rank")
            .default("0.5")
            .hint("0.5 is a good start")
            .may_change();

        /// Silence after which a rank counts as lost, in s, in addition to two intervals.
        timeout_s: f64 = number(Range::from_to(0.1, 86_400.0, "a number from 0.1 to 86400"))
            .help("Seconds of silence after which a rank is lost, in addition to two intervals")
            .default("10.0")
            .hint("10 is a good start; more where hosts are suspended or overloaded for longer")
            .may_change();

        /// Longest time for a save of a rank that survives the loss of another one, in s; 0 for no save.
        save_s: f64 = number(Range::from_to(0.0, 86_400.0, "a number from 0 to 86400"))
            .help("Most seconds for the checkpoint that a rank saves when another one was lost; 0 saves none")
            .default("30.0")
            .hint("30 is a good start; more for models that take longer to write")
            .may_change();
    }
}

impl WatchdogConfig {
    /// Time between two heartbeats.
    pub fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval_s)
    }

    /// Silence after which a rank counts as lost, in addition to two intervals.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }

    /// Longest time for a save after a loss, if there is to be one.
    pub fn save_limit(&self) -> Option<Duration> {
        (self.enabled && self.save_s > 0.0).then(|| Duration::from_secs_f64(self.save_s))
    }
}
