//! Training: one step, the loop over steps and epochs, evaluation, stopping and resuming.
//!
//! On the CPU a step is complete when it returns. On a GPU it is enqueued: the host waits for nothing and allocates nothing,
//! which `ddp/tests/program/gpu/program.rs` counts. Numbers that change from step to step (learning rate, step, first row) are
//! in device memory, so that a step can be captured once and replayed. A loss that is not finite, or above the
//! step's limit, stops the update on the device, and the host reads that one step later. Only with a scaled loss (f16) does the host wait for each step, since a step
//! that overflowed is not counted.

pub mod early_stopping;
pub mod findings;
pub mod error;
mod review;
pub mod best_weights;
#[doc(hidden)]
pub mod claimed_folder;
pub mod metrics;
mod eval_readback;
mod spikes;
pub mod stop_signals;
pub mod eval_votes;
pub mod evaluate;
pub mod calibration;
pub mod importance;
mod votes;
pub mod options;
pub mod step_info;
pub mod step_times;
mod run_clock;
mod waiting_for_cores;
mod bottleneck;
mod late_ranks;
mod bad_steps;
mod step_inputs;
mod step;
mod matmul_choices;
#[doc(hidden)]
pub mod gpu_step;
#[doc(hidden)]
pub mod statistics;
pub mod trainer;
pub mod evaluations;
mod rank_save;
pub mod autosave;
pub mod replica_guard;
pub mod setup;
pub mod self_check;
mod diagnosis;
pub mod resume;
pub mod checkpoints;
pub mod loop_plan;
pub mod training_loop;

pub use checkpoints::Checkpoints;
pub use error::TrainError;
pub use trainer::{Trainer, TrainerOptions};
