//! Focal loss on logits: binary cross-entropy with less weight on labels that are predicted well.

use super::element_loss::ElementLoss;
use super::elementwise::elementwise_loss;
use super::kernels::{Kernels, kernels};
use super::sums::SumsOutput;
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Writes the sums of the elements' losses and weights to `sums`, and `d_logits = scale · ∂(sum)/∂logits`.
///
/// With `s = sigmoid(logit)`, `m = t·(1 - s) + (1 - t)·s` the missing probability and `ce` the binary cross-entropy:
/// `loss = m^γ · ce`. With `γ = 0` it is the binary cross-entropy.
///
/// - `logits`, `target`: `[N, K]`, targets in `[0, 1]`; `d_logits`: `[N, K]`, optional
/// - `gamma`: `γ`, from 0
/// - `row_weights`: `[N]` f32, finite, not negative, default 1; multiplies the losses and gradients of a row's elements, and
///   each element adds it to the sum of weights; rows of weight 0 are ignored
/// - all of one float dtype, or f32 with the gradient in bf16 or f16
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: Lin et al., Focal Loss for Dense Object Detection, arXiv:1708.02002, without its weight `α`;
/// `torchvision.ops.sigmoid_focal_loss` with `alpha=-1`.
pub fn focal_with_logits(
    logits: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    gamma: f64,
    scale: f64,
    d_logits: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    elementwise_loss(
        "focal_with_logits",
        &Focal(gamma),
        "logits",
        logits,
        target,
        row_weights,
        scale,
        d_logits,
        sums,
    )
}

/// The loss with exponent `γ`.
struct Focal(f64);

/// Values of one element, for a logit `x` and a target `t`.
struct Parts<T> {
    sigmoid: T,
    /// `1 - sigmoid`, from an exponential of its own, so that it keeps its digits near 0.
    complement: T,
    /// Binary cross-entropy.
    cross_entropy: T,
    /// Probability that the prediction lacks.
    missing: T,
    /// `missing^γ`.
    modulation: T,
}

impl Focal {
    #[inline(always)]
    fn parts<T: Float>(&self, x: T, t: T) -> Parts<T> {
        let (zero, gamma) = (T::from_f64(0.0), T::from_f64(self.0));
        let (sigmoid, complement) = (x.sigmoid(), (-x).sigmoid());
        let positive = if x < zero { zero } else { x };
        let cross_entropy = positive - x * t + (-x.abs()).exp().ln_1p_positive();
        let missing = t * complement + (T::ONE - t) * sigmoid;
        let modulation = if self.0 == 0.0 { T::ONE } else { (gamma * missing.ln()).exp() };
        Parts { sigmoid, complement, cross_entropy, missing, modulation }
    }
}

impl ElementLoss for Focal {
    const KERNELS: Kernels = kernels!("focal_with_logits");
    fn parameter(&self) -> f64 {
        self.0
    }
    #[inline(always)]
    fn value<T: Float>(&self, x: T, t: T) -> T {
        let Parts { cross_entropy, modulation, .. } = self.parts(x, t);
        modulation * cross_entropy
    }
    #[inline(always)]
    fn derivative<T: Float>(&self, x: T, t: T) -> T {
        let (zero, gamma) = (T::from_f64(0.0), T::from_f64(self.0));
        let Parts { sigmoid, complement, cross_entropy, missing, modulation } = self.parts(x, t);
        // The derivative of `missing`, divided by it.
        let growth = (T::ONE - t - t) * sigmoid * complement / missing;
        let growth = if missing > zero { growth } else { zero };
        modulation * ((sigmoid - t) + gamma * growth * cross_entropy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::loss::testing::assert_loss;

    #[test]
    fn gradient_matches_central_differences_and_dtypes_agree() {
        for gamma in [0.0, 0.5, 2.0] {
            let op =
                |x: TensorRef<'_>,
                 t: TensorRef<'_>,
                 w: Option<TensorRef<'_>>,
                 scale,
                 d: Option<TensorMut<'_>>,
                 sums: SumsOutput<'_>| { focal_with_logits(x, t, w, gamma, scale, d, sums) };
            assert_loss(op, 4.0, |v| f64::from(v > 0.0));
        }
    }
}
