//! Row by row; the columns are summed in the order of the rows.

use crate::cpu::Stored;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

pub(super) fn forward<T: Stored>(x: &[T], scale: &[T::Real], y: &mut [T]) {
    let cols = scale.len();
    if cols == 0 {
        return;
    }
    let rows = y.len() / cols;
    let y = SharedMut::new(y);
    for_parts(rows, MIN_PART.div_ceil(cols), 1, |part| {
        let range = part.start * cols..part.end * cols;
        // SAFETY: these rows lie within `y` and are this thread's alone.
        let y = unsafe { y.slice(range.clone()) };
        let x = &x[range];
        vectorize(
            #[inline(always)]
            || {
                for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
                    for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
                        *y = T::store(x.load() * scale);
                    }
                }
            },
        );
    });
}

pub(super) fn backward<T: Stored>(x: &[T], scale: &[T::Real], d: &mut [T], d_scale: &mut [T::Real]) {
    let cols = scale.len();
    if cols == 0 {
        return;
    }
    vectorize(
        #[inline(always)]
        || {
            for (x, d) in x.chunks_exact(cols).zip(d.chunks_exact_mut(cols)) {
                for (((d, &x), &scale), d_scale) in d.iter_mut().zip(x).zip(scale).zip(&mut *d_scale) {
                    let of_output = d.load();
                    *d_scale += of_output * x.load();
                    *d = T::store(of_output * scale);
                }
            }
        },
    );
}
