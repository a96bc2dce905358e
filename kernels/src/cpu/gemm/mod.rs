//! Matrix multiplication (GEMM), split over the compute threads.
//!
//! Where AVX2 has the widest vectors of the processor, products of many rows and columns are computed by [`tiled`]; the crates
//! `gemm-f32` and `gemm-f64` compute all others ([`library`]), some of them through their transposes ([`transposed`]).

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

#[cfg(test)]
mod tests;

pub(crate) use matrix::{Block, Mat};

use super::float::Float;
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

/// Whether there are no terms to sum or no sums, in which case `c` is complete. Checks the sizes.
fn has_no_terms<T: Float>(product: &Product<'_, T>, c: &mut [T]) -> bool {
    let Product { a, b, beta, .. } = *product;
    assert!(a.cols == b.rows && c.len() == a.rows * b.cols && a.fits() && b.fits());
    if a.cols == 0 {
        c.iter_mut().for_each(|c| *c = if beta == T::ZERO { T::ZERO } else { beta * *c });
    }
    a.cols == 0 || c.is_empty()
}
