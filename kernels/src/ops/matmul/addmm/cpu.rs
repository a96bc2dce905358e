//! GEMM of the crates `gemm-f32` and `gemm-f64`, split over the compute threads.

use crate::cpu::Float;
use crate::cpu::gemm::{Mat, gemm};

pub(super) fn addmm<T: Float>(alpha: T, a: Mat<'_, T>, b: Mat<'_, T>, beta: T, c: &mut [T]) {
    gemm(alpha, a, b, beta, c);
}
