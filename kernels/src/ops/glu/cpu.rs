//! Row by row; threads share the rows.

use super::Gate;
use crate::cpu::Stored;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::ops::activation::cpu::{Function, Gelu, Relu, Silu};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;

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
        // SAFETY: these rows lie within `y` and are this thread's alone.
        let y = unsafe { y.slice(part.start * cols..part.end * cols) };
        let x = &x[2 * part.start * cols..2 * part.end * cols];
        vectorize(
            #[inline(always)]
            || {
                for (x, y) in x.chunks_exact(2 * cols).zip(y.chunks_exact_mut(cols)) {
                    let (a, b) = x.split_at(cols);
                    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                        *y = T::store(F::value(a.load()) * b.load());
                    }
                }
            },
        );
    });
}

fn backward_as<T: Stored, F: Function>(x: &[T], d: &[T], d_x: &mut [T], cols: usize) {
    if cols == 0 {
        return;
    }
    let rows = d.len() / cols;
    let d_x = SharedMut::new(d_x);
    for_parts(rows, MIN_PART / cols, 1, |part| {
        // SAFETY: these rows lie within `d_x` and are this thread's alone.
        let d_x = unsafe { d_x.slice(2 * part.start * cols..2 * part.end * cols) };
        let x = &x[2 * part.start * cols..2 * part.end * cols];
        let d = &d[part.start * cols..part.end * cols];
        vectorize(
            #[inline(always)]
            || {
                let rows = x.chunks_exact(2 * cols).zip(d.chunks_exact(cols));
                for ((x, d), d_x) in rows.zip(d_x.chunks_exact_mut(2 * cols)) {
                    let (a, b) = x.split_at(cols);
                    let (d_a, d_b) = d_x.split_at_mut(cols);
                    for c in 0..cols {
                        let (input, one) = (a[c].load(), d[c].load());
                        d_a[c] = T::store(one * b[c].load() * F::derivative(input));
                        d_b[c] = T::store(one * F::value(input));
                    }
                }
            },
        );
    });
}
