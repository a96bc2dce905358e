//! Two passes over each row while it is in cache: the mean first, so that the variance loses nothing.

use crate::cpu::Float;
use crate::cpu::simd::vectorize;

/// Sums of rows are kept in this many parts, which vectorise.
const LANES: usize = 16;

/// `Σ f(i)` over `0..n`, in [`LANES`] interleaved parts.
#[inline(always)]
fn sum<T: Float>(n: usize, f: impl Fn(usize) -> T) -> T {
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

pub(super) fn forward<T: Float>(
    x: &[T],
    gamma: &[T],
    beta: &[T],
    eps: T,
    y: &mut [T],
    mean: &mut [T],
    rstd: &mut [T],
) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let n = T::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for (row, (x, y)) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)).enumerate() {
                let m = sum(cols, |c| x[c]) / n;
                let variance = sum(cols, |c| (x[c] - m) * (x[c] - m)) / n;
                let r = T::ONE / (variance + eps).sqrt();
                for (((y, &x), &g), &b) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                    *y = (x - m) * r * g + b;
                }
                (mean[row], rstd[row]) = (m, r);
            }
        },
    );
}

/// What the forward pass left.
pub(super) struct Saved<'a, T> {
    pub x: &'a [T],
    pub gamma: &'a [T],
    pub mean: &'a [T],
    pub rstd: &'a [T],
}

pub(super) fn backward<T: Float>(
    saved: &Saved<'_, T>,
    d: &mut [T],
    d_gamma: &mut [T],
    d_beta: &mut [T],
    add: bool,
) {
    let cols = saved.gamma.len();
    if !add {
        d_gamma.fill(T::ZERO);
        d_beta.fill(T::ZERO);
    }
    if cols == 0 {
        return;
    }
    let n = T::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for (row, (x, d)) in saved.x.chunks_exact(cols).zip(d.chunks_exact_mut(cols)).enumerate() {
                let (m, r) = (saved.mean[row], saved.rstd[row]);
                let gamma = saved.gamma;
                let mean_g = sum(cols, |c| d[c] * gamma[c]) / n;
                let mean_gh = sum(cols, |c| d[c] * gamma[c] * (x[c] - m)) * r / n;
                for c in 0..cols {
                    let h = (x[c] - m) * r;
                    d_gamma[c] += d[c] * h;
                    d_beta[c] += d[c];
                    d[c] = r * (d[c] * gamma[c] - mean_g - h * mean_gh);
                }
            }
        },
    );
}
