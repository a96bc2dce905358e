//! A product in parts, one per thread.

use super::library;
use super::matrix::{Block, Product, Then};
#[cfg(target_arch = "x86_64")]
use super::tiled;
use crate::cpu::float::Float;
use crate::cpu::threads::{SharedMut, current, for_parts};

/// FLOP per thread below which one thread is faster than two: waking a thread takes about 5 µs.
const MIN_FLOP_PER_THREAD: usize = 1 << 20;

/// Computes the product into the row-major `c` in one part per thread, and calls `then` once with each finished part.
pub(super) fn by_threads<T: Float>(product: Product<'_, T>, c: &mut [T], then: Then<'_, T>) {
    let Product { a, b, .. } = product;
    let (m, n, k) = (a.rows, b.cols, a.cols);
    let c = SharedMut::new(c);
    let is_tiled = is_tiled(&product);
    // The longer side is split: each thread then packs less of the operand that all of them need.
    let (len, side, by_cols) = (m.max(n), m.min(n), n >= m);
    let least = (library::MAX_SMALL / side + 1).max(16);
    let min_part = (MIN_FLOP_PER_THREAD / (2 * k * side)).max(least);
    // Whole vectors, and of long sides also whole tiles; a short side would be split unevenly by these.
    let align = if len < 192 { 16 } else { 48 };
    let part = len.div_ceil(current().min(len / min_part).max(1)).next_multiple_of(align);
    // A rest that is too short joins the part before.
    let n_parts = len.saturating_sub(least) / part + 1;
    let terms = library::terms_at_once(m, n, k);
    for_parts(n_parts, 1, 1, |parts| {
        let part = parts.start * part..if parts.end == n_parts { len } else { parts.end * part };
        let (rows, cols) = if by_cols { (0..m, part) } else { (part, 0..n) };
        let product = Product { a: a.part_of_rows(rows.clone()), b: b.part_of_cols(cols.clone()), ..product };
        // SAFETY: within `c`, which is borrowed, and no other part has these rows and columns.
        let mut c = unsafe { Block::new(c, n, rows, cols) };
        if is_tiled {
            #[cfg(target_arch = "x86_64")]
            tiled::compute(product, c, then);
        } else {
            library::compute(product, terms, &mut c);
            then(c);
        }
    });
}

/// Whether `tiled` computes the product: decided for the whole of it, so that no bit depends on the number of threads.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_tiled<T: Float>(product: &Product<'_, T>) -> bool {
    tiled::is_faster(&product.a, &product.b)
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_tiled<T: Float>(_product: &Product<'_, T>) -> bool {
    false
}
