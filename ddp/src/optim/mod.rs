//! The update: optimizer and its state, parameter groups, learning-rate schedules, and the loss scale of f16.
//!
//! ```
//! use ddp::optim::{Schedule, ScheduleConfig, ScheduleShape, Span, Warmup};
//!
//! let warmup = Warmup { length: Span::Steps(3), start: None };
//! let schedule = Schedule::new(&ScheduleConfig { warmup, shape: ScheduleShape::Constant }, 0.1, None)?;
//! assert_eq!((schedule.lr(0), schedule.lr(10)), (0.1 / 4.0, 0.1));
//! # Ok::<(), ddp::optim::OptimError>(())
//! ```

#[doc(hidden)]
pub mod loss_scaler;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod param_groups;
#[doc(hidden)]
pub mod schedule;
#[doc(hidden)]
pub mod run_schedule;
pub(crate) mod update_scale;
#[doc(hidden)]
pub mod optimizer;

pub use self::error::OptimError;
#[doc(hidden)]
pub use self::loss_scaler::LossScaler;
pub use self::loss_scaler::LossScalerConfig;
pub use self::optimizer::Optimizer;
#[doc(hidden)]
pub use self::param_groups::ParamGroups;
pub use self::schedule::Schedule;
#[doc(hidden)]
pub use self::update_scale::DeviceScale;
pub use self::update_scale::UpdateScale;
pub use crate::config::{
    OptimizerConfig, OptimizerKind, ParamGroup, ScheduleConfig, ScheduleShape, Span, Warmup,
};
