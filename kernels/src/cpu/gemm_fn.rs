//! The type of the kernels of `gemm-f32` and `gemm-f64`.

use gemm_common::Parallelism;

/// A kernel of `gemm-f32` or `gemm-f64`: `dst = alpha·dst + beta·lhs·rhs` for matrices given by pointer and strides.
///
/// Arguments: rows, columns and inner length; `dst` with its column and row strides and whether it is read; `lhs`, then `rhs`
/// with their column and row strides; `alpha`, `beta`; three flags for complex conjugation; threads.
pub(crate) type GemmFn<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);
