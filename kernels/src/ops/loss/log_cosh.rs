//! Log-cosh loss: squared near the target, linear far from it, smooth everywhere.

use super::element_loss::ElementLoss;
use super::elementwise::elementwise_loss;
use super::kernels::{Kernels, kernels};
use super::sums::SumsOutput;
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Writes the sums of the elements' losses and weights to `sums`, and `d_prediction = scale · ∂(sum)/∂prediction`.
///
/// With `e = prediction - target`: `loss = ln(cosh(e)) = |e| + ln(1 + exp(-2·|e|)) - ln 2`, which does not overflow
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
/// Source: `keras.losses.LogCosh`.
pub fn log_cosh(
    prediction: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_prediction: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    struct LogCosh;
    impl ElementLoss for LogCosh {
        const KERNELS: Kernels = kernels!("log_cosh");
        #[inline(always)]
        fn value<T: Float>(&self, x: T, t: T) -> T {
            let e = (x - t).abs();
            e + (T::from_f64(-2.0) * e).exp().ln_1p_positive() - T::from_f64(std::f64::consts::LN_2)
        }
        #[inline(always)]
        fn derivative<T: Float>(&self, x: T, t: T) -> T {
            (x - t).tanh()
        }
    }
    elementwise_loss(
        "log_cosh",
        &LogCosh,
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
        assert_loss(log_cosh, 2.0, |v| v);
    }
}
