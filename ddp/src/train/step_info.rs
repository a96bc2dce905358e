//! What travels with a step: the request, what is known before it runs, what decides its kernels, and its outcome.

use ddp_kernels::ops::LossSums;

use crate::data::order::partition::RankPartition;

/// What a step came to, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Sums over the rows of all ranks.
    pub sums: LossSums,
    /// 2-norm of the gradient before clipping, where it was asked for or needed.
    pub grad_norm: Option<f64>,
    /// Sum of the ranks' votes.
    pub votes: u64,
    /// Whether the gradients of a scaled loss were not finite: weights, state and number of steps are then those before it.
    pub skipped: bool,
}

/// What is asked of a step beside the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepRequest {
    /// Whether the outcome shall tell the norm of the gradient.
    pub want_grad_norm: bool,
    /// This rank's vote; the sum over the ranks, exact up to 2^24, comes with the outcome.
    pub vote: u32,
}

/// What is known of a step before it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepInfo {
    /// Its number, from 1.
    pub step: u64,
    /// Rows of the global batch.
    pub n_rows: usize,
    /// Learning rate.
    pub lr: f64,
}

/// What decides which kernels a step runs, and with which arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    /// This rank's rows.
    pub(crate) own_rows: usize,
    pub(crate) global_rows: usize,
    /// How they are cut into passes.
    pub(crate) partition: RankPartition,
    /// Whether the norm of the gradient is computed.
    pub(crate) has_norm: bool,
    /// What the loss is multiplied by, as bits, where it is scaled.
    pub(crate) loss_scale: Option<u64>,
}
