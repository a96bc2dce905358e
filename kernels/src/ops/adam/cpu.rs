//! One pass over the flat buffers: 28 bytes an element in f32.

use super::{AdamConfig, WeightDecay};
use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};

/// Elements from which a second thread is worth it.
const MIN_PART: usize = 1 << 14;

pub(super) fn step<T: Float>(config: &AdamConfig, w: &mut [T], g: &[T], m: &mut [T], v: &mut [T]) {
    let lr = config.lr_scale * config.lr;
    let exponent = i32::try_from(config.step).unwrap_or(i32::MAX);
    let [c1, c2] = config.betas.map(|beta| 1.0 - beta.powi(exponent));
    let (coupled, decoupled) = match config.decay {
        WeightDecay::Coupled => (config.weight_decay, 0.0),
        WeightDecay::Decoupled => (0.0, config.weight_decay),
    };
    let [b1, b2] = config.betas.map(T::from_f64);
    let (one_minus_b1, one_minus_b2) =
        (T::from_f64(1.0 - config.betas[0]), T::from_f64(1.0 - config.betas[1]));
    let [scale, coupled, keep, step_size, root_scale, eps] =
        [config.grad_scale, coupled, 1.0 - lr * decoupled, lr / c1, 1.0 / c2.sqrt(), config.eps]
            .map(T::from_f64);
    let n = w.len();
    let (w, m, v) = (SharedMut::new(w), SharedMut::new(m), SharedMut::new(v));
    for_parts(n, MIN_PART, 64, |part| {
        // SAFETY: the part lies within the buffer and is this thread's alone.
        let w = unsafe { w.slice(part.clone()) };
        // SAFETY: likewise, all buffers being of one length.
        let m = unsafe { m.slice(part.clone()) };
        // SAFETY: likewise.
        let v = unsafe { v.slice(part.clone()) };
        let g = &g[part];
        vectorize(
            #[inline(always)]
            || {
                for (((w, m), v), &g) in w.iter_mut().zip(m).zip(v).zip(g) {
                    let g = g * scale + coupled * *w;
                    *m = b1 * *m + one_minus_b1 * g;
                    *v = b2 * *v + one_minus_b2 * g * g;
                    *w = keep * *w - step_size * *m / (v.sqrt() * root_scale + eps);
                }
            },
        );
    });
}
