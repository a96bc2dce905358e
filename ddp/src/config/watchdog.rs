//! `[watchdog]`: how soon a lost rank is noticed.

use std::time::Duration;

use super::error::Result;
use super::key::{Key, Range, number, switch};
use super::raw::RawConfig;
use super::writer::Writer;

/// `[watchdog]`
#[derive(Debug, Clone, PartialEq)]
pub struct WatchdogConfig {
    /// Whether ranks watch each other.
    pub enabled: bool,
    /// Time between two heartbeats of a rank, in s.
    pub interval_s: f64,
    /// Silence after which a rank is lost, in s, in addition to two intervals.
    pub timeout_s: f64,
}

pub(super) const KEYS: &[Key] = &[
    switch("watchdog.enabled")
        .help("Whether ranks of a run notice a rank that died, froze or is stuck, and end with status 75")
        .default("true")
        .may_change(),
    number("watchdog.interval_s", Range::from_to(0.01, 60.0, "a number from 0.01 to 60"))
        .help("Seconds between two heartbeats of a rank")
        .default("0.5")
        .hint("0.5 is a good start")
        .may_change(),
    number("watchdog.timeout_s", Range::from_to(0.1, 86_400.0, "a number from 0.1 to 86400"))
        .help("Seconds of silence after which a rank is lost, in addition to two intervals")
        .default("10.0")
        .hint("10 is a good start; more where hosts are suspended or overloaded for longer")
        .may_change(),
];

impl WatchdogConfig {
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        Ok(WatchdogConfig {
            enabled: raw.get("watchdog.enabled")?,
            interval_s: raw.get("watchdog.interval_s")?,
            timeout_s: raw.get("watchdog.timeout_s")?,
        })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let WatchdogConfig { enabled, interval_s, timeout_s } = self;
        writer.put("watchdog.enabled", enabled);
        writer.put("watchdog.interval_s", interval_s);
        writer.put("watchdog.timeout_s", timeout_s);
    }

    /// Time between two heartbeats.
    pub fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval_s)
    }

    /// Silence after which a rank is lost, in addition to two intervals.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }
}
