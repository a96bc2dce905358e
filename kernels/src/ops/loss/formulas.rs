//! The formulas of the losses of one element, and their derivatives; `kernel.cu` has the same for GPUs.

use super::cuda::{Kernels, kernels};
use crate::cpu::Float;

/// A loss of one predicted and one true value.
pub(super) trait Formula: Sync {
    /// Name of the operation in errors.
    const OP: &'static str;
    /// Name of the prediction in errors.
    const X: &'static str;
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

/// Binary cross-entropy with logits.
pub(super) struct Bce;

impl Formula for Bce {
    const OP: &'static str = "bce_with_logits";
    const X: &'static str = "logits";
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

/// Focal loss with exponent `γ`.
pub(super) struct Focal(pub(super) f64);

/// Values of one element, for a logit `x` and a target `t`.
struct Parts<T> {
    sigmoid: T,
    /// `1 - sigmoid`, from an exponential of its own, so that it keeps its digits near 0.
    complement: T,
    /// Binary cross-entropy.
    cross_entropy: T,
    /// Probability that the prediction lacks.
    missing: T,
    /// `missing^γ`.
    modulation: T,
}

impl Focal {
    #[inline(always)]
    fn parts<T: Float>(&self, x: T, t: T) -> Parts<T> {
        let (zero, gamma) = (T::from_f64(0.0), T::from_f64(self.0));
        let (sigmoid, complement) = (x.sigmoid(), (-x).sigmoid());
        let positive = if x < zero { zero } else { x };
        let cross_entropy = positive - x * t + (-x.abs()).exp().ln_1p_positive();
        let missing = t * complement + (T::ONE - t) * sigmoid;
        let modulation = if self.0 == 0.0 { T::ONE } else { (gamma * missing.ln()).exp() };
        Parts { sigmoid, complement, cross_entropy, missing, modulation }
    }
}

impl Formula for Focal {
    const OP: &'static str = "focal_with_logits";
    const X: &'static str = "logits";
    const KERNELS: Kernels = kernels!("focal_with_logits");
    fn parameter(&self) -> f64 {
        self.0
    }
    #[inline(always)]
    fn value<T: Float>(&self, x: T, t: T) -> T {
        let Parts { cross_entropy, modulation, .. } = self.parts(x, t);
        modulation * cross_entropy
    }
    #[inline(always)]
    fn derivative<T: Float>(&self, x: T, t: T) -> T {
        let (zero, gamma) = (T::from_f64(0.0), T::from_f64(self.0));
        let Parts { sigmoid, complement, cross_entropy, missing, modulation } = self.parts(x, t);
        // The derivative of `missing`, divided by it.
        let growth = (T::ONE - t - t) * sigmoid * complement / missing;
        let growth = if missing > zero { growth } else { zero };
        modulation * ((sigmoid - t) + gamma * growth * cross_entropy)
    }
}

/// Squared error.
pub(super) struct Mse;

impl Formula for Mse {
    const OP: &'static str = "mse";
    const X: &'static str = "prediction";
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

/// Huber loss that turns linear at this error.
pub(super) struct Huber(pub(super) f64);

impl Formula for Huber {
    const OP: &'static str = "huber";
    const X: &'static str = "prediction";
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

/// Log-cosh loss.
pub(super) struct LogCosh;

impl Formula for LogCosh {
    const OP: &'static str = "log_cosh";
    const X: &'static str = "prediction";
    const KERNELS: Kernels = kernels!("log_cosh");
    #[inline(always)]
    fn value<T: Float>(&self, x: T, t: T) -> T {
        // The sum of the second form keeps no digits of a small result.
        let (e, tanh) = ((x - t).abs(), (x - t).tanh());
        let is_near = e < T::ONE;
        let (square, ln_2) = (tanh * tanh, T::from_f64(std::f64::consts::LN_2));
        let term = if is_near { square / (T::ONE - square) } else { (T::from_f64(-2.0) * e).exp() };
        let ln = term.ln_1p_positive();
        if is_near { T::from_f64(0.5) * ln } else { e + ln - ln_2 }
    }
    #[inline(always)]
    fn derivative<T: Float>(&self, x: T, t: T) -> T {
        (x - t).tanh()
    }
}

/// Quantile loss of this quantile.
pub(super) struct Quantile(pub(super) f64);

impl Formula for Quantile {
    const OP: &'static str = "quantile";
    const X: &'static str = "prediction";
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

/// Poisson loss.
pub(super) struct Poisson;

impl Formula for Poisson {
    const OP: &'static str = "poisson";
    const X: &'static str = "prediction";
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

/// A loss that was computed before; the target does not matter.
pub(super) struct Given;

impl Formula for Given {
    const OP: &'static str = "sum_losses";
    const X: &'static str = "losses";
    const KERNELS: Kernels = kernels!("given");
    #[inline(always)]
    fn value<T: Float>(&self, x: T, _t: T) -> T {
        x
    }
    #[inline(always)]
    fn derivative<T: Float>(&self, _x: T, _t: T) -> T {
        T::ONE
    }
}
