//! Binary cross-entropy on logits, for several labels per row.

use super::element_loss::ElementLoss;
use super::elementwise::elementwise_loss;
use super::kernels::{Kernels, kernels};
use super::sums::SumsOutput;
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Writes the sums of the elements' losses and weights to `sums`, and `d_logits = scale · ∂(sum)/∂logits`.
///
/// `loss = max(x, 0) - x·t + ln(1 + e^-|x|)`, which never overflows
///
/// - `logits`, `targets`: `[N, K]`, targets in 0..=1; `d_logits`: `[N, K]`, optional
/// - `row_weights`: `[N]` f32, finite, not negative, default 1; multiplies the losses and gradients of a row's elements, and
///   each element adds it to the sum of weights; rows of weight 0 are ignored
/// - all of one float dtype, or f32 with the gradient in bf16 or f16
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: `torch.nn.functional.binary_cross_entropy_with_logits`.
pub fn bce_with_logits(
    logits: TensorRef<'_>,
    targets: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_logits: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    elementwise_loss("bce_with_logits", &Bce, "logits", logits, targets, row_weights, scale, d_logits, sums)
}

/// The loss of one logit and one target.
pub(super) struct Bce;

impl ElementLoss for Bce {
    const KERNELS: Kernels = kernels!("bce_with_logits");
    #[inline(always)]
    fn value<T: Float>(&self, x: T, t: T) -> T {
        x.at_least(T::ZERO) - x * t + (-x.abs()).exp().ln_1p_positive()
    }
    #[inline(always)]
    fn derivative<T: Float>(&self, x: T, t: T) -> T {
        x.sigmoid() - t
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::loss::testing::{assert_loss, sums_after};
    use crate::ops::testing::{devices, tensor};

    #[test]
    fn gradient_matches_central_differences_and_dtypes_agree() {
        assert_loss(bce_with_logits, 10.0, |v| 0.5 * (v + 1.0));
    }

    #[test]
    fn large_logits_do_not_overflow() {
        for device in devices() {
            let (x, t) =
                (tensor(&[200.0f32, -200.0], &[1, 2], device), tensor(&[0.0f32; 2], &[1, 2], device));
            let sums =
                sums_after(device, None, |sums| bce_with_logits(x.view(), t.view(), None, 1.0, None, sums));
            assert_eq!(sums.unwrap().loss, 200.0);
        }
    }
}
