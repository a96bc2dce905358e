//! Training: one step, the loop over steps and epochs, evaluation, stopping and resuming.

pub mod autosave;
pub mod early_stopping;
pub mod error;
pub mod evaluate;
pub(crate) mod gpu_step;
pub mod options;
pub mod resume;
mod run_clock;
pub mod setup;
mod step;
pub mod step_info;
pub mod stop_signals;
pub mod train_loss;
pub mod trainer;
pub mod training_loop;

pub use error::TrainError;
