//! Row by row; threads share the rows.

use std::ops::Range;

use super::Gate;
use crate::Element;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};
use crate::ops::activation::cpu::{Function, Gelu, Relu, Silu};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;
/// Elements that are converted at a time, or one row.
const CONVERTED: usize = 2048;

/// Runs `$body` with `$f` as the gate's function. Its derivative is computed from its input, as ReLU's can be too.
macro_rules! with_function {
    ($gate:expr, $f:ident => $body:expr) => {
        match $gate {
            Gate::SwiGlu => {
                type $f = Silu;
                $body
            }
            Gate::GeGlu => {
                type $f = Gelu;
                $body
            }
            Gate::ReGlu => {
                type $f = Relu;
                $body
            }
        }
    };
}

pub(super) fn forward<T: Stored>(gate: Gate, x: &[T], y: &mut [T], cols: usize) {
    with_function!(gate, F => forward_as::<T, F>(x, y, cols));
}

pub(super) fn backward<T: Stored>(gate: Gate, x: &[T], d: &[T], d_x: &mut [T], cols: usize) {
    with_function!(gate, F => backward_as::<T, F>(x, d, d_x, cols));
}

fn forward_as<T: Stored, F: Function>(x: &[T], y: &mut [T], cols: usize) {
    if cols == 0 {
        return;
    }
    let rows = y.len() / cols;
    let y = SharedMut::new(y);
    for_parts(rows, MIN_PART / cols, 1, |part| {
        let (mut x_memory, mut y_memory) = (Vec::new(), Vec::new());
        for rows in chunks::<T>(part, cols) {
            let x = T::numbers_in(&x[2 * rows.start * cols..2 * rows.end * cols], &mut x_memory);
            // SAFETY: these rows lie within `y` and are this thread's alone.
            let y = unsafe { y.slice(rows.start * cols..rows.end * cols) };
            T::write_numbers(y, &mut y_memory, |y| values::<T::Real, F>(x, y, cols));
        }
    });
}

fn backward_as<T: Stored, F: Function>(x: &[T], d: &[T], d_x: &mut [T], cols: usize) {
    if cols == 0 {
        return;
    }
    let rows = d.len() / cols;
    let d_x = SharedMut::new(d_x);
    for_parts(rows, MIN_PART / cols, 1, |part| {
        let (mut x_memory, mut d_memory, mut d_x_memory) = (Vec::new(), Vec::new(), Vec::new());
        for rows in chunks::<T>(part, cols) {
            let cells = 2 * rows.start * cols..2 * rows.end * cols;
            let x = T::numbers_in(&x[cells.clone()], &mut x_memory);
            let d = T::numbers_in(&d[rows.start * cols..rows.end * cols], &mut d_memory);
            // SAFETY: these rows lie within `d_x` and are this thread's alone.
            let d_x = unsafe { d_x.slice(cells) };
            T::write_numbers(d_x, &mut d_x_memory, |d_x| derivatives::<T::Real, F>(x, d, d_x, cols));
        }
    });
}

/// The rows in one piece, or, if they have to be converted to be computed with, in pieces that stay in the cache.
fn chunks<T: Stored>(rows: Range<usize>, cols: usize) -> impl Iterator<Item = Range<usize>> {
    let n_rows = if T::DTYPE == T::Real::DTYPE { rows.len() } else { CONVERTED / cols };
    let (n_rows, end) = (n_rows.max(1), rows.end);
    rows.step_by(n_rows).map(move |row| row..(row + n_rows).min(end))
}

#[inline(never)]
fn values<R: Float, F: Function>(x: &[R], y: &mut [R], cols: usize) {
    vectorize(
        #[inline(always)]
        || {
            for (x, y) in x.chunks_exact(2 * cols).zip(y.chunks_exact_mut(cols)) {
                let (a, b) = x.split_at(cols);
                for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                    *y = F::value(a) * b;
                }
            }
        },
    );
}

#[inline(never)]
fn derivatives<R: Float, F: Function>(x: &[R], d: &[R], d_x: &mut [R], cols: usize) {
    vectorize(
        #[inline(always)]
        || {
            let rows = x.chunks_exact(2 * cols).zip(d.chunks_exact(cols));
            for ((x, d), d_x) in rows.zip(d_x.chunks_exact_mut(2 * cols)) {
                let (a, b) = x.split_at(cols);
                let (d_a, d_b) = d_x.split_at_mut(cols);
                for c in 0..cols {
                    let (input, one) = (a[c], d[c]);
                    d_a[c] = one * b[c] * F::derivative(input);
                    d_b[c] = one * F::value(input);
                }
            }
        },
    );
}
