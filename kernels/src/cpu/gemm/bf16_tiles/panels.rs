//! Packing of operands into tiles.

use std::arch::x86_64::*;

use half::bf16;

use super::FETCHED;
use super::tiles::{BLOCK, SIDE, TERMS, TILE};
use crate::cpu::gemm::matrix::Mat;
use crate::cpu::simd::Bf16Unit;
use crate::cpu::transpose;

/// Layout of a tile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Row-major, 32 terms of each row: tiles of the left operand.
    Terms,
    /// VNNI, two terms of each of 16 columns: tiles of the right operand, given as its transpose.
    Pairs,
}

/// Copies of a part of an operand: for each block of 32 rows, and each 32 terms, a tile of the upper 16 rows and one of the lower.
/// Zeros fill up the last tiles.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    unit: Bf16Unit,
    /// Its columns are terms.
    from: Mat<'a, bf16>,
    order: Order,
}

/// Parts in which two tiles are copied, of eight cache lines each.
pub(super) const PARTS: usize = 4;
/// Cache lines of a part.
const LINES: usize = BLOCK / PARTS;

impl<'a> Panels<'a> {
    pub(super) fn new(unit: Bf16Unit, from: Mat<'a, bf16>, order: Order) -> Self {
        Panels { unit, from, order }
    }

    /// Blocks of rows.
    pub(super) fn n_blocks(&self) -> usize {
        self.from.rows.div_ceil(BLOCK)
    }

    /// Tiles of 32 terms per 16 rows.
    pub(super) fn n_tiles(&self) -> usize {
        self.from.cols.div_ceil(TERMS)
    }

    /// Copies all tiles of a block.
    pub(super) fn copy_block(&self, block: usize, to: &mut [[u16; TILE]]) {
        for (tile, to) in to.as_chunks_mut().0.iter_mut().enumerate().take(self.n_tiles()) {
            for part in 0..PARTS {
                self.copy(block, tile, part, to);
            }
        }
    }

    /// Copies one of [`PARTS`] parts of two tiles.
    #[inline(always)]
    pub(super) fn copy(&self, block: usize, tile: usize, part: usize, to: &mut [[u16; TILE]; 2]) {
        let Mat { data, rows, cols, row_stride, col_stride } = self.from;
        let is_whole = (block + 1) * BLOCK <= rows && (tile + 1) * TERMS <= cols;
        let (is_direct, line, stride) = match self.order {
            Order::Terms => {
                (col_stride == 1, (block * BLOCK + part * LINES) * row_stride + tile * TERMS, row_stride)
            }
            Order::Pairs => {
                (row_stride == 1, (tile * TERMS + part * LINES) * col_stride + block * BLOCK, col_stride)
            }
        };
        if !(is_whole && is_direct) {
            // Its parts depend on each other.
            if part == 0 {
                self.copy_indirectly(block, tile, to);
            }
            return;
        }
        let from = &data[line..][..(LINES - 1) * stride + TERMS];
        match self.order {
            Order::Terms => {
                let to = &mut to.as_flattened_mut()[part * LINES * TERMS..][..LINES * TERMS];
                // SAFETY: the processor has AVX-512, which `unit` proves; `from` has 8 lines `stride` apart, and `to` 8 lines.
                unsafe { copy_lines(self.unit, from.as_ptr().cast(), stride, to.as_mut_ptr()) };
            }
            Order::Pairs => {
                let [upper, lower] =
                    to.each_mut().map(|to| to[part * LINES * SIDE..][..LINES * SIDE].as_mut_ptr());
                // SAFETY: likewise; `upper` and `lower` have 4 lines each.
                unsafe { interleave_lines(self.unit, from.as_ptr().cast(), stride, upper, lower) };
            }
        }
    }

    /// Copies two tiles that are not whole, or stored in the other order.
    fn copy_indirectly(&self, block: usize, tile: usize, to: &mut [[u16; TILE]; 2]) {
        let Mat { data, rows, cols, row_stride, col_stride } = self.from;
        let data: &[u16] = bytemuck::cast_slice(data);
        let (first_row, first_term) = (block * BLOCK, tile * TERMS);
        let (n_rows, n_terms) = (BLOCK.min(rows - first_row), TERMS.min(cols - first_term));
        let start = first_row * row_stride + first_term * col_stride;
        let mut direct = Aligned([[0; TILE]; 2]);
        let given = if col_stride == 1 { Order::Terms } else { Order::Pairs };
        match given {
            _ if (n_rows, n_terms) == (BLOCK, TERMS) => {
                let panels = Panels { order: given, ..*self };
                (0..PARTS).for_each(|part| panels.copy(block, tile, part, &mut direct.0));
            }
            Order::Terms => {
                for (row, to) in direct.0.as_flattened_mut().chunks_exact_mut(TERMS).take(n_rows).enumerate()
                {
                    to[..n_terms].copy_from_slice(&data[start + row * row_stride..][..n_terms]);
                }
            }
            Order::Pairs => {
                for term in 0..n_terms {
                    let line = &data[start + term * col_stride..][..n_rows];
                    for (line, to) in line.chunks(SIDE).zip(&mut direct.0) {
                        let pairs = to[term / 2 * TERMS..][..TERMS].as_chunks_mut::<2>().0;
                        for (pair, &value) in pairs.iter_mut().zip(line) {
                            pair[term % 2] = value;
                        }
                    }
                }
            }
        }
        if given == self.order {
            *to = direct.0;
        } else {
            for (from, to) in direct.0.iter().zip(to) {
                // SAFETY: the processor has AVX-512, which `unit` proves.
                unsafe { transpose_pairs(self.unit, from, to) };
            }
        }
    }

    /// The cache lines of [`FETCHED`] blocks from this one on, in the order in which they are adjacent in memory.
    pub(super) fn lines(&self, block: usize) -> Lines<'a> {
        let rows = (block * BLOCK).min(self.from.rows)..((block + FETCHED) * BLOCK).min(self.from.rows);
        let from = if rows.is_empty() { Mat { rows: 0, ..self.from } } else { self.from.part_of_rows(rows) };
        Lines { from: if from.col_stride == 1 { from } else { from.t() }, row: 0, col: 0 }
    }
}

/// Cache lines that are fetched into the L2 cache.
pub(super) struct Lines<'a> {
    from: Mat<'a, bf16>,
    row: usize,
    col: usize,
}

impl Lines<'_> {
    /// Fetches the next 256 bytes of a row, if there are any.
    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        if self.row >= self.from.rows {
            return;
        }
        let place = self.from.data.as_ptr().wrapping_add(self.row * self.from.row_stride + self.col);
        for line in 0..4 {
            // SAFETY: any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(place.wrapping_add(line * TERMS).cast()) };
        }
        self.col += 4 * TERMS;
        if self.col >= self.from.cols {
            (self.row, self.col) = (self.row + 1, 0);
        }
    }
}

/// Copies 8 lines, which are `stride` elements apart.
///
/// # Safety
/// There are 8 lines at `from` and at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_lines(_: Bf16Unit, from: *const u16, stride: usize, to: *mut u16) {
    for line in 0..LINES {
        let (from, to) = (from.wrapping_add(line * stride), to.wrapping_add(line * TERMS));
        // SAFETY: a line, as the caller guarantees; no alignment is needed.
        let value = unsafe { _mm512_loadu_si512(from.cast()) };
        // SAFETY: likewise.
        unsafe { _mm512_storeu_si512(to.cast(), value) };
    }
}

/// Copies the elements of 4 pairs of lines in turns: 16 pairs of elements to `upper`, then 16 to `lower`.
///
/// # Safety
/// There are 8 lines at `from`, `stride` elements apart, and 4 at `upper` and at `lower`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn interleave_lines(_: Bf16Unit, from: *const u16, stride: usize, upper: *mut u16, lower: *mut u16) {
    const PAIRS: [[u16; 32]; 2] = {
        let mut pairs = [[0; 32]; 2];
        let mut i = 0;
        while i < 32 {
            pairs[i / 16][2 * (i % 16)] = i as u16;
            pairs[i / 16][2 * (i % 16) + 1] = 32 + i as u16;
            i += 1;
        }
        pairs
    };
    let [of_upper, of_lower] = PAIRS.each_ref().map(|pairs| {
        // SAFETY: 32 numbers; no alignment is needed.
        unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
    });
    for pair in 0..LINES / 2 {
        let from = from.wrapping_add(2 * pair * stride);
        // SAFETY: a line, as the caller guarantees; no alignment is needed.
        let first = unsafe { _mm512_loadu_si512(from.cast()) };
        // SAFETY: likewise.
        let second = unsafe { _mm512_loadu_si512(from.wrapping_add(stride).cast()) };
        for (to, elements) in [(upper, of_upper), (lower, of_lower)] {
            let to = to.wrapping_add(pair * TERMS);
            let value = _mm512_permutex2var_epi16(first, elements, second);
            // SAFETY: likewise.
            unsafe { _mm512_storeu_si512(to.cast(), value) };
        }
    }
}

/// Tiles in cache lines of their own.
#[repr(align(64))]
struct Aligned([[u16; TILE]; 2]);

/// Transposes a tile of 16 x 16 pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,bmi1,bmi2")]
fn transpose_pairs(_: Bf16Unit, from: &[u16; TILE], to: &mut [u16; TILE]) {
    const SMALL: usize = transpose::BLOCK;
    let (from, to) = (from.as_ptr().cast::<f32>(), to.as_mut_ptr().cast::<f32>());
    for row in (0..SIDE).step_by(SMALL) {
        for col in (0..SIDE).step_by(SMALL) {
            let (from, to) = (from.wrapping_add(row * SIDE + col), to.wrapping_add(col * SIDE + row));
            // SAFETY: both tiles have 16 rows of 16 pairs, each as long as an f32, whose bits are copied.
            unsafe { transpose::block(true, from, SIDE, to, SIDE, SMALL, SMALL) };
        }
    }
}
