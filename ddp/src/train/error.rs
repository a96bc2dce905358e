//! Errors of training: the sum of the lower rooms' errors and those of steps and runs.

use std::io;

use ddp_comm::CommError;
use ddp_kernels::KernelError;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::data_parallel::ExchangeError;
use crate::model::ModelError;
use crate::optim::OptimError;
use crate::optim::loss_scaler::LossScalerError;
use crate::report::ReportError;
use crate::run_folder::FolderError;

/// The result of this room's functions.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// The end of a function that every rank calls.
pub type Stop = ddp_comm::Stop<TrainError>;

/// An error of a training run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed.
    #[error(transparent)]
    Comm(Box<CommError>),
    /// Rows could not be read or used.
    #[error(transparent)]
    Data(Box<DataError>),
    /// The optimiser's settings or its update failed.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// A checkpoint could not be written, found or read.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The run's folder does not fit this run.
    #[error(transparent)]
    Folder(Box<FolderError>),
    /// Events or results could not be written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A combination of settings that gradients cannot be exchanged with.
    #[error(transparent)]
    Exchange(ExchangeError),
    /// The saved config cannot be read.
    #[error(transparent)]
    Config(Box<ConfigError>),
    /// A model file cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Training went astray.
    #[error(
        "the loss of step {step} is {loss}; the weights are those before it\nhint: a smaller `optimizer.lr`, `train.clip_grad_norm = 1.0`, or `data.normalize = \"standard\"`"
    )]
    LossNotFinite {
        /// Number of the step, from 1.
        step: u64,
        /// Its mean loss.
        loss: f64,
    },
    /// Training went astray, and the loss does not show it.
    #[error(
        "the gradient of step {step} is not finite (its norm is {norm})\nhint: a smaller `optimizer.lr`, `train.clip_grad_norm = 1.0`, or `data.normalize = \"standard\"`"
    )]
    GradientNotFinite {
        /// Number of the step, from 1.
        step: u64,
        /// The gradient's 2-norm.
        norm: f64,
    },
    /// Rows of a global batch beyond counting.
    #[error(
        "`train.batch_size` times ranks times `train.grad_accum_steps` is more rows than can be counted\nhint: a smaller `train.batch_size`"
    )]
    BatchOverflows,
    /// More ranks than a global batch has parts.
    #[error(
        "{world_size} ranks, and `train.micro_shards` cuts each global batch into {n_shards} parts: some ranks would have none\n\
         hint: at most {n_shards} ranks, or more `train.micro_shards`, which is another run"
    )]
    MoreRanksThanShards {
        /// Ranks.
        world_size: usize,
        /// Parts.
        n_shards: usize,
    },
    /// Handlers of signals that the system does not take.
    #[error("can't listen for signals: {source}")]
    Signals {
        /// The system's answer.
        source: io::Error,
    },
}

impl TrainError {
    /// Whether the run failed, rather than the command, config or data being at fault.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::LossNotFinite { .. } | Self::GradientNotFinite { .. })
    }

    /// Whether every rank has this very error at the same place.
    pub fn is_same_on_all_ranks(&self) -> bool {
        matches!(self, Self::LossNotFinite { .. } | Self::GradientNotFinite { .. } | Self::BatchOverflows)
    }
}

impl From<ConfigError> for TrainError {
    fn from(error: ConfigError) -> Self {
        TrainError::Config(Box::new(error))
    }
}

impl From<CommError> for TrainError {
    fn from(error: CommError) -> Self {
        TrainError::Comm(Box::new(error))
    }
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        TrainError::Checkpoint(Box::new(error))
    }
}

impl From<FolderError> for TrainError {
    fn from(error: FolderError) -> Self {
        TrainError::Folder(Box::new(error))
    }
}

impl From<DataError> for TrainError {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Kernel(error) => TrainError::Kernel(error),
            DataError::Comm(error) => TrainError::Comm(error),
            error => TrainError::Data(Box::new(error)),
        }
    }
}

impl From<ExchangeError> for TrainError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Kernel(error) => TrainError::Kernel(error),
            ExchangeError::Comm(error) => TrainError::Comm(error),
            error => TrainError::Exchange(error),
        }
    }
}

impl From<LossScalerError> for TrainError {
    fn from(error: LossScalerError) -> Self {
        TrainError::Optim(error.into())
    }
}
