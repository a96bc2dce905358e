//! The error type of the crate: the union of the rooms' errors.
//!
//! Every message says what happened, where (file, line, column, key), and expected against got; where there is a way out,
//! `help` of `miette::Diagnostic` names it, and [`ddp_kernels::hint::with_hint`] prints both. [`Error::exit_code`] maps an error to an exit status of [`exit_code`].
//!
//! ```
//! use ddp::prelude::*;
//!
//! let x = Tensor::ones(&[2, 3], DType::F32, Device::Cpu)?;
//! let error = ddp::Error::from(x.matmul(&x).unwrap_err());
//! assert!(error.to_string().contains("[2, 3]"));
//! assert_eq!(error.exit_code(), ddp::exit_code::FAILED);
//! # Ok::<(), KernelError>(())
//! ```

use std::{fmt, io};

use ddp_comm::CommError;
use ddp_kernels::KernelError;
use ddp_kernels::hint::with_hint;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::exchange::ExchangeError;
use crate::exit_code;
use crate::model::ModelError;
use crate::optim::OptimError;
use crate::report::ReportError;
use crate::run_folder::FolderError;
use crate::storage::user_file::FileError;
use crate::storage::write_error::WriteError;
use crate::train::TrainError;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the library. `{:?}` shows message and hint, as `main` prints them.
#[derive(thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum Error {
    /// A device, tensor or operation failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed, or the ranks disagree.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Comm(Box<CommError>),
    /// A program's own files and streams.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file that the user named could not be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    File(#[from] FileError),
    /// A file could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Write(#[from] WriteError),
    /// The config cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(Box<ConfigError>),
    /// The data cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Data(Box<DataError>),
    /// The optimizer's settings are invalid, or its update failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Optim(OptimError),
    /// The settings exclude each other in the exchange of gradients.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Exchange(ExchangeError),
    /// A checkpoint could not be written, found or read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The run folder, or the checkpoint in it, does not fit this run.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Folder(Box<FolderError>),
    /// Results could not be written to stdout.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Report(ReportError),
    /// A training run failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Train(Box<TrainError>),
    /// The model file cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Model(Box<ModelError>),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_hint(self))
    }
}

impl Error {
    /// Exit status of a process that ends with this error; see [`exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Write(_) | Self::Report(_) | Self::Io(_) => exit_code::IO,
            Self::Kernel(error) => exit_code::for_kernel(error),
            Self::Comm(error) => exit_code::for_comm(error),
            Self::Data(error) => error.exit_code(),
            Self::Optim(error) => error.exit_code(),
            Self::Checkpoint(error) => error.exit_code(),
            Self::Folder(error) => error.exit_code(),
            Self::Train(error) => error.exit_code(),
            _ => exit_code::USAGE,
        }
    }

    /// Whether every rank fails with this same error at the same point, so that one of them reports it for all.
    pub fn is_same_on_all_ranks(&self) -> bool {
        match self {
            Error::Train(error) => error.is_same_on_all_ranks(),
            // All ranks see the same gradients.
            Error::Optim(OptimError::LossScaler(_)) => true,
            Error::Comm(error) => matches!(
                **error,
                CommError::Disagreement { .. }
                    | CommError::HostsWithoutMpi { .. }
                    | CommError::NoSharedMemory { .. }
                    | CommError::CountMismatch { .. }
                    | CommError::BucketCountMismatch { .. }
            ),
            _ => false,
        }
    }
}

/// Errors that are boxed, since they are larger than what functions return else.
macro_rules! boxed {
    ($($variant:ident($error:ty)),* $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Error::$variant(Box::new(error))
            }
        }

        impl From<Box<$error>> for Error {
            fn from(error: Box<$error>) -> Self {
                Error::$variant(error)
            }
        })*
    };
}
boxed!(Config(ConfigError), Comm(CommError), Folder(FolderError), Checkpoint(CheckpointError));

/// The error of a room becomes the variant `$own`, except for errors of the layers below: they keep their variant, whichever room
/// passed them on.
macro_rules! of_rooms {
    ($($error:ident { $($below:ident),* } => $own:ident;)*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                match error {
                    $($error::$below(error) => error.into(),)*
                    error => Error::$own(error.into()),
                }
            }
        })*
    };
}
of_rooms!(
    DataError { Kernel, Comm, File, Write } => Data;
    ModelError { Kernel, File } => Model;
    OptimError { Kernel } => Optim;
    ExchangeError { Kernel, Comm } => Exchange;
    ReportError { Write } => Report;
    TrainError { Kernel, Comm, Config, Data, Optim, Exchange, Checkpoint, Folder, Report, Model } => Train;
);

impl From<Box<DataError>> for Error {
    fn from(error: Box<DataError>) -> Self {
        (*error).into()
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::Device;

    use super::*;
    use crate::exit_code::{ENVIRONMENT, FAILED, IO, RESTARTABLE, USAGE};
    use crate::train::findings::Findings;

    fn full() -> io::Error {
        io::ErrorKind::StorageFull.into()
    }

    #[test]
    fn exit_codes_follow_the_table() {
        let missing = || KernelError::DeviceUnavailable {
            device: Device::Cuda(0),
            reason: "no driver".to_owned(),
            hint: "install it".to_owned(),
        };
        let path = || "out".into();
        let errors: Vec<(Error, u8)> = vec![
            (KernelError::UnknownDevice { name: "gpu".to_owned() }.into(), USAGE),
            (missing().into(), ENVIRONMENT),
            (CommError::from(missing()).into(), ENVIRONMENT),
            (TrainError::Comm(Box::new(missing().into())).into(), ENVIRONMENT),
            (KernelError::Threads { threads: 9, reason: "no memory".to_owned() }.into(), FAILED),
            (CommError::TooFewGpus { n_gpus: 2, n_ranks: 3 }.into(), ENVIRONMENT),
            (CommError::AlreadyConnected.into(), FAILED),
            (
                CommError::MissingRanks {
                    missing: vec![1],
                    world_size: 2,
                    host: "a".to_owned(),
                    ports: "port 9".to_owned(),
                    waited_s: 300.0,
                }
                .into(),
                RESTARTABLE,
            ),
            (TrainError::MoreRanksThanShards { world_size: 16, n_shards: 8 }.into(), ENVIRONMENT),
            (
                TrainError::LossNotFinite { step: 7, loss: f64::NAN, findings: Findings::default() }.into(),
                FAILED,
            ),
            (TrainError::NoGraph { reason: String::new() }.into(), FAILED),
            (TrainError::BatchOverflows.into(), USAGE),
            (
                DataError::FewerRowsThanRanks { source_name: "a.csv".to_owned(), n_rows: 3, world_size: 4 }
                    .into(),
                ENVIRONMENT,
            ),
            (WriteError { path: path(), source: full() }.into(), IO),
            (ReportError::Stdout { source: full() }.into(), IO),
            (FolderError::Unwritable { path: path(), source: full() }.into(), IO),
            (FolderError::IsFile { path: path() }.into(), USAGE),
            (CheckpointError::Folder { action: "make", path: path(), source: full() }.into(), IO),
            (CheckpointError::VerifyFailed { n_bad: 1, n: 2 }.into(), FAILED),
            (CheckpointError::NotFound { path: path() }.into(), USAGE),
        ];
        for (error, code) in errors {
            assert_eq!(error.exit_code(), code, "{error:?}");
        }
    }
}
