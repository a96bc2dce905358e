//! Binary cross-entropy on logits, for several labels a row.

use super::loss::{LossSums, elementwise_loss};
use crate::cpu::Float;
use crate::{Result, TensorMut, TensorRef};

/// Sums of the elements' losses and of their number, and `d_logits = scale · ∂(sum)/∂logits`.
///
/// `loss = max(x, 0) - x·t + ln(1 + e^-|x|)`, which never overflows
///
/// - `logits`, `targets`: `[N, K]`, targets in 0..=1; `d_logits`: `[N, K]`, not needed for evaluation
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: `torch.nn.functional.binary_cross_entropy_with_logits`.
pub fn bce_with_logits(
    logits: TensorRef<'_>,
    targets: TensorRef<'_>,
    scale: f64,
    d_logits: Option<TensorMut<'_>>,
) -> Result<LossSums> {
    struct Bce;
    impl super::loss::ElementLoss for Bce {
        #[inline(always)]
        fn value<T: Float>(&self, x: T, t: T) -> T {
            x.at_least(T::ZERO) - x * t + (-x.abs()).exp().ln_1p()
        }
        #[inline(always)]
        fn derivative<T: Float>(&self, x: T, t: T) -> T {
            x.sigmoid() - t
        }
    }
    elementwise_loss("bce_with_logits", &Bce, "logits", logits, targets, scale, d_logits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::loss::testing::assert_loss_gradient;

    #[test]
    fn gradient_matches_central_differences() {
        assert_loss_gradient(bce_with_logits, 10.0, |v| 0.5 * (v + 1.0));
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let (x, t) = ([200.0f32, -200.0], [0.0f32, 0.0]);
        let view = |v| TensorRef::from_slice(v, &[1, 2]).unwrap();
        assert_eq!(bce_with_logits(view(&x), view(&t), 1.0, None).unwrap().loss, 200.0);
    }
}
