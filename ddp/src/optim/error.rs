//! Errors of the optimiser's settings and of the update.

use ddp_kernels::KernelError;

use crate::optim::loss_scaler::LossScalerError;

/// The result of this room's functions.
pub type Result<T, E = OptimError> = std::result::Result<T, E>;

/// An error of schedules, parameter groups and the update.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptimError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The loss scale of f16 left its range.
    #[error(transparent)]
    LossScaler(#[from] LossScalerError),
    /// A schedule that ends with the run, and nobody knows when that is.
    #[error(
        "the schedule \"{kind}\" needs the number of steps of the run\nhint: give `train.steps` or `train.epochs`"
    )]
    ScheduleNeedsLength {
        /// Its name in the config.
        kind: &'static str,
    },
    /// A schedule for a longer run.
    #[error(
        "the schedule \"wsd\" takes {warmup_steps} + {decay_steps} steps for warm-up and decay, and the run has {total_steps} steps\nhint: shorten `schedule.warmup_steps` or `schedule.decay_steps`, or give them as fractions; or train longer"
    )]
    ScheduleTooLong {
        /// Of the warm-up.
        warmup_steps: u64,
        /// Of the decay.
        decay_steps: u64,
        /// Of the run.
        total_steps: u64,
    },
    /// A parameter group of nothing.
    #[error("`optimizer.groups`: no parameter matches \"{pattern}\"\nhint: the parameters are {names}")]
    NoSuchParameter {
        /// The group's pattern.
        pattern: String,
        /// All names.
        names: String,
    },
    /// A parameter group that those before it leave nothing.
    #[error(
        "`optimizer.groups`: \"{pattern}\" has no parameter left: {earlier} before it matches all of its own ({names})\n\
         hint: the first group that matches counts: put the narrower one first, or remove one"
    )]
    HiddenGroup {
        /// The group's pattern.
        pattern: String,
        /// Those that come first, in quotes.
        earlier: String,
        /// What it would match.
        names: String,
    },
}
