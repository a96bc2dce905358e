//! Products in tiles of vector registers: 6 rows by 2 registers of columns, whose sums stay in registers over a block of terms.
//!
//! The order of the loops, from outside in: columns whose terms fit the L3 cache; terms; rows of `a` that fit the L2 cache; panels
//! of columns of `b` that fit the L1 cache; tiles. Both operands are copied into the order in which tiles read them, `b` panel by
//! panel when first used. Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008; BLIS.
//!
//! An element of `c` is summed in the order of its terms, in blocks whose length depends on the number of terms alone: no bit
//! depends on which tile, part or thread computes it.

use std::cell::RefCell;

use super::matrix::{Block, Mat, Product, Then, steps};
use super::panels::{copy_cols, copy_rows};
use super::tile::{ROWS, Write, cols, strip};
use crate::cpu::float::Float;
use crate::cpu::simd::Avx2;
use crate::cpu::transpose;

/// Longest block of terms: a panel of `b` of 24 KiB.
const MAX_TERMS: usize = 384;
/// Bytes of `a` at a time.
const A_BYTES: usize = 200 << 10;
/// Bytes of `b` at a time if they are read more than once.
const B_BYTES: usize = 1536 << 10;
/// Columns of `c` at a time if each panel of `b` is read once.
const MAX_COLS: usize = 4096;

/// Whether a product is faster here than by the crate, which reads operands in place: that is better where few rows or columns use
/// what is copied, and where terms are few. A transposed `b` is slow there. Measured on Zen 3 with sides of 1 to 4096.
pub(super) fn is_faster<T>(a: &Mat<'_, T>, b: &Mat<'_, T>) -> bool {
    let (side, terms) = (a.rows.min(b.cols), a.cols);
    let is_large = if b.col_stride == 1 {
        side >= 48 && terms >= 48
    } else {
        side >= 24 && a.rows * b.cols * terms >= 1 << 20
    };
    is_large && Avx2::as_widest().is_some()
}

/// Computes the product into `c`, and calls `then` once with each finished part.
///
/// # Panics
/// Without AVX2, which [`is_faster`] asks for.
pub(super) fn compute<T: Float>(product: Product<'_, T>, mut c: Block<'_, T>, then: Then<'_, T>) {
    let avx2 = Avx2::as_widest().expect("AVX2");
    let Product { alpha, a, b, beta } = product;
    let at_once = AtOnce::new::<T>(a.rows, b.cols, a.cols);
    let panel_len = cols::<T>() * at_once.terms;
    with_scratch(at_once.a_len(), at_once.panels * panel_len, |a_copy, b_copy| {
        for n in steps(0..b.cols, at_once.cols) {
            for k in steps(0..a.cols, at_once.terms) {
                let write = Write::new(alpha, if k.start == 0 { beta } else { T::ONE });
                for m in steps(0..a.rows, at_once.rows) {
                    let a_part = a.part_of_rows(m.clone()).part_of_cols(k.clone());
                    avx2.run(
                        #[inline(always)]
                        || copy_rows(a_part, a_copy),
                    );
                    for (i, panel) in steps(n.clone(), cols::<T>()).enumerate() {
                        let b_copy = &mut b_copy[i % at_once.panels * panel_len..][..k.len() * cols::<T>()];
                        if m.start == 0 {
                            let b_part = b.part_of_rows(k.clone()).part_of_cols(panel.clone());
                            avx2.run(
                                #[inline(always)]
                                || copy_cols(b_part, b_copy),
                            );
                        }
                        strip(avx2, write, k.len(), a_copy, b_copy, c.part(m.clone(), panel.clone()));
                        if k.end == a.cols {
                            then(c.part(m.clone(), panel));
                        }
                    }
                }
            }
        }
    });
}

/// Terms, rows of `a` and columns of `b` that each loop takes at a time.
struct AtOnce {
    terms: usize,
    rows: usize,
    cols: usize,
    /// Panels of `b` whose copies are kept.
    panels: usize,
}

impl AtOnce {
    fn new<T: Float>(m: usize, n: usize, k: usize) -> Self {
        let terms = k.div_ceil(k.div_ceil(MAX_TERMS)).next_multiple_of(transpose::BLOCK);
        let rows = (A_BYTES / size_of::<T>() / terms).next_multiple_of(ROWS);
        if rows >= m {
            // With all rows at hand, a panel is copied, read once, and makes room for the next.
            return AtOnce { terms, rows: m, cols: MAX_COLS, panels: 1 };
        }
        let panels = (B_BYTES / size_of::<T>() / terms / cols::<T>()).clamp(1, n.div_ceil(cols::<T>()));
        AtOnce { terms, rows, cols: panels * cols::<T>(), panels }
    }

    /// Elements of a copy of `a`, and those that its last block of rows may write past them.
    fn a_len(&self) -> usize {
        self.rows * self.terms + transpose::BLOCK
    }
}

/// Calls `f` with memory for copies of parts of `a` and `b`, of this many elements, which begin at cache lines.
fn with_scratch<T: Float>(a_len: usize, b_len: usize, f: impl FnOnce(&mut [T], &mut [T])) {
    thread_local! {
        /// Kept between calls.
        static SCRATCH: RefCell<Vec<f64>> = const { RefCell::new(Vec::new()) };
    }
    const LINE: usize = 64;
    let line = LINE / size_of::<T>();
    let a_len = a_len.next_multiple_of(line);
    SCRATCH.with_borrow_mut(|scratch| {
        let needed = ((a_len + b_len + line) * size_of::<T>()).div_ceil(size_of::<f64>());
        if scratch.len() < needed {
            *scratch = vec![0.0; needed];
        }
        let start = scratch.as_ptr().align_offset(LINE).min(LINE / size_of::<f64>());
        let (a, b) = bytemuck::cast_slice_mut::<f64, T>(&mut scratch[start..]).split_at_mut(a_len);
        f(a, b);
    });
}
