//! One pass, vectorised.

use crate::cpu::Float;
use crate::cpu::simd::vectorize;

pub(super) fn add<T: Float>(y: &mut [T], x: &[T]) {
    vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y += x;
            }
        },
    );
}
