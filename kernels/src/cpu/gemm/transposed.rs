//! `c = a·b` as `cᵀ = bᵀ·aᵀ`, which reads a transposed `b`, such as the weight of a linear layer, in its own order. The crate's
//! kernels pack such an operand slowly, above all where rows in memory are a power of two apart: measured on Zen 5 for
//! 128 x 1024 x 1024, 103 GFLOP/s against 255.

use std::cell::Cell;

use super::matrix::{Block, Mat, Product};
use super::split::by_threads;
use crate::cpu::float::Float;
use crate::cpu::threads::SharedMut;
use crate::cpu::transpose::{transpose, transpose_then};

/// Whether it is faster, both transpositions included: from 8 rows on, if they are few next to the columns. For 8 rows of 1024
/// x 1024 on Zen 5 it is 70 GFLOP/s against 10.
pub(super) fn is_faster<T>(a: &Mat<'_, T>, b: &Mat<'_, T>) -> bool {
    reads_in_order(a, b) && a.rows >= 8 && 2 * a.rows <= b.cols
}

/// Whether it is faster where work follows on each part of `c`, which is in cache after the second transposition. Measured on
/// Zen 5: 128 x 1024 -> 10 takes 37 µs direct and 45 µs transposed; 32 x 128 -> 10 takes 1.9 and 1.1.
pub(super) fn is_faster_with_work<T>(a: &Mat<'_, T>, b: &Mat<'_, T>) -> bool {
    reads_in_order(a, b) && (b.cols > 16 || a.rows * a.cols < 1 << 16)
}

fn reads_in_order<T>(a: &Mat<'_, T>, b: &Mat<'_, T>) -> bool {
    let is_whole = a.col_stride == 1 && a.row_stride == a.cols;
    is_whole && b.row_stride == 1 && b.col_stride == b.rows
}

/// Bytes of both transposes at which rows are computed in several blocks, and the least rows of a block: the other matrix is packed
/// for each.
const MAX_SCRATCH: usize = 8 << 20;
const MIN_ROWS: usize = 1024;

/// Computes `c = a·b`, then calls `then` with each part of `c`.
///
/// Takes memory of its own for the transposes of [`MIN_ROWS`] rows or of [`MAX_SCRATCH`], whichever is more.
pub(super) fn compute<T: Float>(
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    then: impl Fn(Block<'_, T>) + Sync,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    if m <= MIN_ROWS {
        return compute_rows(a, b, c, 0, &then);
    }
    let most = (MAX_SCRATCH / ((k + n) * size_of::<T>())).max(MIN_ROWS);
    let block = m.div_ceil(m.div_ceil(most));
    for first_row in (0..m).step_by(block) {
        let rows = first_row..m.min(first_row + block);
        compute_rows(a.part_of_rows(rows.clone()), b, &mut c[rows.start * n..rows.end * n], first_row, &then);
    }
}

/// The same for the rows of `c` from `first_row` of the whole matrix on.
fn compute_rows<T: Float>(
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    first_row: usize,
    then: &(impl Fn(Block<'_, T>) + Sync),
) {
    thread_local! {
        /// Memory for both transposes, kept between calls. While this thread waits for others, it may compute another product, which
        /// finds none.
        static SCRATCH: Cell<Vec<f64>> = const { Cell::new(Vec::new()) };
    }
    let (m, n, k) = (a.rows, b.cols, a.cols);
    let mut scratch = SCRATCH.take();
    let n_f64 = (m * (k + n) * size_of::<T>()).div_ceil(size_of::<f64>());
    if scratch.len() < n_f64 {
        scratch.resize(n_f64, 0.0);
    }
    let (a_t, rest) = bytemuck::cast_slice_mut::<f64, T>(&mut scratch).split_at_mut(m * k);
    let c_t = &mut rest[..m * n];
    transpose(&a.data[..m * k], m, k, a_t);
    let product = Product { alpha: T::ONE, a: b.t(), b: Mat::new(a_t, k, m), beta: T::ZERO };
    by_threads(product, c_t, &|_| {});
    transpose_then(c_t, n, m, c, |row, first, part| {
        let row = first_row + row;
        let (rows, cols) = (row..row + 1, first..first + part.len());
        let whole = part.as_mut_ptr().wrapping_sub(row * n + first);
        // SAFETY: `part` is this row and these columns of `c`, and is borrowed here alone.
        then(unsafe { Block::new(SharedMut::from_ptr(whole), n, rows, cols) });
    });
    SCRATCH.set(scratch);
}
