//! Errors of exchanging gradients and weights between ranks.

use ddp_comm::CommError;
use ddp_kernels::KernelError;

use crate::config::OptimizerKind;

/// The result of this room's functions.
pub type Result<T, E = ExchangeError> = std::result::Result<T, E>;

/// An error of the exchange of gradients and weights.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
pub enum ExchangeError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Comm(Box<CommError>),
    /// ZeRO-2 with gradients rounded to bf16.
    #[error(
        "`comm.zero = 2` reduces gradients in every micro-batch, and `comm.dtype = \"bf16\"` would round them each time"
    )]
    #[diagnostic(help("use CommDtype::F32, or ZeroStage::Optimizer"))]
    ZeroWire,
    /// The fixed tree with sharded or rounded gradients.
    #[error("`train.deterministic = \"world\"` sums whole gradients in f32 on every rank")]
    #[diagnostic(help("use ZeroStage::Off or Optimizer and CommDtype::F32, or leave out `micro_shards`"))]
    TreeOfWhole,
    /// Rows of another partition than the fixed tree's.
    #[error(
        "`TrainerOptions::micro_shards` sums {n_shards} micro-shards along one tree, and these rows are cut otherwise"
    )]
    #[diagnostic(help(
        "take them from a loader of `BatchPlan {{ partition: PartitionKind::MicroShards {{ n_shards: {n_shards} }}, .. }}`"
    ))]
    TreeOfOtherRows {
        /// Micro-shards of the trainer.
        n_shards: usize,
    },
    /// Statistics over all ranks with the fixed tree.
    #[error(
        "batch norm takes its statistics of a whole micro-batch, and `train.deterministic = \"world\"` cuts batches into micro-shards that \
         never meet"
    )]
    #[diagnostic(help("use `Sequential::layer_norm` or `rms_norm`, or leave out `micro_shards`"))]
    TreeOfStatistics,
    /// Copies of shards without shards.
    #[error(
        "`comm.zero_copies = 1` keeps copies of shards, and `comm.zero = 0` divides nothing: every rank holds all of the state"
    )]
    #[diagnostic(help("leave out `comm.zero_copies`, or use ZeroStage::Optimizer or Gradients"))]
    CopiesOfWhole,
    /// Copies of the state of an optimizer whose step exchanges something between two passes.
    #[error(
        "on the CPU `comm.zero_copies = 1` repeats the update of another rank, and the ranks exchange parts of each update of `optimizer.kind = \"{optimizer}\"`"
    )]
    #[diagnostic(help("leave out `comm.zero_copies`, or use another optimizer, such as adamw"))]
    CopiesInTwoPasses {
        /// The optimizer.
        optimizer: OptimizerKind,
    },
    /// Copies of shards on CPUs that can't leave a collective.
    #[error(
        "`comm.zero_copies = 1` needs GPUs, or CPUs that share memory: those joined by {transport} can't leave a collective after a loss, so that none could save"
    )]
    #[diagnostic(help("leave out `comm.zero_copies`: after a loss the newest checkpoint counts"))]
    CopiesByMessages {
        /// The transport of the ranks.
        transport: &'static str,
    },
    /// A model in f64.
    #[error("ranks exchange gradients in f32, and the model is in f64")]
    #[diagnostic(help(
        "create it with Precision::F32; in f64 train it on one rank with \
         `Network::{{forward, backward}}` and `Optimizer::step_on`"
    ))]
    Double,
    /// Sums over whole parameters on sharded state with the fixed tree.
    #[error(
        "with `comm.zero` above 0, `optimizer.kind = \"{optimizer}\"` sums squares of parameters shard by shard, and the shards depend on the number of ranks; `train.deterministic = \"world\"` allows no such sum"
    )]
    #[diagnostic(help("use ZeroStage::Off, or leave out `micro_shards`"))]
    ShardedNorms {
        /// Optimizer that sums squares over whole parameters.
        optimizer: OptimizerKind,
    },
}

impl From<CommError> for ExchangeError {
    fn from(error: CommError) -> Self {
        ExchangeError::Comm(Box::new(error))
    }
}
