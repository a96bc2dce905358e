//! The update: optimiser and its state, parameter groups, learning-rate schedules, the loss scale of f16.

pub mod error;
pub mod loss_scaler;
pub mod optimizer;
pub mod param_groups;
pub mod run_schedule;
pub mod schedule;
pub(crate) mod second_moments;

pub use error::OptimError;
pub use optimizer::{Optimizer, UpdateScale};
pub use param_groups::ParamGroups;
