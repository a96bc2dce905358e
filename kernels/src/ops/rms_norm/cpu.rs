//! Two passes over each row while it is in cache.

use crate::Element;
use crate::cpu::simd::vectorize;
use crate::cpu::{Float, Stored};
use crate::ops::layer_norm::cpu::sum;

pub(super) fn forward<T: Stored>(
    x: &[T],
    gamma: &[T::Real],
    eps: T::Real,
    y: &mut [T],
    rstd: &mut [T::Real],
) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let n = T::Real::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for ((x, y), rstd) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)).zip(rstd.iter_mut()) {
                let r = T::Real::ONE / (sum(cols, |c| x[c].load() * x[c].load()) / n + eps).sqrt();
                for ((y, &x), &g) in y.iter_mut().zip(x).zip(gamma) {
                    *y = T::store(x.load() * r * g);
                }
                *rstd = r;
            }
        },
    );
}

/// Adds to `d_gamma`.
pub(super) fn backward<T: Stored>(
    x: &[T],
    gamma: &[T::Real],
    rstd: &[T::Real],
    d: &mut [T],
    d_gamma: &mut [T::Real],
) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let n = T::Real::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for ((x, d), &r) in x.chunks_exact(cols).zip(d.chunks_exact_mut(cols)).zip(rstd) {
                let mean = sum(cols, |c| d[c].load() * gamma[c] * (x[c].load() * r)) / n;
                for c in 0..cols {
                    let (h, one) = (x[c].load() * r, d[c].load());
                    d_gamma[c] += one * h;
                    d[c] = T::store(r * (one * gamma[c] - h * mean));
                }
            }
        },
    );
}
