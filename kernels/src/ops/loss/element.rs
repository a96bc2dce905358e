//! Losses of one predicted and one true value.

use super::formulas::{Bce, Focal, Formula, Given, Huber, LogCosh, Mse, Poisson, Quantile};
use super::sums::SumsOutput;
use super::{cpu, cuda};
use crate::base::check;
use crate::{Result, TensorMut, TensorRef};

/// A loss of one predicted and one true value; `x` is the prediction, `t` the target, `e = x - t`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ElementLoss {
    /// Binary cross-entropy on a logit, the target in 0..=1: `max(x, 0) - x·t + ln(1 + e^-|x|)`, which never overflows.
    ///
    /// Source: `torch.nn.functional.binary_cross_entropy_with_logits`.
    Bce,
    /// Focal loss of a logit, the target in 0..=1: binary cross-entropy that counts a label less the better it is predicted.
    ///
    /// With `s = sigmoid(x)`, `m = t·(1 - s) + (1 - t)·s` the missing probability and `ce` the binary cross-entropy: `m^γ · ce`. With
    /// `γ = 0` it is the binary cross-entropy.
    ///
    /// Source: Lin et al., Focal Loss for Dense Object Detection, arXiv:1708.02002, without its weight `α`;
    /// `torchvision.ops.sigmoid_focal_loss` with `alpha=-1`.
    Focal {
        /// `γ`, from 0.
        gamma: f64,
    },
    /// Squared error: `e²`.
    ///
    /// Source: `torch.nn.functional.mse_loss`.
    Mse,
    /// Huber loss, squared near the target, linear far from it: `e²/2` if `|e| <= delta`, else `delta·(|e| - delta/2)`.
    ///
    /// Source: `torch.nn.functional.huber_loss`.
    Huber {
        /// Error at which it turns from squared to linear, positive.
        delta: f64,
    },
    /// Log-cosh loss, squared near the target, linear far from it, smooth everywhere:
    /// `ln(cosh(e)) = |e| + ln(1 + exp(-2·|e|)) - ln 2`, which does not overflow, and for `|e|` below 1
    /// `ln(1 + h²/(1 - h²))/2` with `h = tanh(e)`, which does not cancel.
    ///
    /// Source: `keras.losses.LogCosh`.
    LogCosh,
    /// Quantile loss (pinball loss), whose minimum is a quantile of the target: `-q·e` if `e < 0`, else `(1 - q)·e`; the derivative at
    /// `e = 0` is 0.
    ///
    /// Source: `sklearn.metrics.mean_pinball_loss`; Koenker and Bassett, Regression Quantiles, Econometrica 46 (1978).
    Quantile {
        /// `q`, in (0, 1).
        quantile: f64,
    },
    /// Poisson loss, the prediction the logarithm of a rate, the target a count: `exp(x) - t·x`, the negative logarithm of the Poisson
    /// probability of `t` at the rate `exp(x)` without the term `ln(t!)`, which no prediction changes. It can be negative.
    ///
    /// Source: `torch.nn.functional.poisson_nll_loss` with its defaults `log_input=True`, `full=False`.
    Poisson,
}

/// Writes the sums of the elements' losses and weights to `sums`, and `d_x = scale · ∂(sum)/∂x`.
///
/// - `x`, `target`: `[N, K]`; `d_x`: `[N, K]`, optional
/// - `row_weights`: `[N]` f32, finite, not negative, default 1; multiplies the losses and gradients of a row's elements, and
///   each element adds it to the sum of weights; rows of weight 0 are ignored
/// - all of one float dtype, or f32 with the gradient in bf16 or f16
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
#[doc(hidden)]
pub fn element_loss(
    loss: ElementLoss,
    x: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_x: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    match loss {
        ElementLoss::Bce => run(&Bce, x, target, row_weights, scale, d_x, sums),
        ElementLoss::Focal { gamma } => run(&Focal(gamma), x, target, row_weights, scale, d_x, sums),
        ElementLoss::Mse => run(&Mse, x, target, row_weights, scale, d_x, sums),
        ElementLoss::Huber { delta } => run(&Huber(delta), x, target, row_weights, scale, d_x, sums),
        ElementLoss::LogCosh => run(&LogCosh, x, target, row_weights, scale, d_x, sums),
        ElementLoss::Quantile { quantile } => {
            run(&Quantile(quantile), x, target, row_weights, scale, d_x, sums)
        }
        ElementLoss::Poisson => run(&Poisson, x, target, row_weights, scale, d_x, sums),
    }
}

/// Writes the sums of losses that were computed before, and of their weights, to `sums`, and `d_losses = scale · weight`: the gradient of
/// the sum, times `scale`.
///
/// - `losses`: `[N]`; `d_losses`: `[N]`, optional; `row_weights`: `[N]` f32 as for [`element_loss`]
///
/// Asynchronous as [`element_loss`].
///
/// # Errors
/// Same as [`element_loss`].
pub fn sum_losses(
    losses: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_losses: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let column = [losses.numel(), 1];
    let (losses, d_losses) = (losses.reshape(&column)?, d_losses.map(|d| d.reshape(&column)).transpose()?);
    run(&Given, losses, losses, row_weights, scale, d_losses, sums)
}

/// [`element_loss`] by its formula.
fn run<F: Formula>(
    formula: &F,
    x: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_x: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let (op, x_name) = (F::OP, F::X);
    let (x_op, target_op) = (x.operand(x_name), target.operand("target"));
    check::same_kind(op, &[x_op, target_op])?;
    check::shape(op, target_op, x.shape())?;
    if let Some(d_x) = &d_x {
        check::gradient_kind(op, x_op, d_x.operand("gradient"))?;
        check::shape(op, d_x.operand("gradient"), x.shape())?;
    }
    if row_weights.is_some() {
        let (n_rows, _) = check::matrix(op, x_op)?;
        check::row_weights(op, row_weights.map(|w| w.operand("row_weights")), n_rows, x_op)?;
    }
    sums.check(op, x_op)?;
    if let Some(gpu) = x.gpu() {
        check::dtype(op, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let d_x = d_x.map(TensorMut::into_cuda).transpose()?;
        let kernels = (&F::KERNELS, formula.parameter());
        return cuda::sum_and_gradient(
            gpu,
            kernels,
            x.cuda()?,
            target.cuda()?,
            row_weights,
            scale,
            d_x,
            sums,
        );
    }
    let row_weights = row_weights.map(|w| w.as_slice::<f32>(op, "row_weights")).transpose()?;
    let d_op = d_x.as_ref().map_or(x_op, |d_x| d_x.operand("gradient"));
    check::gradient_dispatch!(op, x_op, d_op, T, D => {
        let (x, target) = (x.as_slice::<T>(op, x_name)?, target.as_slice::<T>(op, "target")?);
        let d_x = d_x.map(|d| d.into_slice::<D>(op, "gradient")).transpose()?;
        sums.write(op, cpu::sum_and_gradient(formula, x, target, row_weights, scale as _, d_x))
    })
}
