//! Errors of predicting: errors of the lower rooms, and errors of the output.

use std::path::PathBuf;

use ddp::checkpoint::CheckpointError;
use ddp::config::ConfigError;
use ddp::data::DataError;
use ddp::model::ModelError;
use ddp::report::ReportError;
use ddp::storage::write_error::WriteError;
use ddp_comm::CommError;
use ddp_kernels::KernelError;

/// Result of this room's functions.
pub type Result<T, E = PredictError> = std::result::Result<T, E>;

/// An error of predicting.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum PredictError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Comm(Box<CommError>),
    /// The rows cannot be read or used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Data(Box<DataError>),
    /// The model file cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint cannot be found or read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The config of the model cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(Box<ConfigError>),
    /// The predictions could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Write(#[from] WriteError),
    /// The predictions could not be printed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Report(#[from] ReportError),
    /// The predictions cannot be written to this place or in this form.
    #[error("can't write predictions to `{out}`: {reason}")]
    #[diagnostic(help("{hint}"))]
    Output {
        /// The output as the user wrote it.
        out: String,
        reason: String,
        hint: String,
    },
    /// The arguments do not fit the model.
    #[error("{reason}")]
    #[diagnostic(help("{hint}"))]
    Usage {
        /// The argument and what is wrong with it.
        reason: String,
        hint: String,
    },
    /// The output exists.
    #[error("`{}` exists", path.display())]
    #[diagnostic(help("name another file, or replace it with --overwrite"))]
    OutExists {
        /// The existing file.
        path: PathBuf,
    },
    /// A rank wrote its shard to a folder that rank 0 does not see.
    #[error(
        "the shard of rank {rank} is not at `{}`: the ranks do not share the folder of the output", path.display()
    )]
    #[diagnostic(help("write to a shared file system, or run on one host"))]
    NotShared {
        /// Rank that wrote the shard.
        rank: usize,
        /// Path of the shard.
        path: PathBuf,
    },
    /// Rows in memory have the wrong width.
    #[error("expected rows of {expected} features, got {got} values, which is not a multiple of it")]
    RowWidth {
        /// Features of a row.
        expected: usize,
        /// Number of values.
        got: usize,
    },
}

impl From<CommError> for PredictError {
    fn from(error: CommError) -> Self {
        PredictError::Comm(Box::new(error))
    }
}

impl From<DataError> for PredictError {
    fn from(error: DataError) -> Self {
        PredictError::Data(Box::new(error))
    }
}

impl From<CheckpointError> for PredictError {
    fn from(error: CheckpointError) -> Self {
        PredictError::Checkpoint(Box::new(error))
    }
}

impl From<ConfigError> for PredictError {
    fn from(error: ConfigError) -> Self {
        PredictError::Config(Box::new(error))
    }
}
