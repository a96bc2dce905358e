//! Softmax, cross-entropy and their gradient in one pass.

mod cpu;
mod cuda;

pub(crate) use cuda::{FOCAL_SOURCE, SOURCE, WEIGHTED_SOURCE};

use crate::base::check;
use crate::ops::loss::sums::SumsOutput;
use crate::{DType, KernelError, Result, Shape, TensorMut, TensorRef};

const OP: &str = "softmax_cross_entropy";

/// Parameters of the loss.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct CrossEntropyConfig<'a> {
    /// Label smoothing `ε`: the target is `1 - ε` at the label plus `ε / C` at every class.
    pub label_smoothing: f64,
    /// Class weights, `[C]`, in the logits' dtype, or f32 for bf16 and f16 logits; default 1.
    pub class_weights: Option<TensorRef<'a>>,
    /// Row weights, `[N]` f32, finite, not negative; default 1. Rows of weight 0 are ignored.
    pub row_weights: Option<TensorRef<'a>>,
    /// Rows with this label are ignored.
    pub ignore_index: i64,
    /// Exponent `γ` of the focal loss, from 0: a row's loss is multiplied by the power `γ` of the probability that its label lacks.
    pub focal_gamma: f64,
}

impl Default for CrossEntropyConfig<'_> {
    fn default() -> Self {
        CrossEntropyConfig {
            label_smoothing: 0.0,
            class_weights: None,
            row_weights: None,
            ignore_index: -100,
            focal_gamma: 0.0,
        }
    }
}

/// Writes the sums of the rows' losses and weights to `sums`, and `d_logits = scale · ∂(sum of losses)/∂logits`.
///
/// With `p = softmax(logits[n])`, label `y`, weight of the row `v`, class weights `w` and smoothing `ε`:
/// `loss[n] = v·w[y]·(-(1 - ε)·ln p[y] - ε/C·Σ_c ln p[c])`, weight `v·w[y]`; with a focal `γ` above 0 times `(1 - p[y])^γ`
///
/// - `logits`: `[N, C]` of a float dtype; `labels`: `[N]` i64; `d_logits`: `[N, C]` of the same, or bf16 or f16 for f32; optional
/// - the mean is the sum of losses divided by the sum of `w[y]`, as in PyTorch; with row weights divided by the sum of `v·w[y]`,
///   as with scikit-learn's `sample_weight`
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured. On a GPU, a label outside
/// `0..C` that is not the ignored one makes the loss NaN and its gradient row 0.
///
/// # Errors
/// On the CPU [`KernelError::Label`] for such a label, before anything is written; [`KernelError::DeviceMismatch`],
/// [`KernelError::DTypeMismatch`], [`KernelError::DTypeUnsupported`], [`KernelError::Shape`].
///
/// Source: `torch.nn.functional.cross_entropy` with class indices, but with smoothing a class weight weighs the rows of its class:
/// PyTorch's smoothing pulls every row toward the classes of large weight (pytorch#104776); Lin et al., Focal Loss for Dense Object
/// Detection, arXiv:1708.02002, without its weight `α`.
#[doc(hidden)]
pub fn softmax_cross_entropy(
    logits: TensorRef<'_>,
    labels: TensorRef<'_>,
    config: &CrossEntropyConfig<'_>,
    scale: f64,
    d_logits: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let (logits_op, labels_op) = (logits.operand("logits"), labels.operand("labels"));
    check::same_device(OP, &[logits_op, labels_op])?;
    let (n_rows, n_classes) = check::matrix(OP, logits_op)?;
    check::shape(OP, labels_op, Shape::vector(n_rows))?;
    if labels.dtype() != DType::I64 {
        return Err(KernelError::DTypeUnsupported { op: OP, operand: labels_op.into(), takes: "i64" });
    }
    if let Some(d_logits) = &d_logits {
        check::gradient_kind(OP, logits_op, d_logits.operand("d_logits"))?;
        check::shape(OP, d_logits.operand("d_logits"), logits.shape())?;
    }
    if let Some(weights) = config.class_weights {
        let weights_op = weights.operand("class_weights");
        check::same_device(OP, &[logits_op, weights_op])?;
        if !check::narrows(weights_op.dtype, logits_op.dtype) {
            check::same_dtype(OP, &[logits_op, weights_op])?;
        }
        check::shape(OP, weights_op, Shape::vector(n_classes))?;
    }
    check::row_weights(OP, config.row_weights.map(|w| w.operand("row_weights")), n_rows, logits_op)?;
    sums.check(OP, logits_op)?;
    check::dtype(OP, logits_op, check::FLOATS, check::FLOATS_NAMES)?;
    if let Some(weights) = config.class_weights.filter(|w| check::is_short(w.dtype())) {
        let operand = weights.operand("class_weights");
        return Err(KernelError::DTypeUnsupported {
            op: OP,
            operand: operand.into(),
            takes: "f32 for bf16 and f16 logits",
        });
    }
    if let Some(gpu) = logits.gpu() {
        let d_logits = d_logits.map(TensorMut::into_cuda).transpose()?;
        return cuda::forward_backward(gpu, logits.cuda()?, labels.cuda()?, config, scale, d_logits, sums);
    }
    let labels = labels.as_slice::<i64>(OP, "labels")?;
    let row_weights = config.row_weights.map(|w| w.as_slice::<f32>(OP, "row_weights")).transpose()?;
    let d_op = d_logits.as_ref().map_or(logits_op, |d| d.operand("d_logits"));
    check::gradient_dispatch!(OP, logits_op, d_op, T, D => {
        let weights = config.class_weights.map(|w| w.as_slice(OP, "class_weights")).transpose()?;
        let d_logits = d_logits.map(|d| d.into_slice::<D>(OP, "d_logits")).transpose()?;
        let found = cpu::forward_backward(
            logits.as_slice::<T>(OP, "logits")?,
            labels,
            cpu::Rule {
                weights,
                row_weights,
                smoothing: config.label_smoothing as _,
                ignore_index: config.ignore_index,
                n_classes,
                focal_gamma: config.focal_gamma as _,
            },
            scale as _,
            d_logits,
        )?;
        sums.write(OP, found)
    })
}

#[cfg(test)]
mod tests;
