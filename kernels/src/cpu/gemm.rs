//! Matrix multiplication (GEMM): a safe function over the crates `gemm-f32` and `gemm-f64`, split over the compute threads.

use std::cell::RefCell;

use gemm_common::Parallelism;

use super::float::Float;
use super::threads::{SharedMut, for_parts};
use super::transpose::transpose;

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
    if alpha == T::ONE && beta == T::ZERO && is_faster_transposed(&a, &b) {
        return gemm_transposed(a, b, c);
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

/// Whether `b` is the transpose of a wide matrix in memory, such as the weight of a linear layer, and `a` has few rows. The
/// library packs such an operand slowly where the rows in memory are a power of two apart: measured on Zen 5 for
/// 128 x 1024 x 1024, 103 GFLOP/s against 255, and for 8 rows 10 against 70. Below 8 rows two transpositions cost more.
fn is_faster_transposed<T>(a: &Mat<'_, T>, b: &Mat<'_, T>) -> bool {
    let is_whole = a.col_stride == 1 && a.row_stride == a.cols;
    let is_narrow = a.rows >= 8 && 2 * a.rows <= b.cols;
    is_narrow && is_whole && b.row_stride == 1 && b.col_stride == b.rows
}

/// Computes `c = a·b` as `cᵀ = bᵀ·aᵀ`, which reads `bᵀ` in its own order.
fn gemm_transposed<T: Float>(a: Mat<'_, T>, b: Mat<'_, T>, c: &mut [T]) {
    thread_local! {
        /// Memory for both transposes, kept between calls.
        static SCRATCH: RefCell<Vec<f64>> = const { RefCell::new(Vec::new()) };
    }
    let (m, n, k) = (a.rows, b.cols, a.cols);
    SCRATCH.with_borrow_mut(|scratch| {
        let n_f64 = (m * (k + n) * size_of::<T>()).div_ceil(size_of::<f64>());
        if scratch.len() < n_f64 {
            scratch.resize(n_f64, 0.0);
        }
        let (a_t, rest) = bytemuck::cast_slice_mut::<f64, T>(scratch).split_at_mut(m * k);
        let c_t = &mut rest[..m * n];
        transpose(a.data, m, k, a_t);
        gemm(T::ONE, b.t(), Mat::new(a_t, k, m), T::ZERO, c_t);
        transpose(c_t, n, m, c);
    });
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
