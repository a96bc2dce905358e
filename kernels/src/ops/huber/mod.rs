//! Huber's loss: squared near the target, linear far from it.

use super::loss::{ElementLoss, LossSums, elementwise_loss};
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Sums of the elements' losses and of their number, and `d_prediction = scale · ∂(sum)/∂prediction`.
///
/// With `e = prediction - target`: `loss = e²/2` where `|e| <= delta`, else `delta·(|e| - delta/2)`
///
/// - `prediction`, `target`: `[N, K]`; `d_prediction`: `[N, K]`, not needed for evaluation
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: `torch.nn.functional.huber_loss`.
pub fn huber(
    prediction: TensorRef<'_>,
    target: TensorRef<'_>,
    delta: f64,
    scale: f64,
    d_prediction: Option<TensorMut<'_>>,
) -> Result<LossSums> {
    struct Huber(f64);
    impl ElementLoss for Huber {
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
    elementwise_loss("huber", &Huber(delta), "prediction", prediction, target, scale, d_prediction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::loss::testing::assert_loss_gradient;

    #[test]
    fn gradient_matches_central_differences() {
        for delta in [0.3, 1.0] {
            assert_loss_gradient(|x, t, scale, d| huber(x, t, delta, scale, d), 2.0, |v| v);
        }
    }
}
