//! Matrix multiplication (GEMM), split over the compute threads.
//!
//! Where AVX2 has the widest vectors of the processor, products of many rows and columns are computed by [`tiled`]; the crates
//! `gemm-f32` and `gemm-f64` compute all others ([`library`]), some of them through their transposes ([`transposed`]). Products of bf16
//! are computed by the instructions of processors that have them ([`bf16_tiles`]), else as f32.

mod matrix;
mod library;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod panels;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod split;
mod transposed;
#[cfg(target_arch = "x86_64")]
mod bf16_tiles;

#[cfg(test)]
mod tests;

pub(crate) use matrix::{Block, Mat};

use half::bf16;

use super::float::Float;
#[cfg(target_arch = "x86_64")]
use super::simd::Bf16Unit;
use super::threads::SharedMut;
use matrix::Product;

/// Computes `c = alpha·a·b + beta·c`, with `c` row-major `[a.rows, b.cols]`. With `beta = 0`, `c` is not read.
///
/// Each element of `c` is summed in the same order for any number of threads.
pub(crate) fn gemm<T: Float>(alpha: T, a: Mat<'_, T>, b: Mat<'_, T>, beta: T, c: &mut [T]) {
    let product = Product { alpha, a, b, beta };
    if has_no_terms(&product, c) {
        return;
    }
    let is_plain = alpha == T::ONE && beta == T::ZERO;
    if is_plain && !split::is_tiled(&product) && transposed::is_faster(&a, &b) {
        transposed::compute(a, b, c, |_| {});
    } else {
        split::by_threads(product, c, &|_| {});
    }
}

/// Computes `c = a·b`, then calls `then` once with each part of `c`, while the part is in cache.
pub(crate) fn gemm_then<T: Float>(
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    then: impl Fn(Block<'_, T>) + Sync,
) {
    let product = Product { alpha: T::ONE, a, b, beta: T::ZERO };
    if has_no_terms(&product, c) {
        // SAFETY: the whole of `c`, which is borrowed.
        then(unsafe { Block::new(SharedMut::new(c), b.cols, 0..a.rows, 0..b.cols) });
    } else if !split::is_tiled(&product) && transposed::is_faster_with_work(&a, &b) {
        transposed::compute(a, b, c, then);
    } else {
        split::by_threads(product, c, &then);
    }
}

/// Whether the processor has instructions that multiply matrices of bf16.
pub(crate) fn multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Bf16Unit::get().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Calls `then` once with each part of `a·b`, with sums in f32, while the part is in cache.
///
/// # Panics
/// Unless the processor [multiplies bf16](multiplies_bf16).
pub(crate) fn gemm_bf16_then(a: Mat<'_, bf16>, b: Mat<'_, bf16>, then: impl Fn(Block<'_, f32>) + Sync) {
    #[cfg(target_arch = "x86_64")]
    Bf16Unit::get().expect("instructions for bf16").gemm_then(a, b, then);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{:?}", (a.data.len(), b.data.len(), std::any::type_name_of_val(&then)));
}

/// Whether there are no terms to sum or no sums, in which case `c` is complete. Checks the sizes.
fn has_no_terms<T: Float>(product: &Product<'_, T>, c: &mut [T]) -> bool {
    let Product { a, b, beta, .. } = *product;
    assert!(a.cols == b.rows && c.len() == a.rows * b.cols && a.fits() && b.fits());
    if a.cols == 0 {
        c.iter_mut().for_each(|c| *c = if beta == T::ZERO { T::ZERO } else { beta * *c });
    }
    a.cols == 0 || c.is_empty()
}
