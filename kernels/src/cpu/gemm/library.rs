//! Products by the kernels of the crates `gemm-f32` and `gemm-f64`.
//!
//! These choose the order of a sum by the rows and columns that they are given, and a thread gives them a part of these. So the
//! choice is made here for the whole product: [`terms_at_once`], and parts of more than [`MAX_SMALL`] elements.

use gemm_common::Parallelism;

use super::matrix::{Block, Product, steps};
use crate::cpu::float::Float;

/// Elements of a product up to which the kernels sum terms that lie next to each other lane by lane.
pub(super) const MAX_SMALL: usize = 256;
/// Rows and columns up to which the kernels sum the terms in blocks of [`MAX_TERMS`], rather than in even ones.
const MAX_UNEVEN: usize = 64;
/// Longest block of terms that the kernels never cut, whatever the caches.
const MAX_TERMS: usize = 512;

/// Terms to give the kernels at a time so that they sum each part of an `[m, n]` product of `k` terms alike: all of them where they do
/// so by themselves.
pub(super) fn terms_at_once(m: usize, n: usize, k: usize) -> usize {
    let cuts_alike = m.max(n) <= MAX_UNEVEN || m * n <= MAX_SMALL || m.min(n) == 1;
    if cuts_alike { k } else { k.div_ceil(k.div_ceil(MAX_TERMS)) }
}

/// Computes `c = alpha·a·b + beta·c` for the part `c` of a row-major matrix, with `terms` at a time.
pub(super) fn compute<T: Float>(product: Product<'_, T>, terms: usize, c: &mut Block<'_, T>) {
    let (c, c_stride) = c.as_mut_ptr();
    let stride = |s: usize| s as isize;
    for k in steps(0..product.a.cols, terms) {
        let beta = if k.start == 0 { product.beta } else { T::ONE };
        let (a, b) = (product.a.part_of_cols(k.clone()), product.b.part_of_rows(k));
        // The kernels write whole columns, so a row-major `c` is computed as its transpose: cᵀ = bᵀ·aᵀ.
        let (lhs, rhs, c_col_stride, c_row_stride) =
            if c_stride > 1 { (b.t(), a.t(), c_stride, 1) } else { (a, b, 1, c_stride) };
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
                product.alpha,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}
