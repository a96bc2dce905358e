//! GEMM of bf16 with sums in f32 by the instructions of processors that have them: AMX, which multiplies [`tiles`] in registers of their
//! own, or AVX512-BF16, which multiplies [`vectors`].
//!
//! Both operands are packed into tiles. Up to [`MAX_KEPT`] rows by [`MAX_TERMS`] terms of the shorter operand stay in the L2 cache; the
//! longer one is streamed in blocks of 32 rows. While the processor multiplies one block by all kept rows, the next block is packed and
//! the blocks after it are prefetched into the L2 cache. Sums stay in the L2 cache until all terms are added.
//!
//! An element is summed in the order of its terms, so no bit depends on the number of threads.

mod tiles;
mod vectors;
mod panels;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use half::bf16;

use super::matrix::{Block, Mat, Then, steps};
use crate::cpu::simd::{Bf16Unit, vectorize};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::transpose;
use panels::{Order, PARTS, Panels};
use tiles::{BLOCK, TILE};
use vectors::InMemory;

/// Terms at a time: blocks of 16 KiB.
const MAX_TERMS: usize = 256;
/// Rows at a time of the kept operand.
const MAX_KEPT: usize = 512;
/// The same if all terms are taken at once: the result is written in longer runs, which takes most of the time then.
const MAX_KEPT_OF_FEW_TERMS: usize = 256;
/// Sums at a time, 1 MiB.
const MAX_SUMS: usize = 1 << 18;
/// Rows at a time of the streamed operand.
const MAX_STREAMED: usize = 4096;
/// Blocks of the streamed operand that are prefetched at a time: runs of 256 bytes and more, of which the processor fetches
/// the next lines by itself (measured: 29 GB/s from the L3 cache, 11 GB/s in runs of 64 bytes).
const FETCHED: usize = 4;
/// FLOP per thread below which one thread is faster than two.
const MIN_FLOP_PER_THREAD: usize = 4 << 20;

/// A block of sums: 32 rows of 32, two tiles by two.
trait Sums {
    /// Loads the block, whose rows are `stride` elements apart.
    fn load(&mut self, sums: &[f32], stride: usize);

    /// Begins the block with zeros.
    fn clear(&mut self);

    /// Stores the block.
    fn store(&mut self, sums: &mut [f32], stride: usize);

    /// Adds the products of these tiles: for each tile of 32 terms, 16 rows and 16 rows of `a`, 16 columns and 16 columns of `b`.
    ///
    /// Tiles of `a` are row-major: 16 rows of 32 terms. Tiles of `b` are in VNNI layout: 16 rows of two terms of each of 16 columns.
    /// Products are not rounded before they are added; subnormal numbers are treated as zeros.
    fn multiply(&mut self, a: &[[u16; TILE]], b: &[[u16; TILE]]);
}

impl Bf16Unit {
    /// Computes `c = a·b` part by part, and calls `then` once with each part.
    ///
    /// Takes 1.6 MiB of memory of its own per thread.
    pub(crate) fn gemm_then(self, a: Mat<'_, bf16>, b: Mat<'_, bf16>, then: impl Fn(Block<'_, f32>) + Sync) {
        assert!(a.cols == b.rows && a.fits() && b.fits());
        if a.rows == 0 || b.cols == 0 {
            return;
        }
        let product = Product::new(a, b);
        let (m, n, k) = (product.a.rows, product.b.cols, product.a.cols);
        let min_part = MIN_FLOP_PER_THREAD / (2 * k * m.min(n)).max(1);
        let by_cols = n >= m;
        for_parts(m.max(n), min_part.max(BLOCK), BLOCK, |part| {
            let (rows, cols) = if by_cols { (0..m, part) } else { (part, 0..n) };
            product.compute(self, rows, cols, &then);
        });
    }
}

/// Operands in the order that transposes the fewest elements.
struct Product<'a> {
    a: Mat<'a, bf16>,
    b: Mat<'a, bf16>,
    /// Whether the result is the transpose of the requested one.
    is_transposed: bool,
}

impl<'a> Product<'a> {
    /// Chooses between `a·b` and its transpose `bᵀ·aᵀ`. Left tiles are row-major over terms, right tiles are in VNNI layout; an operand
    /// stored in the other order is transposed while it is packed, and the transposed result after it is summed.
    fn new(a: Mat<'a, bf16>, b: Mat<'a, bf16>) -> Self {
        let (a_len, b_len, c_len) = (a.rows * a.cols, b.rows * b.cols, a.rows * b.cols);
        let len_if = |is_counted: bool, len: usize| if is_counted { len } else { 0 };
        let direct = len_if(a.col_stride != 1, a_len) + len_if(b.row_stride == 1, b_len);
        let transposed = len_if(b.row_stride != 1, b_len) + len_if(a.col_stride == 1, a_len) + 2 * c_len;
        if transposed < direct {
            Product { a: b.t(), b: a.t(), is_transposed: true }
        } else {
            Product { a, b, is_transposed: false }
        }
    }

    /// Computes these rows and columns.
    fn compute(&self, unit: Bf16Unit, rows: Range<usize>, cols: Range<usize>, then: Then<'_, f32>) {
        match unit {
            Bf16Unit::Amx(amx) => self.compute_in(amx.configure(), unit, rows, cols, then),
            Bf16Unit::Vectors(vectors) => self.compute_in(InMemory::new(vectors), unit, rows, cols, then),
        }
    }

    fn compute_in(
        &self,
        mut block: impl Sums,
        unit: Bf16Unit,
        rows: Range<usize>,
        cols: Range<usize>,
        then: Then<'_, f32>,
    ) {
        // The longer operand is streamed.
        let rows_stream = rows.len() > cols.len();
        let n_kept = if self.a.cols <= MAX_TERMS { MAX_KEPT_OF_FEW_TERMS } else { MAX_KEPT };
        let (kept, streamed) = if rows_stream { (cols, rows) } else { (rows, cols) };
        with_scratch(|scratch| {
            for kept in steps(kept, n_kept) {
                let n_blocks = MAX_SUMS / (kept.len().next_multiple_of(BLOCK) * BLOCK);
                let n_streamed = (n_blocks * BLOCK).min(MAX_STREAMED);
                for streamed in steps(streamed.clone(), n_streamed) {
                    let (rows, cols) =
                        if rows_stream { (streamed, kept.clone()) } else { (kept.clone(), streamed) };
                    self.sum(unit, &mut block, rows.clone(), cols.clone(), rows_stream, scratch);
                    self.finish(rows, cols, scratch, then);
                }
            }
        });
    }

    /// Computes the sums of these rows and columns.
    fn sum(
        &self,
        unit: Bf16Unit,
        block_sums: &mut impl Sums,
        rows: Range<usize>,
        cols: Range<usize>,
        rows_stream: bool,
        scratch: &mut Scratch<'_>,
    ) {
        let stride = cols.len().next_multiple_of(BLOCK);
        if self.a.cols == 0 {
            scratch.sums.fill(0.0);
        }
        let operands = |k: &Range<usize>| {
            let a = self.a.part_of_rows(rows.clone()).part_of_cols(k.clone());
            let b = self.b.part_of_cols(cols.clone()).part_of_rows(k.clone());
            let (a, b) = (Panels::new(unit, a, Order::Terms), Panels::new(unit, b.t(), Order::Pairs));
            if rows_stream { (b, a) } else { (a, b) }
        };
        let mut ks = steps(0..self.a.cols, MAX_TERMS).peekable();
        while let Some(k) = ks.next() {
            let (kept, streamed) = operands(&k);
            let next_streamed = ks.peek().map(|k| operands(k).1);
            let block_len = 2 * kept.n_tiles();
            for (i, to) in scratch.kept.chunks_exact_mut(block_len).take(kept.n_blocks()).enumerate() {
                kept.copy_block(i, to);
            }
            // Steps of `multiply` between two copies, and parts packed by each copy.
            let (n_tiles, n_parts) = ((kept.n_blocks() / PARTS).max(1), PARTS.div_ceil(kept.n_blocks()));
            let [mut block, mut next] = scratch.streamed.each_mut().map(|block| &mut block[..block_len]);
            streamed.copy_block(0, next);
            let mut ahead = streamed.lines(0);
            for i in 0..streamed.n_blocks() {
                std::mem::swap(&mut block, &mut next);
                if i % FETCHED == 0 {
                    ahead = if i + FETCHED < streamed.n_blocks() {
                        streamed.lines(i + FETCHED)
                    } else {
                        next_streamed.map_or_else(|| streamed.lines(streamed.n_blocks()), |p| p.lines(0))
                    };
                }
                let n_copies = if i + 1 < streamed.n_blocks() { PARTS * kept.n_tiles() } else { 0 };
                let mut copies = 0..n_copies;
                let next = next.as_chunks_mut().0;
                for (j, kept_block) in scratch.kept.chunks_exact(block_len).take(kept.n_blocks()).enumerate()
                {
                    let (row, col) = if rows_stream { (i, j) } else { (j, i) };
                    let sums = &mut scratch.sums[row * BLOCK * stride + col * BLOCK..];
                    if k.start == 0 {
                        block_sums.clear()
                    } else {
                        block_sums.load(sums, stride)
                    }
                    let (a, b) = if rows_stream { (&*block, kept_block) } else { (kept_block, &*block) };
                    for (a, b) in a.chunks(2 * n_tiles).zip(b.chunks(2 * n_tiles)) {
                        block_sums.multiply(a, b);
                        for copy in copies.by_ref().take(n_parts) {
                            streamed.copy(i + 1, copy / PARTS, copy % PARTS, &mut next[copy / PARTS]);
                            ahead.fetch();
                            ahead.fetch();
                        }
                    }
                    block_sums.store(sums, stride);
                }
                for copy in copies {
                    streamed.copy(i + 1, copy / PARTS, copy % PARTS, &mut next[copy / PARTS]);
                }
            }
        }
    }

    /// Calls `then` with the sums of these rows and columns.
    fn finish(&self, rows: Range<usize>, cols: Range<usize>, scratch: &mut Scratch<'_>, then: Then<'_, f32>) {
        let stride = cols.len().next_multiple_of(BLOCK);
        let call = |sums: &mut [f32], stride: usize, rows: Range<usize>, cols: Range<usize>| {
            let whole = sums.as_mut_ptr().wrapping_sub(rows.start * stride + cols.start);
            // SAFETY: these rows and columns of the result are the sums, which are borrowed.
            then(unsafe { Block::new(SharedMut::from_ptr(whole), stride, rows, cols) });
        };
        if !self.is_transposed {
            return call(scratch.sums, stride, rows, cols);
        }
        let turned_stride = rows.len().next_multiple_of(BLOCK);
        for strip in steps(cols.clone(), TURNED) {
            let first = strip.start - cols.start;
            vectorize(
                #[inline(always)]
                || turn(&scratch.sums[first..], stride, turned_stride, scratch.turned),
            );
            call(scratch.turned, turned_stride, strip, rows.clone());
        }
    }
}

/// Columns of a transposed result at a time.
const TURNED: usize = 16;

/// Transposes 16 columns of `rows` rows.
#[inline(always)]
fn turn(sums: &[f32], stride: usize, rows: usize, to: &mut [f32]) {
    assert!(sums.len() >= (rows - 1) * stride + TURNED && to.len() >= TURNED * rows);
    let in_registers = transpose::is_in_registers::<f32>();
    for col in (0..TURNED).step_by(transpose::BLOCK) {
        for row in (0..rows).step_by(transpose::BLOCK) {
            let (from, to) = (sums[row * stride + col..].as_ptr(), to[col * rows + row..].as_mut_ptr());
            // SAFETY: both have whole blocks, as checked above.
            unsafe {
                transpose::block(in_registers, from, stride, to, rows, transpose::BLOCK, transpose::BLOCK)
            };
        }
    }
}

/// Memory of one thread, kept between calls.
struct Scratch<'a> {
    kept: &'a mut [[u16; TILE]],
    /// The current block of the streamed operand and the next one.
    streamed: [&'a mut [[u16; TILE]]; 2],
    sums: &'a mut [f32],
    turned: &'a mut [f32],
}

fn with_scratch(f: impl FnOnce(&mut Scratch<'_>)) {
    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C, align(64))]
    struct Line([u16; 32]);
    thread_local! {
        static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    }
    const KEPT: usize = MAX_KEPT * MAX_TERMS / TILE;
    const STREAMED: usize = BLOCK * MAX_TERMS / TILE;
    const TURNED_LEN: usize = TURNED * MAX_STREAMED;
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.is_empty() {
            let bytes = 2 * TILE * (KEPT + 2 * STREAMED) + 4 * (MAX_SUMS + TURNED_LEN);
            *scratch = vec![Line([0; 32]); bytes / size_of::<Line>()];
        }
        let (tiles, sums) =
            bytemuck::cast_slice_mut::<Line, u16>(scratch).split_at_mut(TILE * (KEPT + 2 * STREAMED));
        let (kept, streamed) = tiles.as_chunks_mut().0.split_at_mut(KEPT);
        let (block, next) = streamed.split_at_mut(STREAMED);
        let (sums, turned) = bytemuck::cast_slice_mut::<u16, f32>(sums).split_at_mut(MAX_SUMS);
        f(&mut Scratch { kept, streamed: [block, next], sums, turned });
    });
}
