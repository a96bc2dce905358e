//! `[log]`: how often metrics are written.

use super::key::{count, switch};
use super::limits::MAX_STEPS;
use super::raw::RawConfig;
use super::section::section;

section! {
    /// `[log]`
    #[derive(Debug, Clone, PartialEq)]
    pub struct LogConfig in "log", read(raw: &RawConfig), write {
        /// Optimizer steps between two `step` events.
        every_steps: usize = count(1, MAX_STEPS)
        .help("Optimizer steps between two `step` events in metrics.jsonl")
        .default("50")
        .hint("1 logs each step")
        .synonyms(&["log_every", "log_interval", "logging_steps", "log_every_n_steps"])
        .may_change();

        /// Whether the numbers of events also go to event files of TensorBoard.
        tensorboard: bool = switch()
        .help("Also write losses, metrics and rates as TensorBoard event files into `tb/` of the run's folder")
        .default("false")
        .may_change();
    }
}
