//! The formula on slices: 20 bytes per element in f32, 12 without momentum.

use super::SgdConfig;
use crate::cpu::Float;

#[inline(always)]
pub(super) fn apply<T: Float>(config: &SgdConfig, w: &mut [T], g: &[T], velocity: &mut [T]) {
    let [lr, momentum, decay, scale] =
        [config.lr_scale * config.lr, config.momentum, config.weight_decay, config.grad_scale]
            .map(T::from_f64);
    if velocity.is_empty() {
        for (w, &g) in w.iter_mut().zip(g) {
            *w -= lr * (g * scale + decay * *w);
        }
        return;
    }
    let nesterov = config.nesterov;
    for ((w, v), &g) in w.iter_mut().zip(velocity).zip(g) {
        let g = g * scale + decay * *w;
        *v = momentum * *v + g;
        *w -= lr * if nesterov { g + momentum * *v } else { *v };
    }
}
