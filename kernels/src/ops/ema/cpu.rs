//! One pass over the flat buffers: 12 bytes an element in f32.

use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};

/// Elements from which a second thread is worth it.
const MIN_PART: usize = 1 << 15;

pub(super) fn update<T: Float>(decay: f64, step: u64, ema: &mut [T], weights: &[T]) {
    let weight = T::from_f64(1.0 - decay);
    let rest = T::from_f64(1.0) - weight;
    let (is_first, is_near) = (step == 1, 1.0 - decay < 0.5);
    let n = ema.len();
    let ema = SharedMut::new(ema);
    for_parts(n, MIN_PART, 64, |part| {
        // SAFETY: the part lies within the buffer and is this thread's alone.
        let ema = unsafe { ema.slice(part.clone()) };
        let weights = &weights[part];
        if is_first {
            return ema.copy_from_slice(weights);
        }
        vectorize(
            #[inline(always)]
            || {
                for (e, &w) in ema.iter_mut().zip(weights) {
                    *e = if is_near { *e + weight * (w - *e) } else { w - (w - *e) * rest };
                }
            },
        );
    });
}
