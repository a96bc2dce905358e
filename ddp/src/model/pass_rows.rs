//! The rows of one pass of a loop without a trainer, as a program has them: tensors, a batch of a loader, or a part of a step.

use ddp_comm::World;
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorRef};

use crate::data::loader::TensorBatch;

/// Rows of a pass that has no place in a global batch, per rank, and of all ranks, per micro-batch: masks of dropout do not repeat below
/// these powers of two.
const RANK_BITS: u32 = 24;
pub(super) const MICRO_BATCH_BITS: u32 = 36;

/// Rows of one pass, by their parts; `(&x, &y)`, `(&x, &y, &weights)` and a [`TensorBatch`] are rows too.
#[derive(Debug, Clone, Copy)]
pub struct RowsOfStep<'a> {
    /// Features, `[B, n_features]`.
    pub x: TensorRef<'a>,
    /// Targets, `[B]` or `[B, K]`.
    pub y: TensorRef<'a>,
    /// Weights of the rows, `[B]` f32.
    pub weights: Option<TensorRef<'a>>,
    /// Place of the first row in the global batch, on which the masks of dropout depend.
    pub first_row: u64,
}

/// Rows of one pass, and the number of ranks of which each has a share of the step.
#[derive(Debug, Clone, Copy)]
pub struct PassRows<'a> {
    pub(super) rows: RowsOfStep<'a>,
    pub(super) n_ranks: usize,
    /// Whether a loader says so; else they may be of all ranks of the world.
    pub(super) is_divided: bool,
    /// Whether the program says where in the global batch they are.
    pub(super) is_placed: bool,
}

impl<'a> From<RowsOfStep<'a>> for PassRows<'a> {
    fn from(rows: RowsOfStep<'a>) -> Self {
        PassRows { rows, n_ranks: 1, is_divided: false, is_placed: true }
    }
}

impl<'a> From<(&'a Tensor, &'a Tensor)> for PassRows<'a> {
    fn from((x, y): (&'a Tensor, &'a Tensor)) -> Self {
        // Each rank has its own rows, so its masks start at its own place.
        let first_row = (World::own_rank().0 as u64) << RANK_BITS;
        let rows = RowsOfStep { x: x.view(), y: y.view(), weights: None, first_row };
        PassRows { rows, n_ranks: World::own_world_size(), is_divided: false, is_placed: false }
    }
}

impl<'a> From<(&'a Tensor, &'a Tensor, &'a Tensor)> for PassRows<'a> {
    fn from((x, y, weights): (&'a Tensor, &'a Tensor, &'a Tensor)) -> Self {
        let pair = PassRows::from((x, y));
        PassRows { rows: RowsOfStep { weights: Some(weights.view()), ..pair.rows }, ..pair }
    }
}

impl<'a> From<&'a TensorBatch> for PassRows<'a> {
    fn from(TensorBatch { x, y, weights, first_row, n_ranks, .. }: &'a TensorBatch) -> Self {
        let rows = RowsOfStep {
            x: x.view(),
            y: y.view(),
            weights: weights.as_ref().map(Tensor::view),
            first_row: *first_row as u64,
        };
        PassRows { rows, n_ranks: *n_ranks, is_divided: true, is_placed: false }
    }
}

/// Checks weights of rows in host memory.
pub(super) fn check_weights(weights: TensorRef<'_>) -> Result<(), KernelError> {
    if weights.device() != Device::Cpu || weights.dtype() != DType::F32 {
        return Ok(());
    }
    let values = weights.to_vec::<f32>()?;
    match values.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0)) {
        Some(row) => {
            let problem = format!("the weight of row {row} is {}", values[row]);
            Err(KernelError::misuse("loss", problem, "weights are finite numbers of 0 or above"))
        }
        None => Ok(()),
    }
}
