//! The losses of several heads on the outputs of one model.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ddp_kernels::ops::{self, SumsOutput, TargetColumns};
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor, TensorMut, TensorRef};

use super::loss_head::{LossFunction, LossHead};
use super::network::Network;
use crate::config::{ClassWeights, HeadLoss, Loss};
use crate::data::{HeadTargets, head_columns};

type Result<T> = std::result::Result<T, KernelError>;

/// The weighted mean of several losses: for a row, `Σ w[h] · loss[h] / Σ w[h]` over the heads whose targets it has, where the
/// loss of a head is the mean over its outputs. Of the weights of a head's classes only the ratios matter.
///
/// Each loss runs on a copy of its outputs. The weights of the heads, and 0 for rows without targets, become row weights, so that
/// the sums and gradients of all losses add up to the sums and gradients of the mean.
#[derive(Debug)]
pub(crate) struct SeveralLosses {
    heads: Vec<Head>,
    memory: Mutex<HeadMemory>,
}

#[derive(Debug)]
struct Head {
    loss: LossHead,
    /// Columns of the outputs.
    outputs: Range<usize>,
    targets: TargetColumns,
    has_classes: bool,
}

/// Operands of one head, reused for all heads in turn.
#[derive(Debug)]
struct HeadMemory {
    outputs: Tensor,
    d_outputs: Tensor,
    values: Tensor,
    classes: Tensor,
    weights: Tensor,
}

impl LossHead {
    /// The loss of `config` for the outputs of `model`.
    ///
    /// - `heads`: the heads of the rows, for [`Loss::Heads`]; otherwise empty
    ///
    /// # Errors
    /// Out of memory.
    ///
    /// # Panics
    /// For balanced class weights before [`Loss::with_class_counts`].
    pub fn for_model(config: &Loss, heads: &[HeadTargets], model: &Network) -> Result<Self> {
        match config {
            Loss::Heads(losses) => Ok(LossHead::other(SeveralLosses::new(losses, heads, model)?)),
            _ => Self::new(config, model.device()),
        }
    }
}

impl SeveralLosses {
    /// - `losses`: one for each of `targets`, in the same order
    fn new(losses: &[HeadLoss], targets: &[HeadTargets], model: &Network) -> Result<Self> {
        let total: f64 = losses.iter().map(|head| head.weight).sum();
        let mut heads = Vec::with_capacity(losses.len());
        let mut end = 0;
        for ((HeadLoss { weight, loss, .. }, of), columns) in
            losses.iter().zip(targets).zip(head_columns(targets))
        {
            let n_outputs = loss.n_outputs(of.n_targets());
            let scale = scale_of_classes(loss);
            let loss = LossHead::new(loss, model.device())?;
            // A loss adds up the weights of its elements.
            let factor = weight / total / loss.expected_weight(1, n_outputs) / scale;
            let targets = TargetColumns { first: columns.start, len: columns.len(), factor: factor as f32 };
            heads.push(Head {
                loss,
                outputs: end..end + n_outputs,
                targets,
                has_classes: of.labels.is_some(),
            });
            end += n_outputs;
        }
        let (device, gradient) = (model.device(), model.output_gradient_dtype());
        let zeros = |(len, dtype)| Tensor::zeros_for(MemoryUse::Workspace, &[len], dtype, device);
        let [outputs, d_outputs, values, classes, weights] =
            memory(losses, targets, model.max_rows(), gradient).map(zeros);
        let memory = HeadMemory {
            outputs: outputs?,
            d_outputs: d_outputs?,
            values: values?,
            classes: classes?,
            weights: weights?,
        };
        Ok(SeveralLosses { heads, memory: Mutex::new(memory) })
    }
}

/// Weight of the classes of a row of a loss: the harmonic mean, which is the mean over rows if weights are inverse to the numbers of rows.
fn scale_of_classes(loss: &Loss) -> f64 {
    let Loss::CrossEntropy { class_weights: Some(ClassWeights::PerClass(weights)), .. } = loss else {
        return 1.0;
    };
    let inverse = || weights.iter().filter(|weight| **weight > 0.0).map(|weight| 1.0 / f64::from(*weight));
    let mean = inverse().count().max(1) as f64 / inverse().sum::<f64>().max(f64::MIN_POSITIVE);
    // Balanced weights, rounded to f32.
    if (mean - 1.0).abs() < 1e-6 { 1.0 } else { mean }
}

/// Elements and formats of [`HeadMemory`], in the order of its fields.
fn memory(
    losses: &[HeadLoss],
    heads: &[HeadTargets],
    max_rows: usize,
    gradient: DType,
) -> [(usize, DType); 5] {
    let n_outputs = losses.iter().zip(heads).map(|(of, head)| of.loss.n_outputs(head.n_targets()));
    let (outputs, columns) =
        (n_outputs.max().unwrap_or(0), heads.iter().map(|head| head.columns.len()).max());
    [
        (max_rows * outputs, DType::F32),
        (max_rows * outputs, gradient),
        (max_rows * columns.unwrap_or(0), DType::F32),
        (max_rows, DType::I64),
        (max_rows, DType::F32),
    ]
}

/// Bytes that the loss of several heads needs besides the model; 0 for any other loss.
///
/// - `gradient`: number format of the outputs' gradient
pub fn loss_bytes(loss: &Loss, heads: &[HeadTargets], max_rows: usize, gradient: DType) -> usize {
    let Loss::Heads(losses) = loss else { return 0 };
    memory(losses, heads, max_rows, gradient).iter().map(|(len, dtype)| len * dtype.size_bytes()).sum()
}

impl LossFunction for SeveralLosses {
    /// `targets`: `[N, columns of all heads]` f32, NaN if a row lacks a target.
    fn apply(
        &self,
        outputs: TensorRef<'_>,
        targets: TensorRef<'_>,
        row_weights: Option<TensorRef<'_>>,
        scale: f64,
        mut d_outputs: Option<TensorMut<'_>>,
        sums: SumsOutput<'_>,
    ) -> Result<()> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let HeadMemory { outputs: own_outputs, d_outputs: own_gradient, values, classes, weights } =
            &mut *memory;
        let n_rows = outputs.shape().rows_cols().0;
        let SumsOutput { mut tail, accumulate, extra } = sums;
        for (index, Head { loss, outputs: columns, targets: selected, has_classes }) in
            self.heads.iter().enumerate()
        {
            let (first, n_outputs) = (columns.start, columns.len());
            let matrix = [n_rows, n_outputs];
            let mut x = own_outputs.view_mut().range(0, n_rows * n_outputs)?.reshape(&matrix)?;
            ops::copy_columns(outputs, first, x.reborrow(), 0, n_outputs)?;
            let mut of_head = if *has_classes {
                classes.view_mut().range(0, n_rows)?
            } else {
                values.view_mut().range(0, n_rows * selected.len)?.reshape(&[n_rows, selected.len])?
            };
            let mut own_weights = weights.view_mut().range(0, n_rows)?;
            ops::select_targets(targets, *selected, row_weights, of_head.reborrow(), own_weights.reborrow())?;
            let accumulate = accumulate || index > 0;
            let sums = SumsOutput { tail: tail.reborrow(), accumulate, extra };
            let mut gradient = match d_outputs {
                Some(_) => Some(own_gradient.view_mut().range(0, n_rows * n_outputs)?.reshape(&matrix)?),
                None => None,
            };
            let d_x = gradient.as_mut().map(TensorMut::reborrow);
            loss.apply(x.as_ref(), of_head.as_ref(), Some(own_weights.as_ref()), scale, d_x, sums)?;
            if let (Some(to), Some(gradient)) = (&mut d_outputs, &gradient) {
                ops::copy_columns(gradient.as_ref(), 0, to.reborrow(), first, n_outputs)?;
            }
        }
        Ok(())
    }

    fn expected_weight(&self, n_rows: usize, _n_outputs: usize) -> f64 {
        n_rows as f64
    }

    /// Rows may lack the targets of a head, so the sum of weights is not known in advance.
    fn is_weighted(&self, _has_row_weights: bool) -> bool {
        true
    }
}
