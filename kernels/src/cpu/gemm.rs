//! Matrix multiplication (GEMM): a safe function over the crates `gemm-f32` and `gemm-f64`, split over the compute threads.

use gemm_common::Parallelism;

use super::float::Float;
use super::threads::{SharedMut, for_parts};

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

    fn fits(&self) -> bool {
        self.rows == 0
            || self.cols == 0
            || (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride < self.data.len()
    }
}

/// FLOP per thread below which one thread is faster than two: waking a thread takes about 5 µs.
const MIN_FLOP_PER_THREAD: usize = 1 << 20;

/// Computes `c = alpha·a·b + beta·c`, with `c` row-major `[a.rows, b.cols]`. With `beta = 0`, `c` is not read.
///
/// Each element of `c` is summed in the same order for any number of threads.
pub(crate) fn gemm<T: Float>(alpha: T, a: Mat<'_, T>, b: Mat<'_, T>, beta: T, c: &mut [T]) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert!(a.cols == b.rows && c.len() == m * n && a.fits() && b.fits());
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        // The sum over no terms is 0.
        return c.iter_mut().for_each(|c| *c = if beta == T::ZERO { T::ZERO } else { beta * *c });
    }
    let c = SharedMut::new(c);
    let flop_per_row_or_col = 2 * k * m.min(n);
    let min_part = (MIN_FLOP_PER_THREAD / flop_per_row_or_col.max(1)).max(16);
    // Split along the longer side: each thread then packs less of the operand that all of them need.
    if n >= m {
        for_parts(n, min_part, 48, |cols| {
            let b_part = Mat { data: &b.data[cols.start * b.col_stride..], cols: cols.len(), ..b };
            // SAFETY: `cols.start < n`.
            let c = unsafe { c.add(cols.start) };
            // SAFETY: the part is the columns `cols` of `c`, which no other part touches.
            unsafe { gemm_part(alpha, a, b_part, beta, c, n) }
        });
    } else {
        for_parts(m, min_part, 48, |rows| {
            let a_part = Mat { data: &a.data[rows.start * a.row_stride..], rows: rows.len(), ..a };
            // SAFETY: `rows.start < m`.
            let c = unsafe { c.add(rows.start * n) };
            // SAFETY: the part is the rows `rows` of `c`, which no other part touches.
            unsafe { gemm_part(alpha, a_part, b, beta, c, n) }
        });
    }
}

/// Computes `alpha·a·b + beta·c` into the row-major matrix at `c` whose rows are `c_stride` apart.
///
/// # Safety
/// `a` and `b` fit their slices, and `c` points to `a.rows` rows of `b.cols` elements that are the caller's alone.
unsafe fn gemm_part<T: Float>(alpha: T, a: Mat<'_, T>, b: Mat<'_, T>, beta: T, c: *mut T, c_stride: usize) {
    // The kernels write whole columns, so a row-major `c` is computed as its transpose: cᵀ = bᵀ·aᵀ.
    let (lhs, rhs, c_col_stride, c_row_stride) =
        if c_stride > 1 { (b.t(), a.t(), c_stride, 1) } else { (a, b, 1, c_stride) };
    let stride = |s: usize| s as isize;
    // SAFETY: pointers and strides describe matrices that the caller vouches for; all strides are positive or 0.
    unsafe {
        T::gemm_fn()(
            lhs.rows,
            rhs.cols,
            lhs.cols,
            c,
            stride(c_col_stride),
            stride(c_row_stride),
            beta != T::ZERO,
            lhs.data.as_ptr(),
            stride(lhs.col_stride),
            stride(lhs.row_stride),
            rhs.data.as_ptr(),
            stride(rhs.col_stride),
            stride(rhs.row_stride),
            beta,
            alpha,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
