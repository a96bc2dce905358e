//! Mean squared error.

use super::element_loss::ElementLoss;
use super::elementwise::elementwise_loss;
use super::kernels::{Kernels, kernels};
use super::sums::SumsOutput;
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Writes the sums of the elements' losses and weights to `sums`, and `d_prediction = scale · ∂(sum)/∂prediction`.
///
/// `loss = (prediction - target)²`
///
/// - `prediction`, `target`: `[N, K]`; `d_prediction`: `[N, K]`, optional
/// - `row_weights`: `[N]` f32, finite, not negative, default 1; multiplies the losses and gradients of a row's elements, and
///   each element adds it to the sum of weights; rows of weight 0 are ignored
/// - all of one float dtype, or f32 with the gradient in bf16 or f16
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: `torch.nn.functional.mse_loss`.
pub fn mse(
    prediction: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_prediction: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    struct Mse;
    impl ElementLoss for Mse {
        const KERNELS: Kernels = kernels!("mse");
        #[inline(always)]
        fn value<T: Float>(&self, x: T, t: T) -> T {
            (x - t) * (x - t)
        }
        #[inline(always)]
        fn derivative<T: Float>(&self, x: T, t: T) -> T {
            T::from_f64(2.0) * (x - t)
        }
    }
    elementwise_loss("mse", &Mse, "prediction", prediction, target, row_weights, scale, d_prediction, sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::loss::testing::assert_loss;

    #[test]
    fn gradient_matches_central_differences_and_dtypes_agree() {
        assert_loss(mse, 2.0, |v| v);
    }
}
