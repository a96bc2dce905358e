//! Errors of datasets and loaders. A message says what was expected and found, and a remedy.

use std::any::Any;
use std::error::Error;
use std::{fmt, io};

use ddp_comm::CommError;
use ddp_kernels::{Device, KernelError};
use miette::Diagnostic;

use crate::data::tensor_rows_error::TensorRowsError;
use crate::exit_code;
use crate::storage::user_file::FileError;
use crate::storage::write_error::WriteError;

/// Result of this room's functions.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

/// An error of a dataset of another crate, which knows what its rows come from.
pub trait SourceError: Diagnostic + Error + Send + Sync + Any {
    /// Whether reading failed; otherwise the command, config or data are at fault.
    fn is_failure(&self) -> bool;
}

/// Any [`SourceError`].
#[derive(Debug)]
pub struct AnySourceError(Box<dyn SourceError>);

impl fmt::Display for AnySourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for AnySourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl Diagnostic for AnySourceError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.help()
    }
}

/// A fault of the rows of a run (exit status 2), or a failure to read or load them.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum DataError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Comm(Box<CommError>),
    /// A file could not be opened or read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    File(#[from] FileError),
    /// A file could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Write(#[from] WriteError),
    /// An error of a dataset of another crate.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Source(AnySourceError),
    /// Tensors of a program that are not rows.
    #[error(transparent)]
    #[diagnostic(transparent)]
    TensorRows(#[from] TensorRowsError),
    /// More rows than `data.balance` can count.
    #[error("`data.balance` takes up to 4294967295 training rows, {source_name} has {n_rows}")]
    #[diagnostic(help("use `loss.class_weights` = \"balanced\" instead"))]
    #[allow(missing_docs)]
    TooManyToBalance { source_name: String, n_rows: usize },
    /// A setting that contradicts the preprocessing that comes with the weights.
    #[error("`{key}` is \"{value}\", but the model of --init-from has {there}")]
    #[diagnostic(help(
        "use the setting of that model, or fit the preprocessing to the training rows with --refit-preprocessing"
    ))]
    OtherPreprocessing {
        /// The config key.
        key: &'static str,
        value: &'static str,
        /// The model's preprocessing.
        there: &'static str,
    },
    /// Rows that exceed the memory of the GPU.
    #[error("no room on the GPU for {rows} ({mib} MiB): {source}")]
    #[diagnostic(help(
        "{}leave `data.placement` at \"auto\", or store the features as f16, bf16 or u8",
        source.help().map_or_else(String::new, |of_gpu| format!("{of_gpu}\nhint: "))
    ))]
    RowsNotOnDevice {
        /// Description of the rows.
        rows: String,
        /// Their size in MiB.
        mib: usize,
        /// The error of the GPU.
        source: KernelError,
    },
    /// Rows that were loaded for another device than the model's.
    #[error("the model is on {model}, and the rows of this step were loaded for {rows}")]
    #[diagnostic(help(
        "create the loader for the model's device: `LoaderOptions::new(trainer.model().device())`"
    ))]
    RowsElsewhere { model: Device, rows: Device },
    /// Rows that a loader has divided among other ranks than those of the trainer: their gradients would be counted several times, or not at all.
    #[error("the rows of this step are divided among {of_rows} ranks, and the trainer has {own}")]
    #[diagnostic(help(
        "give the loader the world of the trainer: `rows.batches(n).across(world)`, or `DataLoader::new(world, ..)`"
    ))]
    RowsOfOtherRanks { of_rows: usize, own: usize },
    /// An epoch was requested after the last one of the plan.
    #[error("the loader has no batches left: the plan's epochs are over")]
    #[diagnostic(help(
        "plan as many epochs as the loop takes: `BatchPlan {{ n_epochs: Some(n), .. }}`, or `None` for no end"
    ))]
    PlanEnded,
    /// The system refused to start a thread.
    #[error("can't start a thread that loads rows: {source}")]
    #[diagnostic(help("set a smaller `data.loader_threads`, or raise the system's limit of threads"))]
    LoaderThread { source: io::Error },
    /// A split that leaves no rows to train on or to evaluate.
    #[error(
        "{source_name}: {empty} left when {} split by `data.eval_fraction` = {fraction}",
        if *n_rows == 1 { "1 row is".to_owned() } else { format!("{n_rows} rows are") }
    )]
    #[diagnostic(help("change `data.eval_fraction`, or name a file with test rows in `data.eval`"))]
    EmptySplit {
        source_name: String,
        /// Rows before the split.
        n_rows: usize,
        /// The fraction to evaluate.
        fraction: f64,
        /// "no test rows" or "no training rows".
        empty: &'static str,
    },
    /// Fewer rows than ranks.
    #[error("{source_name}: {n_rows} training rows, fewer than the {world_size} ranks")]
    #[diagnostic(help("start at most {n_rows} ranks (`mpirun -n {n_rows}`)"))]
    FewerRowsThanRanks {
        source_name: String,
        /// Training rows.
        n_rows: usize,
        world_size: usize,
    },
    /// An error of a user's dataset.
    #[error("dataset {source_name}: {reason}")]
    Custom {
        /// [`super::Dataset::source`]
        source_name: String,
        reason: String,
    },
}

impl DataError {
    /// An error of a dataset of another crate.
    pub fn from_source(error: impl SourceError) -> Self {
        DataError::Source(AnySourceError(Box::new(error)))
    }

    /// The error of a dataset of another crate, where it is an `E`.
    pub fn source_error<E: SourceError>(&self) -> Option<&E> {
        let Self::Source(AnySourceError(error)) = self else { return None };
        let error: &dyn Any = &**error;
        error.downcast_ref()
    }

    /// [`DataError::source_error`], to be changed.
    pub fn source_error_mut<E: SourceError>(&mut self) -> Option<&mut E> {
        let Self::Source(AnySourceError(error)) = self else { return None };
        let error: &mut dyn Any = &mut **error;
        error.downcast_mut()
    }

    /// Exit status of a process that ends with this error; see [`exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::FewerRowsThanRanks { .. } => exit_code::ENVIRONMENT,
            Self::Write(_) => exit_code::IO,
            _ if self.is_failure() => exit_code::FAILED,
            _ => exit_code::USAGE,
        }
    }

    /// Whether the run failed; otherwise the command, config or data are at fault.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Source(AnySourceError(error)) => error.is_failure(),
            Self::Kernel(_)
            | Self::Comm(_)
            | Self::Write(_)
            | Self::RowsNotOnDevice { .. }
            | Self::LoaderThread { .. } => true,
            _ => false,
        }
    }
}

impl From<CommError> for DataError {
    fn from(error: CommError) -> Self {
        DataError::Comm(Box::new(error))
    }
}
