//! Transposition in panels that stay in the L1 cache, with a hook for more work on each panel while it is there.

use super::threads::{SharedMut, for_parts};
use crate::{DType, Element};

/// Side of the blocks that are transposed in registers: 8 f32 are half a cache line and one AVX register.
pub(crate) const BLOCK: usize = 8;
/// Columns of the output per panel: 8 rows of them take 8 KiB.
const PANEL: usize = 256;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 16;

/// `out = xᵀ` for the row-major `x: [rows, cols]`.
pub(crate) fn transpose<T: Element>(x: &[T], rows: usize, cols: usize, out: &mut [T]) {
    transpose_then(x, rows, cols, out, |_, _, _| {});
}

/// `out = xᵀ` for the row-major `x: [rows, cols]`, then `f(j, i0, part)` on each part of row `j` of `out` that begins at
/// column `i0`, while it is still in cache.
#[inline(always)]
pub(crate) fn transpose_then<T: Element>(
    x: &[T],
    rows: usize,
    cols: usize,
    out: &mut [T],
    f: impl Fn(usize, usize, &mut [T]) + Sync,
) {
    assert!(x.len() == rows * cols && out.len() == rows * cols);
    let in_registers = is_in_registers::<T>();
    let out = SharedMut::new(out);
    for_parts(rows, MIN_PART / cols.max(1), PANEL, |part| {
        for i0 in part.clone().step_by(PANEL) {
            let i_end = (i0 + PANEL).min(part.end);
            for j0 in (0..cols).step_by(BLOCK) {
                let j_end = (j0 + BLOCK).min(cols);
                for i in (i0..i_end).step_by(BLOCK) {
                    let (n_i, n_j) = (BLOCK.min(i_end - i), j_end - j0);
                    let from = x[i * cols + j0..].as_ptr();
                    let to = out.element(j0 * rows + i);
                    // SAFETY: the block lies within `x` and `out`; its columns of `out` are this thread's alone.
                    unsafe { block(in_registers, from, cols, to, rows, n_i, n_j) };
                }
                for j in j0..j_end {
                    // SAFETY: row j < cols of `out`, columns of this thread's part alone.
                    f(j, i0, unsafe { out.slice(j * rows + i0..j * rows + i_end) });
                }
            }
        }
    });
}

/// Writes columns, `[n_columns, n]`, as rows, `[n, n_columns]`, on this thread alone.
///
/// # Panics
/// If both have other numbers of elements, or these are no whole columns.
pub fn columns_to_rows(columns: &[f32], n_columns: usize, rows: &mut [f32]) {
    let n = columns.len() / n_columns.max(1);
    assert!(columns.len() == n * n_columns && rows.len() == columns.len(), "whole columns");
    let in_registers = is_in_registers::<f32>();
    for row in (0..n).step_by(BLOCK) {
        for column in (0..n_columns).step_by(BLOCK) {
            let (n_i, n_j) = (BLOCK.min(n_columns - column), BLOCK.min(n - row));
            let from = columns[column * n + row..].as_ptr();
            let to = rows[row * n_columns + column..].as_mut_ptr();
            // SAFETY: both blocks lie within the slices, of which this thread has `rows` alone.
            unsafe { block(in_registers, from, n, to, n_columns, n_i, n_j) };
        }
    }
}

/// Whether [`block`] can transpose whole blocks of this type in vector registers.
pub(crate) fn is_in_registers<T: Element>() -> bool {
    #[cfg(target_arch = "x86_64")]
    return T::DTYPE == DType::F32 && std::is_x86_feature_detected!("avx");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Transposes the `n_i` rows and `n_j` columns at `from`, whose rows are `from_stride` apart, to `to`, in vector registers if
/// `in_registers` and the block is a whole one. Rows are written in their order.
///
/// # Safety
/// Both blocks are within their matrices, and nothing else uses the one at `to`; `in_registers` only if [`is_in_registers`].
#[inline(always)]
pub(crate) unsafe fn block<T: Element>(
    in_registers: bool,
    from: *const T,
    from_stride: usize,
    to: *mut T,
    to_stride: usize,
    n_i: usize,
    n_j: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if in_registers && (n_i, n_j) == (BLOCK, BLOCK) {
        // SAFETY: `T` is f32 and the processor has AVX; a whole block, as the caller guarantees.
        return unsafe { avx_block(from.cast(), from_stride, to.cast(), to_stride) };
    }
    let _ = in_registers;
    for j in 0..n_j {
        for i in 0..n_i {
            // SAFETY: within the block at `from`.
            let source = unsafe { from.add(i * from_stride + j) };
            // SAFETY: as above.
            let value = unsafe { source.read() };
            // SAFETY: within the block at `to`.
            let place = unsafe { to.add(j * to_stride + i) };
            // SAFETY: as above, and nothing else uses it.
            unsafe { place.write(value) };
        }
    }
}

/// 8 x 8 f32 in three rounds of shuffles: pairs of lanes, pairs of pairs, halves of registers.
///
/// # Safety
/// The processor has AVX; 8 rows of 8 elements at `from` and at `to` are within their matrices, and nothing else uses those at
/// `to`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[inline]
unsafe fn avx_block(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    use std::arch::x86_64::*;

    let row = |i: usize| {
        // SAFETY: row `i < 8` of the block.
        let row = unsafe { from.add(i * from_stride) };
        // SAFETY: eight elements of that row; no alignment is needed.
        unsafe { _mm256_loadu_ps(row) }
    };
    let [a, b, c, d, e, f, g, h] = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
    let (ab0, ab1) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let (cd0, cd1) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    let (ef0, ef1) = (_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f));
    let (gh0, gh1) = (_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h));
    const LOW: i32 = 0b01_00_01_00;
    const HIGH: i32 = 0b11_10_11_10;
    let (abcd0, abcd1) = (_mm256_shuffle_ps::<LOW>(ab0, cd0), _mm256_shuffle_ps::<HIGH>(ab0, cd0));
    let (abcd2, abcd3) = (_mm256_shuffle_ps::<LOW>(ab1, cd1), _mm256_shuffle_ps::<HIGH>(ab1, cd1));
    let (efgh0, efgh1) = (_mm256_shuffle_ps::<LOW>(ef0, gh0), _mm256_shuffle_ps::<HIGH>(ef0, gh0));
    let (efgh2, efgh3) = (_mm256_shuffle_ps::<LOW>(ef1, gh1), _mm256_shuffle_ps::<HIGH>(ef1, gh1));
    const LOWER_HALVES: i32 = 0x20;
    const UPPER_HALVES: i32 = 0x31;
    let columns = [
        _mm256_permute2f128_ps::<LOWER_HALVES>(abcd0, efgh0),
        _mm256_permute2f128_ps::<LOWER_HALVES>(abcd1, efgh1),
        _mm256_permute2f128_ps::<LOWER_HALVES>(abcd2, efgh2),
        _mm256_permute2f128_ps::<LOWER_HALVES>(abcd3, efgh3),
        _mm256_permute2f128_ps::<UPPER_HALVES>(abcd0, efgh0),
        _mm256_permute2f128_ps::<UPPER_HALVES>(abcd1, efgh1),
        _mm256_permute2f128_ps::<UPPER_HALVES>(abcd2, efgh2),
        _mm256_permute2f128_ps::<UPPER_HALVES>(abcd3, efgh3),
    ];
    for (j, column) in columns.into_iter().enumerate() {
        // SAFETY: row `j < 8` of the block at `to`.
        let place = unsafe { to.add(j * to_stride) };
        // SAFETY: eight elements of that row; no alignment is needed.
        unsafe { _mm256_storeu_ps(place, column) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element>(rows: usize, cols: usize) {
        let x: Vec<T> = (0..rows * cols).map(|v| T::from_f64(v as f64)).collect();
        let mut out = vec![T::from_f64(-1.0); rows * cols];
        transpose(&x, rows, cols, &mut out);
        for i in 0..rows {
            for j in 0..cols {
                assert_eq!(out[j * rows + i], x[i * cols + j]);
            }
        }
    }

    #[test]
    fn every_element_lands_in_its_place() {
        for (rows, cols) in [(1, 1), (8, 8), (16, 16), (17, 33), (5, 100), (128, 10), (300, 260), (0, 4)] {
            check::<f32>(rows, cols);
            check::<f64>(rows, cols);
        }
    }

    #[test]
    fn the_work_behind_sees_each_part_once_and_written() {
        let (rows, cols) = (600, 19);
        let x: Vec<f32> = (0..rows * cols).map(|v| v as f32).collect();
        let mut out = vec![f32::NAN; rows * cols];
        transpose_then(&x, rows, cols, &mut out, |j, i0, part| {
            for (i, v) in part.iter_mut().enumerate() {
                assert_eq!(*v, x[(i0 + i) * cols + j]);
                *v += 0.5;
            }
        });
        assert!((0..rows * cols).all(|e| out[e] == x[e % rows * cols + e / rows] + 0.5));
    }
}
