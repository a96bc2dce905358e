//! Transposition in blocks that stay in the first-level cache.

use super::simd::vectorize;
use super::threads::{SharedMut, for_parts};
use crate::Element;

/// Side of a block: 16 f32 are one cache line and one AVX-512 register.
const BLOCK: usize = 16;
/// Elements from which a second thread is worth it.
const MIN_PART: usize = 1 << 16;

/// `out[j, i], second[j, i] = f(i, x[i, j])` for the row-major `x: [rows, cols]`; `out` and `second`, if there is
/// one, are `[cols, rows]`.
#[inline(always)]
pub(crate) fn transpose_map_pair<T: Element>(
    x: &[T],
    rows: usize,
    cols: usize,
    out: &mut [T],
    second: Option<&mut [T]>,
    f: impl Fn(usize, T) -> (T, T) + Sync + Copy,
) {
    assert!(x.len() == rows * cols && out.len() == rows * cols);
    assert!(second.as_ref().is_none_or(|s| s.len() == rows * cols));
    let (out, second) = (SharedMut::new(out), second.map(SharedMut::new));
    for_parts(rows, MIN_PART / cols.max(1), BLOCK, |part| {
        vectorize(
            #[inline(always)]
            || {
                let full = |n| n == BLOCK;
                for i0 in part.clone().step_by(BLOCK) {
                    let n_i = BLOCK.min(part.end - i0);
                    for j0 in (0..cols).step_by(BLOCK) {
                        let n_j = BLOCK.min(cols - j0);
                        // Whole blocks have constant bounds, so that the compiler keeps them in registers.
                        let (a, b) = if full(n_i) && full(n_j) {
                            load_block(x, cols, i0, j0, BLOCK, BLOCK, f)
                        } else {
                            load_block(x, cols, i0, j0, n_i, n_j, f)
                        };
                        for j in 0..n_j {
                            let start = (j0 + j) * rows + i0;
                            // SAFETY: row j0 + j < cols of `out`, columns of this thread's part alone.
                            unsafe { out.slice(start..start + n_i) }.copy_from_slice(&a[j][..n_i]);
                            if let Some(second) = second {
                                // SAFETY: as above.
                                unsafe { second.slice(start..start + n_i) }
                                    .copy_from_slice(&b[j][..n_i]);
                            }
                        }
                    }
                }
            },
        )
    });
}

type Block<T> = [[T; BLOCK]; BLOCK];

/// Both results of `f` on the block of `n_i` rows and `n_j` columns at `(i0, j0)`, transposed.
#[inline(always)]
fn load_block<T: Element>(
    x: &[T],
    cols: usize,
    i0: usize,
    j0: usize,
    n_i: usize,
    n_j: usize,
    f: impl Fn(usize, T) -> (T, T),
) -> (Block<T>, Block<T>) {
    let (mut a, mut b) = ([[T::ZERO; BLOCK]; BLOCK], [[T::ZERO; BLOCK]; BLOCK]);
    for i in 0..n_i {
        let row = &x[(i0 + i) * cols + j0..][..n_j];
        for j in 0..n_j {
            (a[j][i], b[j][i]) = f(i0 + i, row[j]);
        }
    }
    (a, b)
}

/// `out = xᵀ` for the row-major `x: [rows, cols]`.
pub(crate) fn transpose<T: Element>(x: &[T], rows: usize, cols: usize, out: &mut [T]) {
    transpose_map_pair(
        x,
        rows,
        cols,
        out,
        None,
        #[inline(always)]
        |_, v| (v, v),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_lands_in_its_place() {
        for (rows, cols) in [(1, 1), (16, 16), (17, 33), (5, 100), (128, 10), (0, 4)] {
            let x: Vec<f32> = (0..rows * cols).map(|v| v as f32).collect();
            let mut out = vec![-1.0; rows * cols];
            transpose(&x, rows, cols, &mut out);
            for i in 0..rows {
                for j in 0..cols {
                    assert_eq!(out[j * rows + i], x[i * cols + j]);
                }
            }
        }
    }
}
