//! By the crate `gemm`, split over the threads of the rank.

use crate::cpu::Float;
use crate::cpu::gemm::{Mat, gemm};

pub(super) fn addmm<T: Float>(alpha: T, a: Mat<'_, T>, b: Mat<'_, T>, beta: T, c: &mut [T]) {
    gemm(alpha, a, b, beta, c);
}
