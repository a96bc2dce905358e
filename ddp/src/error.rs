//! The error type of the crate: the union of the modules' errors.
//!
//! Every message says what happened, where (file, line, column, key), and expected against got; where there is a way out, the last
//! line is `hint: ...`. [`Error::exit_code`] maps an error to an exit status of [`exit_code`].
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

use ddp_comm::CommError;
use ddp_kernels::{Device, KernelError};

use crate::checkpoint::CheckpointError;
use crate::commands::launch::error::LaunchError;
use crate::config::{ConfigError, UnknownMetric};
use crate::data::DataError;
use crate::data_parallel::ExchangeError;
pub use crate::error_hints::ModelCommand;
use crate::error_hints::{comm_message, kernel_message, model_data_message};
use crate::exit_code;
use crate::export::ExportError;
use crate::model::ModelError;
use crate::optim::OptimError;
use crate::predict::PredictError;
use crate::report::ReportError;
use crate::run_folder::FolderError;
use crate::storage::atomic_write::WriteError;
use crate::storage::user_file::FileError;
use crate::train::TrainError;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The most threads of a rank per core of its host.
pub(crate) const MAX_THREADS_PER_CORE: usize = 4;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum Error {
    // ------------------------------------------------------------------ the crates and modules below
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
    /// The config cannot be used.
    #[error(transparent)]
    Config(Box<ConfigError>),
    /// The data cannot be used.
    #[error(transparent)]
    Data(Box<DataError>),
    /// The rows cannot be used for a trained model.
    #[error("{}", model_data_message(.0, *.1))]
    ModelData(Box<DataError>, ModelCommand),
    /// The optimiser's settings are invalid, or its update failed.
    #[error(transparent)]
    Optim(OptimError),
    /// The settings exclude each other in the exchange of gradients.
    #[error(transparent)]
    Exchange(ExchangeError),
    /// A checkpoint could not be written, found or read.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The run folder, or the checkpoint in it, does not fit this run.
    #[error(transparent)]
    Folder(Box<FolderError>),
    /// Results could not be written to stdout.
    #[error(transparent)]
    Report(ReportError),
    /// A training run failed.
    #[error(transparent)]
    Train(Box<TrainError>),
    /// Predictions could not be made or written.
    #[error(transparent)]
    Predict(Box<PredictError>),

    // ------------------------------------------------------------------ model and training
    /// The model file cannot be used.
    #[error(transparent)]
    Model(Box<ModelError>),
    /// Ranks that are threads, in a process that a launcher started as one of several.
    #[error(
        "--rank-threads {n_threads} makes ranks of threads, and the launcher has started {world_size} processes\n\
         hint: start one process, or leave --rank-threads out"
    )]
    RankThreadsUnderLauncher {
        /// The flag's value.
        n_threads: usize,
        /// Processes.
        world_size: usize,
    },
    /// The model has no form in the requested format.
    #[error(transparent)]
    Export(Box<ExportError>),
    /// Far more threads than cores, which only wait for each other.
    #[error(
        "--threads {n_threads}: expected at most {max}, which is {} per core of this host\n\
         hint: leave --threads out, and each rank takes its share of the cores",
        MAX_THREADS_PER_CORE
    )]
    TooManyThreads {
        /// The flag's value.
        n_threads: usize,
        max: usize,
    },
    /// A CUDA graph, requested where there is no GPU.
    #[error(
        "--cuda-graph on: this rank computes on the CPU, which has no CUDA graphs\n\
         hint: add --device cuda to see why there is no GPU, or leave --cuda-graph out"
    )]
    NoGraphOnCpu,
    /// Kernels of GPUs that were to be compiled into the cache.
    #[error(
        "the kernels cannot be compiled into the cache: {reason}\n\
         hint: pip install nvidia-cuda-nvrtc; DDP_TRAIN_CACHE names the folder of the cache"
    )]
    KernelCache {
        /// Missing part, or the compiler's log.
        reason: String,
    },
    /// Several processes of PyTorch's launcher, which would each train alone.
    #[error(
        "torchrun started this process as rank {rank} of {world_size}, but the ranks of ddp-train are started by MPI\n\
         hint: mpirun -n {world_size} ddp-train {arguments}"
    )]
    Torchrun {
        /// `RANK`.
        rank: usize,
        /// `WORLD_SIZE`.
        world_size: usize,
        /// The arguments of this process.
        arguments: String,
    },
    /// Another number of ranks than `--expect-world`.
    #[error(
        "--expect-world {expected}: this world has {world_size} {}\n\
         hint: check how the launcher starts the ranks; under Slurm use srun --mpi=pmix",
        if *world_size == 1 { "rank" } else { "ranks" }
    )]
    OtherWorldSize {
        /// The flag's value.
        expected: usize,
        world_size: usize,
    },
    /// The ranks could not be started.
    #[error(transparent)]
    Launch(Box<LaunchError>),
    /// The man pages could not be written.
    #[error("can't write the man page `{}`: {source}\nhint: check the folder and its permissions", path.display())]
    ManPage {
        path: std::path::PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// `--metrics` names a metric that evaluations do not give.
    #[error("--metrics: `{}` is not a metric here, expected names of: {}\nhint: {}", .0.name, .0.expected, .0.hint)]
    UnknownMetric(Box<UnknownMetric>),
    /// `--importance` with another number of metrics than one, or with a table.
    #[error(
        "--importance measures one metric, got --metrics {names}\n\
         hint: name one that is a number, such as --metrics {example}"
    )]
    ImportanceMetrics {
        /// The names, as given.
        names: String,
        /// A metric of the model's task.
        example: String,
    },
    /// The model was trained without evaluation data, and the command names none.
    #[error("the run had no evaluation data\nhint: name the rows to evaluate with --data")]
    NoEvalData,
}

impl Error {
    /// The error of rows that `command` reads for a trained model.
    pub(crate) fn of_model_data(error: DataError, command: ModelCommand) -> Self {
        match error.into() {
            Error::Data(error) => Error::ModelData(error, command),
            error => error,
        }
    }

    /// Exit status of a process that ends with this error; see [`exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Write(_) | Self::Report(_) | Self::ManPage { .. } => exit_code::IO,
            Self::Torchrun { .. } | Self::OtherWorldSize { .. } => exit_code::ENVIRONMENT,
            Self::Launch(error) => error.exit_code(),
            Self::Kernel(error) => kernel_exit_code(error),
            Self::Comm(error) => comm_exit_code(error),
            Self::Folder(error) => match **error {
                FolderError::Unwritable { .. } => exit_code::IO,
                FolderError::Deleted { .. } | FolderError::Lost { .. } => exit_code::FAILED,
                _ => exit_code::USAGE,
            },
            Self::Data(error) if matches!(**error, DataError::FewerRowsThanRanks { .. }) => {
                exit_code::ENVIRONMENT
            }
            Self::Data(error) | Self::ModelData(error, _) if error.is_failure() => exit_code::FAILED,
            Self::Optim(OptimError::LossScaler(_)) => exit_code::FAILED,
            Self::Checkpoint(error) => checkpoint_exit_code(error),
            Self::Train(error) => match **error {
                TrainError::MoreRanksThanShards { .. } => exit_code::ENVIRONMENT,
                TrainError::NoGraph { .. } => exit_code::FAILED,
                TrainError::NoMajority { .. } => exit_code::RESTARTABLE,
                _ if error.is_failure() => exit_code::FAILED,
                _ => exit_code::USAGE,
            },
            _ => exit_code::USAGE,
        }
    }

    /// Whether every rank fails with this same error at the same point, so that one of them reports it for all.
    pub fn is_same_on_all_ranks(&self) -> bool {
        match self {
            Error::Train(error) => error.is_same_on_all_ranks(),
            Error::OtherWorldSize { .. } => true,
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

fn kernel_exit_code(error: &KernelError) -> u8 {
    match error {
        KernelError::UnknownDevice { .. } | KernelError::UnsupportedDevice { .. } => exit_code::USAGE,
        // A CPU is always there: the command asks it for something that only GPUs do.
        KernelError::DeviceUnavailable { device: Device::Cpu, .. } => exit_code::USAGE,
        KernelError::DeviceUnavailable { .. } => exit_code::ENVIRONMENT,
        _ => exit_code::FAILED,
    }
}

fn comm_exit_code(error: &CommError) -> u8 {
    match error {
        CommError::Kernel(error) => kernel_exit_code(error),
        CommError::Disagreement { .. }
        | CommError::TooFewGpus { .. }
        | CommError::GpuTaken { .. }
        | CommError::NcclUnavailable { .. }
        | CommError::UnorderedSums { .. }
        | CommError::NotJoinedByMpi { .. }
        | CommError::LauncherWithoutMpi { .. }
        | CommError::LauncherMismatch { .. } => exit_code::ENVIRONMENT,
        _ => exit_code::FAILED,
    }
}

fn checkpoint_exit_code(error: &CheckpointError) -> u8 {
    match error {
        CheckpointError::Save { .. }
        | CheckpointError::Folder { .. }
        | CheckpointError::ReadBack { .. }
        | CheckpointError::RankFailed { .. } => exit_code::IO,
        _ if error.is_failure() => exit_code::FAILED,
        _ => exit_code::USAGE,
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Error::Config(Box::new(error))
    }
}

impl From<CommError> for Error {
    fn from(error: CommError) -> Self {
        Error::Comm(Box::new(error))
    }
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Kernel(error) => error.into(),
            ModelError::File(error) => error.into(),
            other => Error::Model(Box::new(other)),
        }
    }
}

impl From<ExportError> for Error {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Write(error) => Error::Write(error),
            other => Error::Export(Box::new(other)),
        }
    }
}

impl From<FolderError> for Error {
    fn from(error: FolderError) -> Self {
        Error::Folder(Box::new(error))
    }
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Error::Launch(Box::new(error))
    }
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        Error::Checkpoint(Box::new(error))
    }
}

// Errors of the layers below keep their variant, whichever module passed them on.

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
            TrainError::Config(error) => Error::Config(error),
            TrainError::Data(error) => (*error).into(),
            TrainError::Optim(error) => error.into(),
            TrainError::Exchange(error) => error.into(),
            TrainError::Checkpoint(error) => Error::Checkpoint(error),
            TrainError::Folder(error) => Error::Folder(error),
            TrainError::Report(error) => error.into(),
            TrainError::Model(error) => error.into(),
            error => Error::Train(Box::new(error)),
        }
    }
}

impl From<PredictError> for Error {
    fn from(error: PredictError) -> Self {
        match error {
            PredictError::Kernel(error) => Error::Kernel(error),
            PredictError::Comm(error) => Error::Comm(error),
            PredictError::Data(error) => Error::of_model_data(*error, ModelCommand::Predict),
            PredictError::Model(error) => error.into(),
            PredictError::Checkpoint(error) => Error::Checkpoint(error),
            PredictError::Config(error) => Error::Config(error),
            PredictError::Write(error) => Error::Write(error),
            PredictError::Report(error) => error.into(),
            error => Error::Predict(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::exit_code::{ENVIRONMENT, FAILED, IO, USAGE};
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
            (Error::NoEvalData, USAGE),
            (Error::OtherWorldSize { expected: 2, world_size: 1 }, ENVIRONMENT),
        ];
        for (error, code) in errors {
            assert_eq!(error.exit_code(), code, "{error:?}");
        }
    }
}
