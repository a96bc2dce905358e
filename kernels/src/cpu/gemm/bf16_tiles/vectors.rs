//! AVX512-BF16: an instruction that adds, to each of 16 sums in f32, the products of a pair of terms in bf16.
//!
//! It multiplies the same tiles as AMX: of each row of the left tile a pair is broadcast, of the right tile a whole row is taken.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS.

use std::arch::x86_64::*;

use super::Sums;
use super::tiles::{BLOCK, SIDE, TERMS, TILE};
use crate::cpu::simd::Avx512Bf16;

/// A block of sums in the L1 cache.
#[repr(align(64))]
pub(super) struct InMemory {
    proof: Avx512Bf16,
    rows: [[f32; BLOCK]; BLOCK],
}

impl InMemory {
    pub(super) fn new(proof: Avx512Bf16) -> Self {
        InMemory { proof, rows: [[0.0; BLOCK]; BLOCK] }
    }
}

impl Sums for InMemory {
    #[inline(always)]
    fn load(&mut self, sums: &[f32], stride: usize) {
        for (row, values) in self.rows.iter_mut().enumerate() {
            values.copy_from_slice(&sums[row * stride..][..BLOCK]);
        }
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.rows = [[0.0; BLOCK]; BLOCK];
    }

    #[inline(always)]
    fn store(&mut self, sums: &mut [f32], stride: usize) {
        for (row, values) in self.rows.iter().enumerate() {
            sums[row * stride..][..BLOCK].copy_from_slice(values);
        }
    }

    #[inline(always)]
    fn multiply(&mut self, a: &[[u16; TILE]], b: &[[u16; TILE]]) {
        assert!(a.len() == b.len());
        let (a, b) = (a.as_chunks().0, b.as_chunks().0);
        for (strip, sums) in self.rows.as_chunks_mut().0.iter_mut().enumerate() {
            // SAFETY: the processor has the instructions, which `proof` proves.
            unsafe { multiply_strip(self.proof, a, b, strip, sums) };
        }
    }
}

/// Rows of sums that are kept in registers, two in each.
const STRIP: usize = 8;

/// Adds the products of the rows of one strip of the left tiles.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_strip(
    _: Avx512Bf16,
    a: &[[[u16; TILE]; 2]],
    b: &[[[u16; TILE]; 2]],
    strip: usize,
    sums: &mut [[f32; BLOCK]; STRIP],
) {
    let mut registers = sums.map(|row| {
        // SAFETY: 16 numbers; no alignment is needed.
        let left = unsafe { _mm512_loadu_ps(row.as_ptr()) };
        // SAFETY: likewise.
        let right = unsafe { _mm512_loadu_ps(row[SIDE..].as_ptr()) };
        [left, right]
    });
    for (a, b) in a.iter().zip(b) {
        let a = a.as_flattened()[strip * STRIP * TERMS..][..STRIP * TERMS].as_chunks::<2>().0;
        for pair in 0..SIDE {
            let b = b.each_ref().map(|b| {
                // SAFETY: 32 terms; no alignment is needed.
                unsafe { _mm512_loadu_si512(b[pair * TERMS..][..TERMS].as_ptr().cast()) }
            });
            for (row, sums) in registers.iter_mut().enumerate() {
                let [first, second] = a[row * SIDE + pair].map(u32::from);
                let a = as_bf16(_mm512_set1_epi32((second << 16 | first).cast_signed()));
                for (sums, b) in sums.iter_mut().zip(b) {
                    *sums = _mm512_dpbf16_ps(*sums, a, as_bf16(b));
                }
            }
        }
    }
    for (to, [left, right]) in sums.iter_mut().zip(registers) {
        // SAFETY: 16 numbers; no alignment is needed.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), left) };
        // SAFETY: likewise.
        unsafe { _mm512_storeu_ps(to[SIDE..].as_mut_ptr(), right) };
    }
}

/// The same bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn as_bf16(terms: __m512i) -> __m512bh {
    // SAFETY: both have 512 bits, all of whose values are valid.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(terms) }
}
