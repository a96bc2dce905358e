//! Sums over the rows in f64, column by column in the order of memory.

use crate::Element;
use crate::cpu::simd::vectorize;
use crate::cpu::{Float, Stored};

/// Mean and `1 / deviation` of each column.
pub(super) struct Saved<'a, R> {
    pub(super) mean: &'a [R],
    pub(super) rstd: &'a [R],
}

/// `[n, means, centered sums of squares]`: the means first, so that the squares do not cancel.
pub(super) fn moments<T: Stored>(x: &[T], n_rows: usize, moments: &mut [f64]) {
    let cols = (moments.len() - 1) / 2;
    moments.fill(0.0);
    moments[0] = n_rows as f64;
    if n_rows * cols == 0 {
        return;
    }
    let (mean, squares) = moments[1..].split_at_mut(cols);
    vectorize(
        #[inline(always)]
        || {
            for row in x.chunks_exact(cols) {
                for (mean, x) in mean.iter_mut().zip(row) {
                    *mean += x.load().to_f64();
                }
            }
            mean.iter_mut().for_each(|mean| *mean /= n_rows as f64);
            for row in x.chunks_exact(cols) {
                for ((squares, x), mean) in squares.iter_mut().zip(row).zip(mean.iter()) {
                    let centered = x.load().to_f64() - *mean;
                    *squares += centered * centered;
                }
            }
        },
    );
}

/// Memory that [`statistics`] writes.
pub(super) struct Statistics<'a, R> {
    pub(super) mean: &'a mut [R],
    pub(super) rstd: &'a mut [R],
    pub(super) count: &'a mut f64,
    pub(super) running_mean: &'a mut [R],
    pub(super) running_var: &'a mut [R],
}

/// Merges the moments of all groups, in their order; a running value that would not be finite stays as it is. A single row has no
/// statistics: the running averages take their place.
pub(super) fn statistics<R: Float>(all: &[f64], eps: f64, momentum: f64, out: Statistics<'_, R>) {
    let cols = out.mean.len();
    for c in 0..cols {
        let (mut n, mut mean, mut squares) = (0.0, 0.0, 0.0);
        for of_group in all.chunks_exact(2 * cols + 1) {
            let (more, delta) = (of_group[0], of_group[1 + c] - mean);
            if more > 0.0 {
                let total: f64 = n + more;
                mean += delta * more / total;
                squares += of_group[1 + cols + c] + delta * delta * (n * more / total);
                n = total;
            }
        }
        if n == 1.0 {
            out.mean[c] = out.running_mean[c];
            out.rstd[c] = R::from_f64(1.0 / (out.running_var[c].to_f64() + eps).sqrt());
            *out.count = f64::INFINITY;
            continue;
        }
        let variance = if n > 0.0 { squares / n } else { 0.0 };
        out.mean[c] = R::from_f64(mean);
        out.rstd[c] = R::from_f64(1.0 / (variance + eps).sqrt());
        *out.count = n;
        let blend =
            |old: R, new: f64| R::from_f64(1.0 - momentum) * old + R::from_f64(momentum) * R::from_f64(new);
        if n > 1.0 {
            let next_mean = blend(out.running_mean[c], mean);
            let next_var = blend(out.running_var[c], squares / (n - 1.0));
            if next_mean.to_f64().is_finite() && next_var.to_f64().is_finite() {
                (out.running_mean[c], out.running_var[c]) = (next_mean, next_var);
            }
        }
    }
}

pub(super) fn frozen<R: Float>(
    running_mean: &[R],
    running_var: &[R],
    eps: f64,
    mean: &mut [R],
    rstd: &mut [R],
) {
    mean.copy_from_slice(running_mean);
    for (rstd, var) in rstd.iter_mut().zip(running_var) {
        *rstd = R::from_f64(1.0 / (var.to_f64() + eps).sqrt());
    }
}

pub(super) fn forward<T: Stored>(
    x: &[T],
    gamma: &[T::Real],
    beta: &[T::Real],
    saved: &Saved<'_, T::Real>,
    y: &mut [T],
) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let Saved { mean, rstd } = *saved;
    vectorize(
        #[inline(always)]
        || {
            for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
                for c in 0..cols {
                    y[c] = T::store((x[c].load() - mean[c]) * (rstd[c] * gamma[c]) + beta[c]);
                }
            }
        },
    );
}

/// `[Σ d, Σ d·h]`.
pub(super) fn backward_sums<T: Stored>(x: &[T], d: &[T], saved: &Saved<'_, T::Real>, sums: &mut [f64]) {
    let cols = saved.mean.len();
    sums.fill(0.0);
    if cols == 0 {
        return;
    }
    let Saved { mean, rstd } = *saved;
    let (of_d, of_dh) = sums.split_at_mut(cols);
    vectorize(
        #[inline(always)]
        || {
            for (x, d) in x.chunks_exact(cols).zip(d.chunks_exact(cols)) {
                for c in 0..cols {
                    let (h, d) = ((x[c].load() - mean[c]) * rstd[c], d[c].load());
                    of_d[c] += d.to_f64();
                    of_dh[c] += (d * h).to_f64();
                }
            }
        },
    );
}

/// Adds the own group's sums to the gradients of the parameters, and replaces them by the means over all rows.
pub(super) fn parameter_gradients<R: Float>(
    own: &mut [f64],
    all: Option<&[f64]>,
    count: f64,
    d_gamma: &mut [R],
    d_beta: &mut [R],
    accumulate: bool,
) {
    let cols = d_gamma.len();
    for c in 0..cols {
        let add = |to: &mut R, sum: f64| *to = if accumulate { *to } else { R::ZERO } + R::from_f64(sum);
        add(&mut d_beta[c], own[c]);
        add(&mut d_gamma[c], own[cols + c]);
    }
    for (i, own) in own.iter_mut().enumerate() {
        let sum = all.map_or(*own, |all| all.chunks_exact(2 * cols).map(|of_group| of_group[i]).sum());
        *own = if count > 0.0 { sum / count } else { 0.0 };
    }
}

/// - `means`: the means of `d` and of `d·h` over all rows
pub(super) fn backward<T: Stored>(
    x: &[T],
    gamma: &[T::Real],
    saved: &Saved<'_, T::Real>,
    means: &[f64],
    d: &mut [T],
) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let Saved { mean, rstd } = *saved;
    let (mean_d, mean_dh) = means.split_at(cols);
    vectorize(
        #[inline(always)]
        || {
            for (x, d) in x.chunks_exact(cols).zip(d.chunks_exact_mut(cols)) {
                for c in 0..cols {
                    let h = (x[c].load() - mean[c]) * rstd[c];
                    let rest = T::Real::from_f64(mean_d[c]) + h * T::Real::from_f64(mean_dh[c]);
                    d[c] = T::store(gamma[c] * rstd[c] * (d[c].load() - rest));
                }
            }
        },
    );
}
