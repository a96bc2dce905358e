//! Losses of one predicted and one true value.

use super::kernels::Kernels;
use crate::cpu::Float;

/// A loss of one predicted and one true value.
pub(super) trait ElementLoss: Sync {
    /// Kernels of the loss in `kernel.cu`.
    const KERNELS: Kernels;
    /// Parameter of its kernels, if they have one.
    fn parameter(&self) -> f64 {
        0.0
    }
    /// The loss.
    fn value<T: Float>(&self, x: T, target: T) -> T;
    /// Derivative with respect to `x`.
    fn derivative<T: Float>(&self, x: T, target: T) -> T;
}
