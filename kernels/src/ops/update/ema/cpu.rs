//! The formula on slices: 12 bytes per element in f32.

use crate::cpu::Float;

#[inline(always)]
pub(super) fn apply<T: Float>(decay: f64, step: u64, ema: &mut [T], weights: &[T]) {
    if step == 1 {
        return ema.copy_from_slice(weights);
    }
    let weight = T::from_f64(1.0 - decay);
    let rest = T::from_f64(1.0) - weight;
    let is_near = 1.0 - decay < 0.5;
    for (e, &w) in ema.iter_mut().zip(weights) {
        *e = if is_near { *e + weight * (w - *e) } else { w - (w - *e) * rest };
    }
}
