//! `[log]`: how often metrics are written.

use super::error::Result;
use super::key::{Key, count};
use super::limits::MAX_STEPS;
use super::raw::RawConfig;
use super::writer::Writer;

/// `[log]`
#[derive(Debug, Clone, PartialEq)]
pub struct LogConfig {
    /// Optimiser steps between two `step` events.
    pub every_steps: usize,
}

pub(super) const KEYS: &[Key] = &[count("log.every_steps", 1, MAX_STEPS)
    .help("Optimiser steps between two `step` events in metrics.jsonl")
    .default("50")
    .hint("1 logs each step")
    .synonyms(&["log_every", "log_interval", "logging_steps", "log_every_n_steps"])
    .may_change()];

impl LogConfig {
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        Ok(LogConfig { every_steps: raw.get("log.every_steps")? })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put("log.every_steps", &self.every_steps);
    }
}
