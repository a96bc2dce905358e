//! The formula on slices: 28 bytes per element in f32.

use super::{AdamConfig, WeightDecay};
use crate::cpu::Float;

#[inline(always)]
pub(super) fn apply<T: Float>(config: &AdamConfig, w: &mut [T], g: &[T], m: &mut [T], v: &mut [T]) {
    let lr = config.lr_scale * config.lr;
    let exponent = i32::try_from(config.step).unwrap_or(i32::MAX);
    let [c1, c2] = config.betas.map(|beta| 1.0 - beta.powi(exponent));
    let (coupled, decoupled) = match config.decay {
        WeightDecay::Coupled => (config.weight_decay, 0.0),
        WeightDecay::Decoupled => (0.0, config.weight_decay),
    };
    let [b1, b2] = config.betas.map(T::from_f64);
    let [one_minus_b1, one_minus_b2] = config.betas.map(|beta| T::from_f64(1.0 - beta));
    let [scale, coupled, keep, step_size, root_scale, eps] =
        [config.grad_scale, coupled, 1.0 - lr * decoupled, lr / c1, 1.0 / c2.sqrt(), config.eps]
            .map(T::from_f64);
    for (((w, m), v), &g) in w.iter_mut().zip(m).zip(v).zip(g) {
        let g = g * scale + coupled * *w;
        *m = b1 * *m + one_minus_b1 * g;
        *v = b2 * *v + one_minus_b2 * g * g;
        *w = keep * *w - step_size * *m / (v.sqrt() * root_scale + eps);
    }
}
