//! Products by the kernels of the crates `gemm-f32` and `gemm-f64`.

use gemm_common::Parallelism;

use super::matrix::{Block, Product};
use crate::cpu::float::Float;

/// Computes `c = alpha·a·b + beta·c` for the part `c` of a row-major matrix.
pub(super) fn compute<T: Float>(product: Product<'_, T>, c: &mut Block<'_, T>) {
    let Product { alpha, a, b, beta } = product;
    let (c, c_stride) = c.as_mut_ptr();
    // The kernels write whole columns, so a row-major `c` is computed as its transpose: cᵀ = bᵀ·aᵀ.
    let (lhs, rhs, c_col_stride, c_row_stride) =
        if c_stride > 1 { (b.t(), a.t(), c_stride, 1) } else { (a, b, 1, c_stride) };
    let stride = |s: usize| s as isize;
    // SAFETY: the matrices fit their slices, as `gemm` checks, and `c` is a part of its own; all strides are positive or 0.
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
