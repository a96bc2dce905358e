//! The update: optimizer and its state, parameter groups, learning-rate schedules, and the loss scale of f16.
//!
//! ```
//! use ddp::config::{ScheduleConfig, ScheduleShape, Span, Warmup};
//! use ddp::optim::schedule::Schedule;
//!
//! let warmup = Warmup { length: Span::Steps(3), start: None };
//! let schedule = Schedule::new(&ScheduleConfig { warmup, shape: ScheduleShape::Constant }, 0.1, None)?;
//! assert_eq!((schedule.lr(0), schedule.lr(10)), (0.1 / 4.0, 0.1));
//! # Ok::<(), ddp::optim::OptimError>(())
//! ```

pub mod loss_scaler;
pub mod error;
pub mod param_groups;
pub mod schedule;
pub mod run_schedule;
pub(crate) mod update_scale;
pub mod optimizer;

pub use crate::config::{OptimizerConfig, OptimizerKind, ScheduleConfig};
pub use error::OptimError;
pub use optimizer::Optimizer;
pub use param_groups::ParamGroups;
pub use update_scale::{DeviceScale, UpdateScale};
