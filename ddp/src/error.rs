//! The one error type of the crate.
//!
//! Every message says what went wrong, where (file, line, column, key), what was expected and what
//! was found; where there is a way out, the last line is `hint: ...`. [`Error::exit_code`] tells
//! the two kinds apart: 2 when the command, config or data is at fault, 1 when the run failed.

use std::path::PathBuf;

use ddp_comm::CommError;
use ddp_kernels::KernelError;

use crate::checkpoint::CheckpointError;
use crate::config::Origin;
use crate::data::DataError;
use crate::data_parallel::ExchangeError;
use crate::error_hints::{comm_message, kernel_message};
use crate::optim::OptimError;
use crate::report::ReportError;
use crate::run_folder::FolderError;
use crate::storage::atomic_write::WriteError;
use crate::storage::user_file::FileError;
use crate::train::TrainError;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, with its place and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ------------------------------------------------------------------ the layers below and the rooms
    /// A device, tensor or operation failed.
    #[error("{}", kernel_message(.0))]
    Kernel(#[from] KernelError),
    /// A collective failed, or the ranks disagree.
    #[error("{}", comm_message(.0))]
    Comm(Box<CommError>),
    /// A file that the user named could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Data that cannot be used.
    #[error(transparent)]
    Data(Box<DataError>),
    /// The optimiser's settings, or its update.
    #[error(transparent)]
    Optim(OptimError),
    /// Settings that gradients cannot be exchanged with.
    #[error(transparent)]
    Exchange(ExchangeError),
    /// Checkpoints that cannot be written, found or read.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The run's folder, or the checkpoint in it, does not fit this run.
    #[error(transparent)]
    Folder(Box<FolderError>),
    /// Results that could not be written to stdout.
    #[error(transparent)]
    Report(ReportError),
    /// A step or run failed.
    #[error(transparent)]
    Train(Box<TrainError>),

    // ------------------------------------------------------------------ model and training
    /// A model's file that is none.
    #[error("model file `{}` can't be used: {reason}\nhint: expected the model.safetensors of a run, or one with the same names and shapes", path.display())]
    ModelFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A model's file for another model.
    #[error("model file `{}` is of another model:\n  {differences}\nhint: compare `model` and the data's columns with those of the run that wrote it", path.display())]
    ModelMismatch {
        /// The file.
        path: PathBuf,
        /// Every difference, a line each.
        differences: String,
    },
    /// A model that was trained without evaluation data, and none were named.
    #[error("the run had no evaluation data\nhint: name some with --data")]
    NoEvalData,

    // ------------------------------------------------------------------ config
    /// A config file far larger than any config.
    #[error(
        "config file `{}` has {n_bytes} bytes, expected at most {max_bytes}\n\
         hint: is it a data file? data go to `data.train` in the config",
        path.display()
    )]
    ConfigTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        n_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A config file with bytes that are not UTF-8.
    #[error("config file {at}: not UTF-8 text\nhint: save the file as UTF-8")]
    ConfigNotUtf8 {
        /// Place of the first bad byte.
        at: Box<Origin>,
    },
    /// A config file that is not TOML.
    #[error(
        "config file {at}: not valid TOML: {message}\n\
         hint: {}",
        syntax_hint(at)
    )]
    ConfigSyntax {
        /// Place of the first fault.
        at: Box<Origin>,
        /// The parser's message.
        message: String,
    },
    /// A key that no version of the config knows.
    #[error("{at}: unknown key `{key}`\nhint: {hint}")]
    UnknownKey {
        /// Where it was given.
        at: Box<Origin>,
        /// The key, with its section.
        key: String,
        /// The nearest known key, or the list of keys.
        hint: String,
    },
    /// A value of another type than the key's.
    #[error("{at}: `{key}` must be {expected}, got {got}\nhint: write `{example}`")]
    WrongType {
        /// Where it was given.
        at: Box<Origin>,
        /// The key, with its section.
        key: String,
        /// The type that is needed.
        expected: &'static str,
        /// Type and value found.
        got: String,
        /// A right value for this key.
        example: String,
    },
    /// A value of the right type that can't be used.
    #[error("{at}: `{key}` must be {expected}, got {got}\nhint: {hint}")]
    BadValue {
        /// Where it was given.
        at: Box<Origin>,
        /// The key, with its section.
        key: &'static str,
        /// The values that can be used.
        expected: String,
        /// The value found.
        got: String,
        /// The way out.
        hint: String,
    },
    /// Two keys of which only one may be given.
    #[error("{at}: `{key}` and `{other}` are both given\nhint: keep one of them: {hint}")]
    Conflict {
        /// Where the second was given.
        at: Box<Origin>,
        /// One key.
        key: &'static str,
        /// The other.
        other: &'static str,
        /// What each means.
        hint: &'static str,
    },
    /// A `--set` that is no assignment.
    #[error("`--set {arg}`: expected SECTION.KEY=VALUE\nhint: for example `--set optimizer.lr=0.001`")]
    BadSet {
        /// The argument as given.
        arg: String,
    },
}

impl Error {
    /// Exit status of the process: 2 for a bad command, config or data; 1 for a run that failed.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Write(_) | Self::Report(_) => 1,
            // A device that was named and is not there is the user's to mend; so is another config on another rank.
            Self::Kernel(KernelError::DeviceUnavailable { .. } | KernelError::UnknownDevice { .. }) => 2,
            Self::Comm(error)
                if matches!(**error, CommError::Disagreement { .. } | CommError::TooFewGpus { .. }) =>
            {
                2
            }
            Self::Kernel(_) | Self::Comm(_) => 1,
            Self::Data(error) if error.is_failure() => 1,
            Self::Optim(OptimError::LossScaler(_)) => 1,
            Self::Checkpoint(error) if error.is_failure() => 1,
            Self::Train(error) if error.is_failure() => 1,
            _ => 2,
        }
    }

    /// Whether every rank has this very error at the same place, so that one of them reports it for all.
    pub fn is_same_on_all_ranks(&self) -> bool {
        match self {
            Error::Train(error) => error.is_same_on_all_ranks(),
            // All ranks see the same gradients.
            Error::Optim(OptimError::LossScaler(_)) => true,
            Error::Comm(error) => matches!(
                **error,
                CommError::Disagreement { .. }
                    | CommError::CountMismatch { .. }
                    | CommError::BucketCountMismatch { .. }
            ),
            _ => false,
        }
    }
}

impl From<CommError> for Error {
    fn from(error: CommError) -> Self {
        Error::Comm(Box::new(error))
    }
}

impl From<FolderError> for Error {
    fn from(error: FolderError) -> Self {
        Error::Folder(Box::new(error))
    }
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        Error::Checkpoint(Box::new(error))
    }
}

// Errors of the layers below stay recognisable, whichever room passed them on.

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Kernel(error) => Error::Kernel(error),
            DataError::Comm(error) => Error::Comm(error),
            DataError::File(error) => Error::File(error),
            DataError::Write(error) => Error::Write(error),
            error => Error::Data(Box::new(error)),
        }
    }
}

impl From<OptimError> for Error {
    fn from(error: OptimError) -> Self {
        match error {
            OptimError::Kernel(error) => Error::Kernel(error),
            error => Error::Optim(error),
        }
    }
}

impl From<ExchangeError> for Error {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Kernel(error) => Error::Kernel(error),
            ExchangeError::Comm(error) => Error::Comm(error),
            error => Error::Exchange(error),
        }
    }
}

impl From<ReportError> for Error {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::Write(error) => Error::Write(error),
            error => Error::Report(error),
        }
    }
}

impl From<TrainError> for Error {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Kernel(error) => Error::Kernel(error),
            TrainError::Comm(error) => Error::Comm(error),
            TrainError::Data(error) => (*error).into(),
            TrainError::Optim(error) => error.into(),
            TrainError::Exchange(error) => error.into(),
            TrainError::Checkpoint(error) => Error::Checkpoint(error),
            TrainError::Folder(error) => Error::Folder(error),
            TrainError::Report(error) => error.into(),
            TrainError::Lower(error) => *error,
            error => Error::Train(Box::new(error)),
        }
    }
}

fn syntax_hint(at: &Origin) -> &'static str {
    match at {
        Origin::File { path, .. } if path.extension().is_some_and(|ext| ext == "csv") => {
            "a data file goes to the config's `data.train`, or to `--set data.train=FILE`"
        }
        _ => "lines are `key = value` under `[section]`; texts need quotes",
    }
}
