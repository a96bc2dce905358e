//! One pass, vectorized.

use crate::cpu::Stored;
use crate::cpu::simd::vectorize;

pub(super) fn add<T: Stored>(y: &mut [T], x: &[T]) {
    vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = T::store(y.load() + x.load());
            }
        },
    );
}
