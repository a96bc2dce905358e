//! Operands and results of a matrix multiplication.

use std::marker::PhantomData;
use std::ops::Range;

use crate::cpu::threads::SharedMut;

/// A matrix in a slice: element `(i, j)` is `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a, T> {
    pub data: &'a [T],
    pub rows: usize,
    pub cols: usize,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<'a, T> Mat<'a, T> {
    /// Views a whole slice as a row-major matrix.
    pub(crate) fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        debug_assert_eq!(data.len(), rows * cols);
        Mat { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transpose: strides swapped, no data moved.
    pub(crate) fn t(self) -> Self {
        Mat {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// The transpose if `transpose`, else the matrix itself.
    pub(crate) fn transposed_if(self, transpose: bool) -> Self {
        if transpose { self.t() } else { self }
    }

    /// These rows, of which there is at least one.
    pub(super) fn part_of_rows(self, rows: Range<usize>) -> Self {
        Mat { data: &self.data[rows.start * self.row_stride..], rows: rows.len(), ..self }
    }

    /// These columns, of which there is at least one.
    pub(super) fn part_of_cols(self, cols: Range<usize>) -> Self {
        self.t().part_of_rows(cols).t()
    }

    /// Whether all elements lie in the slice.
    pub(super) fn fits(&self) -> bool {
        self.rows == 0
            || self.cols == 0
            || (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride < self.data.len()
    }
}

/// `alpha·a·b + beta·c`, for a `c` that is written.
#[derive(Clone, Copy)]
pub(super) struct Product<'a, T> {
    pub alpha: T,
    pub a: Mat<'a, T>,
    pub b: Mat<'a, T>,
    pub beta: T,
}

/// Rows and columns of a row-major matrix that one thread writes.
pub(crate) struct Block<'a, T> {
    /// Element `(0, 0)` of the whole matrix.
    data: SharedMut<T>,
    /// Columns of the whole matrix.
    stride: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    borrowed: PhantomData<&'a mut [T]>,
}

impl<T: Copy> Block<'_, T> {
    /// A part of the matrix at `data`, whose rows are `stride` elements apart.
    ///
    /// # Safety
    /// These elements are within the matrix, and nothing else uses them meanwhile.
    pub(super) unsafe fn new(
        data: SharedMut<T>,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Self {
        Block { data, stride, rows, cols, borrowed: PhantomData }
    }

    /// These of its rows and columns, counted from its first ones.
    pub(super) fn part(&mut self, rows: Range<usize>, cols: Range<usize>) -> Block<'_, T> {
        debug_assert!(rows.end <= self.rows.len() && cols.end <= self.cols.len());
        let of = |whole: &Range<usize>, part: Range<usize>| whole.start + part.start..whole.start + part.end;
        let (rows, cols) = (of(&self.rows, rows), of(&self.cols, cols));
        Block { data: self.data, stride: self.stride, rows, cols, borrowed: PhantomData }
    }

    /// Its rows and its columns in the whole matrix.
    pub(crate) fn rows_and_cols(&self) -> (Range<usize>, Range<usize>) {
        (self.rows.clone(), self.cols.clone())
    }

    /// Pointer to its first element, and elements between the starts of rows.
    pub(super) fn as_mut_ptr(&mut self) -> (*mut T, usize) {
        (self.data.element(self.rows.start * self.stride + self.cols.start), self.stride)
    }

    /// Its elements of row `row` of the whole matrix.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        debug_assert!(self.rows.contains(&row));
        let start = row * self.stride + self.cols.start;
        // SAFETY: a row and columns of the block, whose elements are its own.
        unsafe { self.data.slice(start..start + self.cols.len()) }
    }
}

/// Work on a finished part of a product.
pub(super) type Then<'a, T> = &'a (dyn Fn(Block<'_, T>) + Sync);

/// Consecutive parts of `range`, each but the last of `len`.
pub(super) fn steps(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |start| start..(start + len).min(range.end))
}
