//! Errors of the optimizer's settings and of the update.

use ddp_kernels::KernelError;

use crate::exit_code;
use crate::optim::loss_scaler::LossScalerError;

/// The result of this room's functions.
pub type Result<T, E = OptimError> = std::result::Result<T, E>;

/// An error of schedules, parameter groups and the update.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum OptimError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Kernel(#[from] KernelError),
    /// The loss scale of f16 left its range.
    #[error(transparent)]
    #[diagnostic(transparent)]
    LossScaler(#[from] LossScalerError),
    /// A setting that a config would refuse.
    #[error("`{name}`: expected {expected}, got {got}")]
    #[diagnostic(help(
        "docs/config.md has the usual values; `OptimizerConfig::new` sets those of an optimizer"
    ))]
    Setting {
        /// The key in a config; the field has the same name, or nearly so.
        name: &'static str,
        expected: &'static str,
        got: f64,
    },
    /// The schedule depends on the run's length, which is not known.
    #[error("the schedule \"{kind}\" needs the number of steps of the run")]
    #[diagnostic(help("pass it to `Schedule::new`"))]
    ScheduleNeedsLength {
        /// Name of the schedule in the config.
        kind: &'static str,
    },
    /// The schedule is longer than the run.
    #[error(
        "the schedule \"wsd\" takes {warmup_steps} + {decay_steps} steps for warm-up and decay, but the run has {total_steps} steps"
    )]
    #[diagnostic(help(
        "shorten `schedule.warmup_steps` or `schedule.decay_steps`, or give them as fractions; or train longer"
    ))]
    ScheduleTooLong { warmup_steps: u64, decay_steps: u64, total_steps: u64 },
    /// A group's pattern matches no parameter.
    #[error("`optimizer.groups`: no parameter matches \"{pattern}\"")]
    #[diagnostic(help("the parameters are {names}"))]
    NoSuchParameter {
        /// The group's pattern.
        pattern: String,
        /// Names of all parameters.
        names: String,
    },
    /// Earlier groups match all parameters of this group.
    #[error(
        "`optimizer.groups`: \"{pattern}\" applies to no parameter: the earlier {earlier} matches all of its parameters ({names})"
    )]
    #[diagnostic(help("the first matching group applies: put the narrower pattern first, or remove one"))]
    HiddenGroup {
        /// The group's pattern.
        pattern: String,
        /// Patterns of the earlier groups, quoted.
        earlier: String,
        /// Parameters that the pattern matches.
        names: String,
    },
}

impl OptimError {
    /// Exit status of a process that ends with this error; see [`exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::LossScaler(_) => exit_code::FAILED,
            _ => exit_code::USAGE,
        }
    }
}
