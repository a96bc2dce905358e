//! Training: one step, the loop over steps and epochs, evaluation, stopping and resuming.
//!
//! On the CPU a step is complete when it returns. On a GPU it is enqueued: the host waits for nothing and allocates nothing,
//! which `ddp/tests/program/gpu/program.rs` counts. Numbers that change from step to step (learning rate, step, first row) are
//! in device memory, so that a step can be captured once and replayed. A loss that is not finite, or above the
//! step's limit, stops the update on the device, and the host reads that one step later. Only with a scaled loss (f16) does the host wait for each step, since a step
//! that overflowed is not counted.

#[doc(hidden)]
pub mod early_stopping;
#[doc(hidden)]
pub mod findings;
#[doc(hidden)]
pub mod error;
mod review;
#[doc(hidden)]
pub mod best_weights;
#[doc(hidden)]
pub mod claimed_folder;
#[doc(hidden)]
pub mod metrics;
mod eval_readback;
mod spikes;
#[doc(hidden)]
pub mod stop_signals;
#[cfg(feature = "runs")]
#[doc(hidden)]
pub mod stop_handlers;
#[doc(hidden)]
pub mod eval_votes;
#[doc(hidden)]
pub mod evaluate;
#[doc(hidden)]
pub mod calibration;
mod votes;
#[doc(hidden)]
pub mod options;
#[doc(hidden)]
pub mod step_info;
#[doc(hidden)]
pub mod step_times;
mod run_clock;
mod waiting_for_cores;
mod bottleneck;
mod late_ranks;
mod bad_steps;
mod step_inputs;
mod update;
mod bucket_updates;
mod step;
mod matmul_choices;
mod update_place;
#[doc(hidden)]
pub mod gpu_step;
#[doc(hidden)]
pub mod statistics;
#[doc(hidden)]
pub mod trainer;
#[doc(hidden)]
pub mod evaluations;
#[doc(hidden)]
pub mod host_copies;
mod rank_save;
#[doc(hidden)]
pub mod autosave;
#[doc(hidden)]
pub mod replica_guard;
#[doc(hidden)]
pub mod setup;
#[doc(hidden)]
pub mod self_check;
mod diagnosis;
#[doc(hidden)]
pub mod trace;
#[doc(hidden)]
pub mod resume;
#[doc(hidden)]
pub mod checkpoints;
#[doc(hidden)]
pub mod loop_plan;
#[doc(hidden)]
pub mod training_loop;

pub use self::checkpoints::Checkpoints;
pub use self::error::TrainError;
pub use self::evaluate::evaluate;
pub use self::metrics::request::MetricRequest;
pub use self::trainer::{GraphMode, NonFinite, StepInfo, StepOutcome, Trainer, TrainerOptions};
#[doc(hidden)]
pub use self::trainer::{MicroBatch, StepRequest, StepRows, Withheld};
pub use crate::config::{CommDtype, EvalMetric, MetricSet, Task, ZeroStage};
pub use crate::report::EvalMetrics;
