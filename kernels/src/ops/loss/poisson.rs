//! Poisson loss: the model predicts the logarithm of a rate, and the target is a count.

use super::element_loss::ElementLoss;
use super::elementwise::elementwise_loss;
use super::kernels::{Kernels, kernels};
use super::sums::SumsOutput;
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Writes the sums of the elements' losses and weights to `sums`, and `d_prediction = scale · ∂(sum)/∂prediction`.
///
/// `loss = exp(prediction) - target·prediction`: the negative logarithm of the Poisson probability of `target` at the rate
/// `exp(prediction)`, without the term `ln(target!)`, which no prediction changes. It can be negative.
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
/// Source: `torch.nn.functional.poisson_nll_loss` with its defaults `log_input=True`, `full=False`.
pub fn poisson(
    prediction: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_prediction: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    struct Poisson;
    impl ElementLoss for Poisson {
        const KERNELS: Kernels = kernels!("poisson");
        #[inline(always)]
        fn value<T: Float>(&self, x: T, t: T) -> T {
            x.exp() - t * x
        }
        #[inline(always)]
        fn derivative<T: Float>(&self, x: T, t: T) -> T {
            x.exp() - t
        }
    }
    elementwise_loss(
        "poisson",
        &Poisson,
        "prediction",
        prediction,
        target,
        row_weights,
        scale,
        d_prediction,
        sums,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::loss::testing::assert_loss;

    #[test]
    fn gradient_matches_central_differences_and_dtypes_agree() {
        // Counts from 0 to 6; the sum stays away from 0.
        assert_loss(poisson, 2.0, |v| (3.0 * v + 3.0).floor());
    }
}
