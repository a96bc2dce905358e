//! Copies of the operands in the order in which tiles read them.

use super::matrix::Mat;
use super::tile::{ROWS, cols};
use crate::cpu::float::Float;
use crate::cpu::transpose::{self, is_in_registers};

/// Copies `a` in groups of [`ROWS`] rows, of which the last can be smaller: for each term, the elements of the rows.
#[inline(always)]
pub(super) fn copy_rows<T: Float>(a: Mat<'_, T>, to: &mut [T]) {
    for row in (0..a.rows).step_by(ROWS) {
        let rest = a.part_of_rows(row..a.rows);
        let n_rows = rest.rows.min(ROWS);
        let to = &mut to[row * a.cols..];
        if rest.row_stride == 1 && n_rows == ROWS {
            copy_terms::<T, ROWS>(rest, to);
        } else {
            // Rows of the next group too, if there are any, so that blocks are whole: the next group overwrites them.
            interleave(rest.part_of_rows(0..rest.rows.min(transpose::BLOCK)), n_rows, to);
        }
    }
}

/// Copies the columns of `b`, at most as many as a tile has: for each term, the elements of the columns, then zeros.
#[inline(always)]
pub(super) fn copy_cols<T: Float>(b: Mat<'_, T>, to: &mut [T]) {
    let b = b.t();
    if b.rows < cols::<T>() {
        to.fill(T::ZERO);
    }
    match (b.row_stride, b.rows) {
        (1, 16) => copy_terms::<T, 16>(b, to),
        (1, 8) if cols::<T>() == 8 => copy_terms::<T, 8>(b, to),
        _ => interleave(b, cols::<T>(), to),
    }
}

/// Copies the first `N` rows, which are adjacent in memory: for each column, the elements of the rows.
#[inline(always)]
fn copy_terms<T: Float, const N: usize>(from: Mat<'_, T>, to: &mut [T]) {
    for (term, to) in to.chunks_exact_mut(N).take(from.cols).enumerate() {
        to.copy_from_slice(&from.data[term * from.col_stride..][..N]);
    }
}

/// Writes for each column the elements of the rows; from one column to the next it is `width` elements, which may be fewer than the
/// rows: then each column overwrites what is too much of the one before.
#[inline(always)]
fn interleave<T: Float>(from: Mat<'_, T>, width: usize, to: &mut [T]) {
    if from.col_stride != 1 {
        for (col, to) in to.chunks_exact_mut(width).take(from.cols).enumerate() {
            for (row, to) in to.iter_mut().enumerate().take(from.rows) {
                *to = from.data[row * from.row_stride + col * from.col_stride];
            }
        }
        return;
    }
    const SIDE: usize = transpose::BLOCK;
    assert!(from.fits() && (from.cols == 0 || (from.cols - 1) * width + from.rows.max(width) <= to.len()));
    let in_registers = is_in_registers::<T>();
    for col in (0..from.cols).step_by(SIDE) {
        for row in (0..from.rows).step_by(SIDE) {
            let (n_rows, n_cols) = (SIDE.min(from.rows - row), SIDE.min(from.cols - col));
            let source = from.data[row * from.row_stride + col..].as_ptr();
            let place = to[col * width + row..].as_mut_ptr();
            // SAFETY: `from` has these rows and columns; in `to` the last column begins at `(cols - 1) * width` and has `rows` elements.
            unsafe { transpose::block(in_registers, source, from.row_stride, place, width, n_rows, n_cols) };
        }
    }
}
