//! `[optimizer]`, `[train]`, `[comm]`, `[checkpoint]` and `[log]`: how a run trains, and what it leaves on the way.

use super::{Precision, Task};

/// `[optimizer]`. Keys that the kind does not use are kept and ignored.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerConfig {
    /// Which one.
    pub kind: OptimizerKind,
    /// Learning rate, positive.
    pub lr: f64,
    /// Decay of the first and second moment, each in [0, 1) (Adam, AdamW).
    pub betas: [f64; 2],
    /// Added to the root of the second moment (Adam, AdamW), positive.
    pub eps: f64,
    /// L2 for SGD and Adam, decoupled for AdamW; not negative. Default: PyTorch's, 0.01 for AdamW and else 0.
    pub weight_decay: f64,
    /// In [0, 1) (SGD).
    pub momentum: f64,
    /// Nesterov momentum (SGD).
    pub nesterov: bool,
    /// Whether `weight_decay` also counts for biases and for the scales and shifts of norms.
    pub decay_bias_norm: bool,
    /// Parameters with settings of their own; of several that match a name the first one counts.
    pub groups: Vec<ParamGroup>,
    /// `train.ema_decay`: share of the weights' moving average that a step keeps, in [0, 1); 0 for no average.
    pub ema_decay: f64,
}

/// Parameters with a learning rate or weight decay of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamGroup {
    /// Names of parameters, as `layers.0.*`: `*` and `?` stand for anything, `[ab]` for one of these.
    pub pattern: String,
    /// Factor of the learning rate, not negative; 0 leaves the parameters as they are.
    pub lr_scale: f64,
    /// Weight decay in place of `optimizer.weight_decay`, not negative.
    pub weight_decay: Option<f64>,
}

/// The optimiser's rule; semantics of PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Adam (arXiv:1412.6980).
    Adam,
    /// Adam with decoupled weight decay (arXiv:1711.05101).
    AdamW,
}

/// `[train]`
#[derive(Debug, Clone, PartialEq)]
pub struct TrainConfig {
    /// How long.
    pub length: Length,
    /// How many rows a step.
    pub batch: Batch,
    /// Micro-batches a step; gradients are summed over them.
    pub grad_accum_steps: usize,
    /// Largest 2-norm of the gradient; 0 means no clipping.
    pub clip_grad_norm: f64,
    /// Seed of initial weights, order of samples, dropout and split.
    pub seed: u64,
    /// Number format of the matrix products.
    pub precision: Precision,
    /// First factor of the loss in f16, a power of two from 1 to 2^30.
    pub loss_scale_init: f64,
    /// What must be the same to the bit.
    pub deterministic: Determinism,
    /// Parts that each global batch is cut into for [`Determinism::World`], a power of two. No world may be larger.
    pub micro_shards: usize,
    /// What early stopping looks at.
    pub early_stop_metric: EvalMetric,
    /// Evaluations without improvement after which training stops; 0 for never.
    pub early_stop_patience: u64,
    /// What counts as an improvement: more than this, not negative.
    pub early_stop_min_delta: f64,
    /// Global step after which the run stops as for a signal.
    pub stop_after_steps: Option<u64>,
}

/// What must be the same to the bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Determinism {
    /// What is anyway: on the CPU, runs on the same number of ranks.
    Off,
    /// Runs on the same number of ranks, on GPUs too.
    On,
    /// Runs on any number of ranks.
    World,
}

/// A number that an evaluation gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalMetric {
    /// Mean loss; less is better.
    Loss,
    /// Share of right answers (classification, multilabel); more is better.
    Accuracy,
    /// Share of the targets' variance that is explained (regression); more is better.
    R2,
}

/// When training ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// After this many passes over the training rows.
    Epochs(usize),
    /// After this many optimiser steps.
    Steps(usize),
}

/// Rows a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// Rows of each rank and micro-batch.
    PerRank(usize),
    /// Rows of all ranks and micro-batches together.
    Global(usize),
}

/// `[comm]`
#[derive(Debug, Clone, PartialEq)]
pub struct CommConfig {
    /// Size of a gradient bucket in MiB, positive.
    pub bucket_mib: f64,
    /// Whether buckets are reduced while backward still computes.
    pub overlap: bool,
    /// Number format in which gradients travel between GPUs.
    pub dtype: CommDtype,
    /// What is divided between the ranks.
    pub zero: ZeroStage,
}

/// What of the training state each rank holds only its part of (ZeRO, arXiv:1910.02054).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroStage {
    /// Nothing: every rank holds all of it.
    Off,
    /// The optimiser's state and the weights' average.
    Optimizer,
    /// Also the gradients that micro-batches add up.
    Gradients,
}

/// `[checkpoint]`: when checkpoints are written and which are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointConfig {
    /// After every so many steps; 0 for never.
    pub every_steps: u64,
    /// After so many minutes since the last one; 0 for never.
    pub every_minutes: f64,
    /// After every so many epochs; 0 for never.
    pub every_epochs: u64,
    /// How many of the newest are kept; 0 for all.
    pub keep: usize,
    /// By what the best one is told, which is kept too; `None` keeps none for that.
    pub keep_best: Option<EvalMetric>,
    /// Whether training goes on while one is written.
    pub is_async: bool,
}

/// Number format in which gradients travel between GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CommDtype {
    /// As they are.
    F32,
    /// Rounded to bf16: half the bytes, 8 bits of precision.
    Bf16,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq)]
pub struct LogConfig {
    /// Optimiser steps between two `step` events.
    pub every_steps: usize,
}

impl OptimizerConfig {
    /// This kind with PyTorch's defaults, but a momentum of 0.9 for SGD.
    pub fn new(kind: OptimizerKind, lr: f64) -> Self {
        OptimizerConfig {
            kind,
            lr,
            betas: [0.9, 0.999],
            eps: 1e-8,
            // Only AdamW decays weights unasked.
            weight_decay: match kind {
                OptimizerKind::AdamW => 0.01,
                OptimizerKind::Adam | OptimizerKind::Sgd => 0.0,
            },
            momentum: 0.9,
            nesterov: false,
            decay_bias_norm: true,
            groups: Vec::new(),
            ema_decay: 0.0,
        }
    }
}

impl TrainConfig {
    /// Rows of one optimiser step over all ranks and micro-batches, `G`; `None` if it overflows.
    pub fn global_rows(&self, world_size: usize) -> Option<usize> {
        match self.batch {
            Batch::PerRank(rows) => rows.checked_mul(world_size)?.checked_mul(self.grad_accum_steps),
            Batch::Global(rows) => Some(rows),
        }
    }
}

impl CommConfig {
    /// Size of a gradient bucket in bytes.
    pub fn bucket_bytes(&self) -> usize {
        ((self.bucket_mib * (1 << 20) as f64) as usize).max(1)
    }
}

impl EvalMetric {
    /// Whether evaluations of this task give it.
    pub fn fits(self, task: Task) -> bool {
        match self {
            EvalMetric::Loss => true,
            EvalMetric::Accuracy => task != Task::Regression,
            EvalMetric::R2 => task == Task::Regression,
        }
    }

    /// Whether more of it is better.
    pub fn grows(self) -> bool {
        self != EvalMetric::Loss
    }
}

impl CheckpointConfig {
    /// Whether any is written before the run ends.
    pub fn is_on(&self) -> bool {
        self.every_steps > 0 || self.every_minutes > 0.0 || self.every_epochs > 0
    }
}

impl ZeroStage {
    /// All of them.
    pub const ALL: [ZeroStage; 3] = [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients];

    /// Its number in the config and in the literature.
    pub fn number(self) -> u8 {
        self as u8
    }
}
