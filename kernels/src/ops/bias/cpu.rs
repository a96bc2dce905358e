//! One pass over the rows, with the bias in cache.

use crate::Element;
use crate::cpu::Stored;
use crate::cpu::simd::vectorize;

pub(super) fn forward<T: Stored>(bias: &[T], y: &mut [T]) {
    if bias.is_empty() {
        return;
    }
    vectorize(
        #[inline(always)]
        || {
            for row in y.chunks_exact_mut(bias.len()) {
                for (y, &b) in row.iter_mut().zip(bias) {
                    *y = T::store(y.load() + b.load());
                }
            }
        },
    );
}

pub(super) fn backward<T: Stored>(d_y: &[T], d_bias: &mut [T::Real], accumulate: bool) {
    if !accumulate {
        d_bias.fill(T::Real::ZERO);
    }
    if d_bias.is_empty() {
        return;
    }
    vectorize(
        #[inline(always)]
        || {
            for row in d_y.chunks_exact(d_bias.len()) {
                for (sum, &d) in d_bias.iter_mut().zip(row) {
                    *sum += d.load();
                }
            }
        },
    );
}
