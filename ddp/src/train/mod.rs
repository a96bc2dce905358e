//! Training: one step, the loop over steps and epochs, evaluation, stopping and resuming.
//!
//! On the CPU a step is complete when it returns. On a GPU it is enqueued: the host waits for nothing and allocates nothing,
//! which `ddp/tests/program/gpu_program.rs` counts. Numbers that change from step to step (learning rate, step, first row) are
//! in device memory, so that a step can be captured once and replayed. A loss that is not finite, or above the
//! step's limit, stops the update on the device, and the host reads that one step later. Only with a scaled loss (f16) does the host wait for each step, since a step
//! that overflowed is not counted.

pub mod autosave;
mod bad_steps;
mod baseline_warning;
pub mod best_weights;
pub mod checkpoints;
mod diagnosis;
pub mod early_stopping;
pub mod error;
mod eval_readback;
pub mod eval_votes;
pub mod evaluate;
pub mod evaluations;
pub mod findings;
#[doc(hidden)]
pub mod gpu_step;
pub mod importance;
pub mod loop_plan;
mod matmul_choices;
pub mod metrics;
pub mod options;
mod rank_save;
pub mod replica_guard;
pub mod resume;
mod run_clock;
pub mod setup;
mod spikes;
mod step;
pub mod step_info;
pub mod stop_signals;
pub mod train_loss;
pub mod trainer;
pub mod training_loop;
mod votes;
pub mod withheld;

pub use error::TrainError;
