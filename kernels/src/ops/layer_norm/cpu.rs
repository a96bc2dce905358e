//! Two passes over each row while it is in cache: the mean first, so that the variance does not cancel.

use crate::Element;
use crate::cpu::simd::vectorize;
use crate::cpu::{Float, Stored};

/// Number of interleaved partial sums, which vectorize.
const LANES: usize = 16;

/// `Σ f(i)` over `0..n`, in [`LANES`] interleaved parts.
#[inline(always)]
pub(in crate::ops) fn sum<T: Float>(n: usize, f: impl Fn(usize) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let whole = n - n % LANES;
    for start in (0..whole).step_by(LANES) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane += f(start + l);
        }
    }
    let rest: T = (whole..n).map(&f).sum();
    rest + lanes.into_iter().sum()
}

pub(super) fn forward<T: Stored>(
    x: &[T],
    gamma: &[T::Real],
    beta: &[T::Real],
    eps: T::Real,
    y: &mut [T],
    mean: &mut [T::Real],
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
            for (row, (x, y)) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)).enumerate() {
                let m = sum(cols, |c| x[c].load()) / n;
                let variance = sum(cols, |c| (x[c].load() - m) * (x[c].load() - m)) / n;
                let r = T::Real::ONE / (variance + eps).sqrt();
                for (((y, &x), &g), &b) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                    *y = T::store((x.load() - m) * r * g + b);
                }
                (mean[row], rstd[row]) = (m, r);
            }
        },
    );
}

/// Statistics of the forward pass.
pub(super) struct Saved<'a, T: Stored> {
    pub x: &'a [T],
    pub gamma: &'a [T::Real],
    pub mean: &'a [T::Real],
    pub rstd: &'a [T::Real],
}

pub(super) fn backward<T: Stored>(
    saved: &Saved<'_, T>,
    d: &mut [T],
    d_gamma: &mut [T::Real],
    d_beta: &mut [T::Real],
    add: bool,
) {
    let cols = saved.gamma.len();
    if !add {
        d_gamma.fill(T::Real::ZERO);
        d_beta.fill(T::Real::ZERO);
    }
    if cols == 0 {
        return;
    }
    let n = T::Real::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for (row, (x, d)) in saved.x.chunks_exact(cols).zip(d.chunks_exact_mut(cols)).enumerate() {
                let (m, r) = (saved.mean[row], saved.rstd[row]);
                let gamma = saved.gamma;
                let mean_g = sum(cols, |c| d[c].load() * gamma[c]) / n;
                let mean_gh = sum(cols, |c| d[c].load() * gamma[c] * (x[c].load() - m)) * r / n;
                for c in 0..cols {
                    let (h, d_y) = ((x[c].load() - m) * r, d[c].load());
                    d_gamma[c] += d_y * h;
                    d_beta[c] += d_y;
                    d[c] = T::store(r * (d_y * gamma[c] - mean_g - h * mean_gh));
                }
            }
        },
    );
}
