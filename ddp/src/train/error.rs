//! Errors of training: the sum of the lower rooms' errors and those of steps and runs.

use std::fmt;

use ddp_comm::CommError;
use ddp_kernels::KernelError;

use crate::checkpoint::CheckpointError;
use crate::config::{AGAINST_DIVERGENCE, ConfigError, JudgeMetric};
use crate::data::DataError;
use crate::exchange::ExchangeError;
use crate::exchange::replica_check::ReplicaDifferences;
use crate::exit_code;
use crate::model::ModelError;
use crate::optim::OptimError;
use crate::optim::loss_scaler::LossScalerError;
use crate::report::ReportError;
use crate::run_folder::FolderError;
use crate::train::findings::Findings;

/// The result of this room's functions.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// The end of a function that every rank calls.
pub type Stop = ddp_comm::Stop<TrainError>;

/// An error of a training run.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum TrainError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Comm(Box<CommError>),
    /// Rows could not be read or used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Data(Box<DataError>),
    /// The optimizer's settings or its update failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Optim(#[from] OptimError),
    /// A checkpoint could not be written, found or read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The run's folder does not fit this run.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Folder(Box<FolderError>),
    /// Events or results could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Report(#[from] ReportError),
    /// The settings of the gradient exchange exclude each other.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Exchange(ExchangeError),
    /// The saved config cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(Box<ConfigError>),
    /// A model file cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Model(#[from] ModelError),
    /// The loss is NaN or infinite.
    #[error("loss is {loss} at step {step}; weights were not updated{findings}")]
    #[diagnostic(help("{AGAINST_DIVERGENCE}"))]
    LossNotFinite {
        /// Number of the step, from 1.
        step: u64,
        /// Its mean loss.
        loss: f64,
        /// Where it comes from, if that is known.
        findings: Findings,
    },
    /// The gradient is NaN or infinite, or f32 cannot hold the square of its norm, although the loss is finite.
    #[error("gradient {} at step {step} (its norm is {norm:e}){findings}", too_large(*norm))]
    #[diagnostic(help("{AGAINST_DIVERGENCE}"))]
    GradientNotFinite {
        /// Number of the step, from 1.
        step: u64,
        /// The gradient's 2-norm.
        norm: f64,
        /// Where it comes from, if that is known.
        findings: Findings,
    },
    /// The loss is far above the recent ones.
    #[error(
        "loss is {loss} at step {step}, above {limit}, the limit by the recent losses; weights were not updated"
    )]
    #[diagnostic(help(
        "try a smaller `optimizer.lr`, \
         `train.clip_grad_norm = 1.0`, or a higher `train.spike_threshold`"
    ))]
    LossSpike {
        /// Number of the step, from 1.
        step: u64,
        /// Its mean loss.
        loss: f64,
        /// Largest loss that is not a spike.
        limit: f64,
    },
    /// The run ends although its policy for such steps would continue.
    #[error("{reason}: {error}")]
    #[diagnostic(forward(error))]
    GivenUp { reason: GiveUp, error: Box<TrainError> },
    /// The replicas of the ranks differ.
    #[error("the ranks' replicas differ after step {step}:\n  {differences}")]
    #[diagnostic(help(
        "a rank's memory or device is at fault, or the program: check the host of the ranks that differ, and resume from a \
         checkpoint of step {last_check} or before; with `train.on_replica_difference = \"repair\"` a run continues from the majority"
    ))]
    ReplicasDiffer {
        /// Number of the last step, from 1.
        step: u64,
        /// Step of the last check that found no difference, or 0.
        last_check: u64,
        differences: Box<ReplicaDifferences>,
    },
    /// The ranks hold different bits, and no majority says which are right.
    #[error("the ranks' replicas differ after step {step} and cannot be repaired:\n  {differences}")]
    #[diagnostic(help(
        "the same command with `--resume auto`, and `--out` with the folder of the run, continues from the newest checkpoint; if it \
         happens again, check the memory and devices of these hosts"
    ))]
    NoMajority {
        /// Number of the last step, from 1.
        step: u64,
        differences: Box<ReplicaDifferences>,
    },
    /// A CUDA graph was requested, and none can be captured.
    #[error("the step cannot be captured as a CUDA graph: {reason}")]
    #[diagnostic(help("GraphMode::Auto continues without one"))]
    NoGraph {
        /// The first rank with a failure, and its error.
        reason: String,
    },
    /// A label of -100 leaves its row out of the loss, and the gradient was divided by all rows.
    #[error(
        "step {step} divides its gradient by {all} rows, and its loss counts {counted}: a label of -100 leaves its row out"
    )]
    #[diagnostic(help(
        "give such rows the weight 0 (`RowLayout::has_weights`) and a label that exists, such as 0; or take the steps by `Network::loss_and_gradients`"
    ))]
    RowsLeftOut {
        /// Number of the step, from 1.
        step: u64,
        /// Rows of the global batch.
        all: f64,
        /// Rows that the loss counts.
        counted: f64,
    },
    /// A label that is no class, where metrics count classes.
    #[error("an evaluation row has the label {label}, and metrics count classes from 0")]
    #[diagnostic(help(
        "give such rows the weight 0 (`RowLayout::has_weights`) and a label that exists, such as 0"
    ))]
    NegativeLabel { label: i64 },
    /// The weights of all evaluation rows are 0.
    #[error("the weights of all {n_rows} evaluation rows of {source_name} are 0: no metric is defined")]
    #[diagnostic(help("give rows to evaluate on a weight above 0"))]
    NoEvalWeight { source_name: String, n_rows: usize },
    /// A permutation of so few rows changes nothing.
    #[error("permutation importance needs at least 2 evaluation rows, got {n_rows} of {source_name}")]
    #[diagnostic(help("name more rows with --data"))]
    TooFewRowsToPermute { source_name: String, n_rows: usize },
    /// The evaluation rows do not define the metric.
    #[error("{} is not defined for the rows of {source_name}", .metric.title())]
    #[diagnostic(help("docs/metrics.md says when it is; choose another with --metrics"))]
    MetricUndefined { metric: JudgeMetric, source_name: String },
    /// The evaluation rows do not define the metric that chooses the model or ends the run.
    #[error(
        "{} is not defined for the evaluation rows of {source_name}, so it cannot be `{key}`: they hold one class, a class of none, or a \
         constant target",
        .metric.title()
    )]
    #[diagnostic(help(
        "set `{key} = \"eval_loss\"`, which is always defined, or evaluate on other rows; docs/metrics.md says when a metric is defined"
    ))]
    JudgeUndefined { metric: JudgeMetric, key: &'static str, source_name: String },
    /// The number of rows of a global batch overflows.
    #[error("`train.batch_size` times ranks times `train.grad_accum_steps` overflows the row count")]
    #[diagnostic(help("use a smaller `train.batch_size`"))]
    BatchOverflows,
    /// More ranks than a global batch has micro-shards.
    #[error(
        "{world_size} ranks, but `train.micro_shards` splits each global batch into {n_shards} micro-shards: some ranks would get none"
    )]
    #[diagnostic(help(
        "use at most {n_shards} ranks, or more `train.micro_shards`, which makes it a different run"
    ))]
    MoreRanksThanShards {
        /// Ranks of the run.
        world_size: usize,
        /// Micro-shards of a global batch.
        n_shards: usize,
    },
    /// Statistics of one row.
    #[error("batch norm takes its statistics of the rows of a step, and a step takes 1 row over all ranks")]
    #[diagnostic(help(
        "give each step 2 rows or more by \
         `train.batch_size` or `train.global_batch_size`, or use `layer_norm`"
    ))]
    OneRow,
    /// A step of several micro-batches, whose gradients would add up in bf16.
    #[error(
        "step {step} has {n_micro_batches} micro-batches, and the trainer was made for steps of one: matmuls write its gradients in bf16, in \
         which they can't be accumulated"
    )]
    OneMicroBatchOnly {
        /// Number of the step, from 1.
        step: u64,
        n_micro_batches: usize,
    },
    /// A run with batch norm resumes with other micro-batches.
    #[error(
        "the checkpoint's run took batch norm's statistics of {theirs} micro-batches per step, and this one would take them of {ours}, which makes it \
         another run"
    )]
    #[diagnostic(help("resume with {theirs}, or allow the change with --allow-batchnorm-change"))]
    BatchNormChange {
        /// Micro-batches per step of this run.
        ours: usize,
        /// Value in the checkpoint's run.
        theirs: usize,
    },
    /// A signal stopped an evaluation between two batches, on all ranks.
    #[error("the evaluation was stopped by a signal")]
    EvaluationStopped,
}

/// Why a gradient of this norm cannot be used.
fn too_large(norm: f64) -> &'static str {
    if norm.is_finite() { "overflows f32 when squared" } else { "is not finite" }
}

/// Reason for which a run ends although its policy for a step that went wrong would continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// There is no checkpoint to return to.
    NoCheckpoint,
    /// The updates of as many steps as allowed were left out before.
    TooMany {
        /// The number of these steps.
        n: usize,
    },
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GiveUp::NoCheckpoint => f.write_str("the run has no checkpoint to return to"),
            GiveUp::TooMany { n } => write!(f, "the updates of {n} steps were left out before"),
        }
    }
}

impl TrainError {
    /// Exit status of a process that ends with this error; see [`exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::MoreRanksThanShards { .. } => exit_code::ENVIRONMENT,
            Self::NoGraph { .. } => exit_code::FAILED,
            Self::NoMajority { .. } => exit_code::RESTARTABLE,
            _ if self.is_failure() => exit_code::FAILED,
            _ => exit_code::USAGE,
        }
    }

    /// The step and what is wrong with it, in a few words.
    pub(crate) fn fact(&self) -> String {
        let text = self.to_string();
        let line = text.lines().next().unwrap_or_default();
        line.split_once(';').map_or(line, |(fact, _)| fact).to_owned()
    }

    /// Whether the run failed, rather than the command, config or data being at fault.
    pub fn is_failure(&self) -> bool {
        self.step().is_some() || matches!(self, Self::ReplicasDiffer { .. })
    }

    /// The step that failed, from 1, if the error belongs to one.
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::LossNotFinite { step, .. }
            | Self::GradientNotFinite { step, .. }
            | Self::LossSpike { step, .. } => Some(*step),
            Self::GivenUp { error, .. } => error.step(),
            _ => None,
        }
    }

    /// The same error of a run that gives up for this reason.
    pub(crate) fn given_up(self, reason: GiveUp) -> Self {
        Self::GivenUp { reason, error: Box::new(self) }
    }

    /// Whether the error takes findings.
    pub(crate) fn has_findings(&self) -> bool {
        match self {
            Self::LossNotFinite { .. } | Self::GradientNotFinite { .. } => true,
            Self::GivenUp { error, .. } => error.has_findings(),
            _ => false,
        }
    }

    /// Adds findings to the error of a step that is not finite.
    pub(crate) fn add_findings(&mut self, found: Findings) {
        match self {
            Self::LossNotFinite { findings, .. } | Self::GradientNotFinite { findings, .. } => {
                *findings = found
            }
            Self::GivenUp { error, .. } => error.add_findings(found),
            _ => {}
        }
    }

    /// Whether every rank has this very error at the same place.
    pub fn is_same_on_all_ranks(&self) -> bool {
        matches!(
            self,
            Self::LossNotFinite { .. }
                | Self::GradientNotFinite { .. }
                | Self::LossSpike { .. }
                | Self::GivenUp { .. }
                | Self::NoEvalWeight { .. }
                | Self::TooFewRowsToPermute { .. }
                | Self::MetricUndefined { .. }
                | Self::JudgeUndefined { .. }
                | Self::BatchOverflows
                | Self::OneRow
                | Self::OneMicroBatchOnly { .. }
                | Self::BatchNormChange { .. }
                | Self::NoGraph { .. }
                | Self::ReplicasDiffer { .. }
                | Self::NoMajority { .. }
        )
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
