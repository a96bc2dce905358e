//! Quantile loss (pinball loss): its minimum is a quantile of the target.

use super::element_loss::ElementLoss;
use super::elementwise::elementwise_loss;
use super::kernels::{Kernels, kernels};
use super::sums::SumsOutput;
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Writes the sums of the elements' losses and weights to `sums`, and `d_prediction = scale · ∂(sum)/∂prediction`.
///
/// With `e = target - prediction`: `loss = q·e` if `e > 0`, else `(q - 1)·e`; the derivative at `e = 0` is 0
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
/// Source: `sklearn.metrics.mean_pinball_loss`; Koenker and Bassett, Regression Quantiles, Econometrica 46 (1978).
pub fn quantile(
    prediction: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    q: f64,
    scale: f64,
    d_prediction: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    struct Quantile(f64);
    impl ElementLoss for Quantile {
        const KERNELS: Kernels = kernels!("quantile");
        fn parameter(&self) -> f64 {
            self.0
        }
        #[inline(always)]
        fn value<T: Float>(&self, x: T, t: T) -> T {
            let (e, q) = (t - x, T::from_f64(self.0));
            if e > T::from_f64(0.0) { q * e } else { (q - T::ONE) * e }
        }
        #[inline(always)]
        fn derivative<T: Float>(&self, x: T, t: T) -> T {
            // Where they are equal, and where one of them is NaN, their difference.
            let (e, q, zero) = (x - t, T::from_f64(self.0), T::from_f64(0.0));
            let d = if e < zero { -q } else { e };
            if e > zero { T::ONE - q } else { d }
        }
    }
    elementwise_loss(
        "quantile",
        &Quantile(q),
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
        for q in [0.1, 0.5, 0.9] {
            assert_loss(|x, t, w, scale, d, sums| quantile(x, t, w, q, scale, d, sums), 2.0, |v| v);
        }
    }
}
