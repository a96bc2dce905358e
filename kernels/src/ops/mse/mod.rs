//! Squared error.

use super::loss::{ElementLoss, LossSums, elementwise_loss};
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Sums of the elements' losses and of their number, and `d_prediction = scale · ∂(sum)/∂prediction`.
///
/// `loss = (prediction - target)²`
///
/// - `prediction`, `target`: `[N, K]`; `d_prediction`: `[N, K]`, not needed for evaluation
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: `torch.nn.functional.mse_loss`.
pub fn mse(
    prediction: TensorRef<'_>,
    target: TensorRef<'_>,
    scale: f64,
    d_prediction: Option<TensorMut<'_>>,
) -> Result<LossSums> {
    struct Mse;
    impl ElementLoss for Mse {
        #[inline(always)]
        fn value<T: Float>(&self, x: T, t: T) -> T {
            (x - t) * (x - t)
        }
        #[inline(always)]
        fn derivative<T: Float>(&self, x: T, t: T) -> T {
            T::from_f64(2.0) * (x - t)
        }
    }
    elementwise_loss("mse", &Mse, "prediction", prediction, target, scale, d_prediction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::loss::testing::assert_loss_gradient;

    #[test]
    fn gradient_matches_central_differences() {
        assert_loss_gradient(mse, 2.0, |v| v);
    }
}
