//! One pass over the flat buffers.

use super::SgdConfig;
use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};

/// Elements from which a second thread is worth it.
const MIN_PART: usize = 1 << 15;

pub(super) fn step<T: Float>(config: &SgdConfig, w: &mut [T], g: &[T], velocity: Option<&mut [T]>) {
    let [lr, momentum, decay, scale] =
        [config.lr_scale * config.lr, config.momentum, config.weight_decay, config.grad_scale]
            .map(T::from_f64);
    let nesterov = config.nesterov;
    let n = w.len();
    let w = SharedMut::new(w);
    match velocity {
        None => for_parts(n, MIN_PART, 64, |part| {
            // SAFETY: the part lies within `w` and is this thread's alone.
            let w = unsafe { w.slice(part.clone()) };
            let g = &g[part];
            vectorize(
                #[inline(always)]
                || {
                    for (w, &g) in w.iter_mut().zip(g) {
                        *w -= lr * (g * scale + decay * *w);
                    }
                },
            );
        }),
        Some(velocity) => {
            let v = SharedMut::new(velocity);
            for_parts(n, MIN_PART, 64, |part| {
                // SAFETY: the part lies within `w` and is this thread's alone.
                let w = unsafe { w.slice(part.clone()) };
                // SAFETY: likewise, the velocity being as long.
                let v = unsafe { v.slice(part.clone()) };
                let g = &g[part];
                vectorize(
                    #[inline(always)]
                    || {
                        for ((w, v), &g) in w.iter_mut().zip(v).zip(g) {
                            let g = g * scale + decay * *w;
                            *v = momentum * *v + g;
                            *w -= lr * if nesterov { g + momentum * *v } else { *v };
                        }
                    },
                );
            });
        }
    }
}
