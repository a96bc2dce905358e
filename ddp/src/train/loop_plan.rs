//! Inputs of a training loop, the work between two of its steps, and its end.

use std::path::PathBuf;

use ddp_comm::World;

use crate::checkpoint::{LeftOut, RunState};
use crate::config::{Config, Length, TrainConfig};
use crate::data::Loaded;
use crate::optim::run_schedule::RunSchedule;
use crate::run_folder::RunDir;
use crate::train::resume::Resumed;
use crate::train::setup::BatchPartition;
use crate::train::stop_signals::StopSignals;
use crate::train::trace::TracePlan;

/// Inputs of a training loop.
pub struct LoopPlan<'a> {
    /// Ranks and collectives.
    pub world: &'a World,
    /// Config of the run.
    pub config: &'a Config,
    /// Training and evaluation rows.
    pub data: &'a Loaded,
    /// Partition of the rows over steps, ranks and micro-batches.
    pub partition: &'a BatchPartition,
    /// Learning-rate schedules.
    pub schedule: RunSchedule,
    /// Floating-point operations of the matmuls of a step per row.
    pub flop_per_row: u64,
    /// Signals that this rank receives.
    pub signals: &'a StopSignals,
    /// Folder of the run, the same on all ranks.
    pub folder: PathBuf,
    /// That folder on the rank that owns it.
    pub run_dir: Option<&'a RunDir>,
    /// The command that resumes the run after it was stopped.
    pub resume_command: String,
    /// Requests for traces.
    pub trace: TracePlan,
}

/// Whether a run that has come as far as `state`, after `n_steps`, has trained for as long as its config says, unless early stopping
/// ends it.
pub fn is_long_enough(config: &Config, state: &RunState, n_steps: u64) -> bool {
    match config.train.length {
        Length::Epochs(n) => state.cursor >= n as u64 * state.n_rows,
        Length::Steps(n) => n_steps >= n as u64,
    }
}

/// The key whose limit stops a run that has come as far as `state`, after `n_steps`, to be resumed.
pub(super) fn stop_key(train: &TrainConfig, state: &RunState, n_steps: u64) -> Option<&'static str> {
    let has_passed = |n_epochs: u64| state.cursor >= n_epochs.saturating_mul(state.n_rows);
    if train.stop_after_steps.is_some_and(|limit| n_steps >= limit) {
        Some("train.stop_after_steps")
    } else {
        train.stop_after_epochs.is_some_and(has_passed).then_some("train.stop_after_epochs")
    }
}

/// Work between two steps, the same on all ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    /// Whether an epoch has ended, which is evaluated.
    pub(super) ends_epoch: bool,
    /// Whether an evaluation within an epoch is due.
    pub(super) eval: bool,
    /// Whether a checkpoint is due in any case.
    pub(super) save: bool,
    /// Whether a run that is complete saves a checkpoint.
    pub(super) end: bool,
}

/// End of a training loop.
#[derive(Debug)]
pub enum Ending {
    /// The run is complete.
    Complete,
    /// The run stopped early and saved a checkpoint; holds the reason.
    Stopped(String),
    /// The run must continue from a checkpoint, without the updates of some steps.
    RolledBack {
        /// The checkpoint.
        to: Box<Resumed>,
        /// The steps whose updates are left out.
        left_out: Vec<LeftOut>,
    },
}
