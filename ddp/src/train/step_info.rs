//! Data of one step: the request, its info before it runs, the shape that selects its kernels, and its outcome.

use ddp_kernels::ops::LossSums;

use crate::data::order::partition::RankPartition;
use crate::train::withheld::Withheld;

/// Outcome of a step, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Sums over the rows of all ranks.
    pub sums: LossSums,
    /// 2-norm of the gradient before clipping, where it was requested or needed.
    pub grad_norm: Option<f64>,
    /// Sum of the ranks' votes.
    pub votes: u64,
    /// Whether the step was skipped, because the gradients of a scaled loss were not finite: weights, state and step count are
    /// unchanged.
    pub skipped: bool,
    /// Why the step's update was withheld, if it was.
    pub withheld: Option<Withheld>,
}

/// Options of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepRequest {
    /// Whether the outcome must report the norm of the gradient.
    pub want_grad_norm: bool,
    /// This rank's vote; the outcome holds the sum over the ranks, exact up to 2^24.
    pub vote: u32,
    /// Largest mean loss of a step that updates the weights; infinity for any finite one, negative infinity for none.
    pub loss_limit: f64,
}

impl Default for StepRequest {
    /// No norm, no vote, any finite loss.
    fn default() -> Self {
        StepRequest { want_grad_norm: false, vote: 0, loss_limit: f64::INFINITY }
    }
}

/// Facts about a step that are known before it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepInfo {
    /// Its number, from 1.
    pub step: u64,
    /// Rows of the global batch.
    pub n_rows: usize,
    /// Learning rate.
    pub lr: f64,
}

/// Everything that determines a step's kernels and their arguments: the key of its captured graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    /// This rank's rows.
    pub(crate) own_rows: usize,
    pub(crate) global_rows: usize,
    /// Partition of the rows into micro-batches.
    pub(crate) partition: RankPartition,
    /// Whether the norm of the gradient is computed.
    pub(crate) has_norm: bool,
    /// Loss scale as bits, where the loss is scaled.
    pub(crate) loss_scale: Option<u64>,
}
