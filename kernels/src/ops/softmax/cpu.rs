//! Row by row: the largest value, exponentials with their sum, then the quotients.

use crate::Element;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 13;
/// Number of interleaved partial results, which vectorize.
const LANES: usize = 16;

/// `f` of all `0..n`, combined in [`LANES`] interleaved parts.
#[inline(always)]
fn fold<T: Float>(n: usize, start: T, value: impl Fn(usize) -> T, combine: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let whole = n - n % LANES;
    for first in (0..whole).step_by(LANES) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane = combine(*lane, value(first + l));
        }
    }
    let rest = (whole..n).fold(start, |sum, i| combine(sum, value(i)));
    lanes.into_iter().fold(rest, &combine)
}

pub(super) fn forward<T: Stored>(y: &mut [T], cols: usize) {
    by_row(y, cols, |_, y| {
        let largest = fold(y.len(), T::Real::NEG_INFINITY, |i| y[i].load(), T::Real::at_least);
        let total = fold(y.len(), T::Real::ZERO, |i| (y[i].load() - largest).exp(), |a, b| a + b);
        let factor = T::Real::ONE / total;
        y.iter_mut().for_each(|y| *y = T::store((y.load() - largest).exp() * factor));
    });
}

pub(super) fn backward<T: Stored>(y: &[T], d: &mut [T], cols: usize) {
    by_row(d, cols, |first, d| {
        let y = &y[first..first + d.len()];
        let mean = fold(d.len(), T::Real::ZERO, |i| y[i].load() * d[i].load(), |a, b| a + b);
        d.iter_mut().zip(y).for_each(|(d, y)| *d = T::store(y.load() * (d.load() - mean)));
    });
}

/// Calls `f` with the first element's index of each row and the row.
fn by_row<T: Stored>(values: &mut [T], cols: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if values.is_empty() {
        return;
    }
    let n_rows = values.len() / cols;
    let values = SharedMut::new(values);
    for_parts(n_rows, MIN_PART.div_ceil(cols), 1, |rows| {
        vectorize(
            #[inline(always)]
            || {
                for row in rows.clone() {
                    // SAFETY: row `row` of `n_rows`, which is in this part alone.
                    f(row * cols, unsafe { values.slice(row * cols..(row + 1) * cols) });
                }
            },
        );
    });
}
