//! Huber loss: squared near the target, linear far from it.

use super::element_loss::ElementLoss;
use super::elementwise::elementwise_loss;
use super::kernels::{Kernels, kernels};
use super::sums::SumsOutput;
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Writes the sums of the elements' losses and weights to `sums`, and `d_prediction = scale · ∂(sum)/∂prediction`.
///
/// With `e = prediction - target`: `loss = e²/2` if `|e| <= delta`, else `delta·(|e| - delta/2)`
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
/// Source: `torch.nn.functional.huber_loss`.
pub fn huber(
    prediction: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    delta: f64,
    scale: f64,
    d_prediction: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    struct Huber(f64);
    impl ElementLoss for Huber {
        const KERNELS: Kernels = kernels!("huber");
        fn parameter(&self) -> f64 {
            self.0
        }
        #[inline(always)]
        fn value<T: Float>(&self, x: T, t: T) -> T {
            let (e, delta, half) = ((x - t).abs(), T::from_f64(self.0), T::from_f64(0.5));
            if e > delta { delta * (e - half * delta) } else { half * e * e }
        }
        #[inline(always)]
        fn derivative<T: Float>(&self, x: T, t: T) -> T {
            let (e, delta) = (x - t, T::from_f64(self.0));
            let e = if e > delta { delta } else { e };
            if e < -delta { -delta } else { e }
        }
    }
    elementwise_loss(
        "huber",
        &Huber(delta),
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
        for delta in [0.3, 1.0] {
            assert_loss(|x, t, w, scale, d, sums| huber(x, t, w, delta, scale, d, sums), 2.0, |v| v);
        }
    }
}
