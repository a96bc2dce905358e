//! Intel's Advanced Matrix Extensions: eight tile registers of 1 KiB, and one instruction that multiplies two of them.
//!
//! The compiler's functions for them are not stable, so they are assembly. Compiled code uses no tile register, so
//! they keep what they hold between blocks of assembly, as long as a [`Configured`] lives.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

use std::arch::asm;
use std::marker::PhantomData;

use super::Sums;
use crate::cpu::simd::Amx;

/// Rows of a tile, and 32-bit elements of a row: sums in f32, or two terms in bf16.
pub(super) const SIDE: usize = 16;
/// Terms in bf16 of a tile's row.
pub(super) const TERMS: usize = 2 * SIDE;
/// Elements in bf16 of a tile.
pub(super) const TILE: usize = SIDE * TERMS;
/// Rows and columns of a block of sums: two tiles by two.
pub(super) const BLOCK: usize = 2 * SIDE;

impl Amx {
    /// Gives all tile registers of this thread 16 rows of 64 bytes.
    pub(super) fn configure(self) -> Configured {
        /// The configuration's 64 bytes in memory, of palette 1.
        #[repr(align(64))]
        struct Config {
            bytes: [u8; 64],
        }
        static CONFIG: Config = {
            let mut bytes = [0; 64];
            bytes[0] = 1;
            let mut tile = 0;
            while tile < 8 {
                bytes[16 + 2 * tile] = (4 * SIDE) as u8;
                bytes[48 + tile] = SIDE as u8;
                tile += 1;
            }
            Config { bytes }
        };
        // SAFETY: the processor and the system permit it, which `self` proves; the configuration is one of palette 1.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) CONFIG.bytes.as_ptr(), options(nostack, preserves_flags, readonly));
        }
        Configured { of_this_thread: PhantomData }
    }
}

/// The tile registers of this thread are configured until it is dropped.
pub(super) struct Configured {
    /// Neither sent to another thread nor shared with one.
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the processor has tile registers, since they are configured.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

impl Sums for Configured {
    #[inline(always)]
    fn load(&mut self, sums: &[f32], stride: usize) {
        assert!(sums.len() >= (BLOCK - 1) * stride + BLOCK);
        // SAFETY: the tile registers are configured with 16 rows of 64 bytes, and `sums` has two times two of them.
        unsafe {
            asm!(
                "tileloadd tmm0, [{upper} + {stride}]",
                "tileloadd tmm1, [{upper} + {stride} + 64]",
                "tileloadd tmm2, [{lower} + {stride}]",
                "tileloadd tmm3, [{lower} + {stride} + 64]",
                upper = in(reg) sums.as_ptr(),
                lower = in(reg) sums[SIDE * stride..].as_ptr(),
                stride = in(reg) stride * size_of::<f32>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, preserves_flags, readonly),
            );
        }
    }

    #[inline(always)]
    fn clear(&mut self) {
        // SAFETY: the tile registers are configured.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    #[inline(always)]
    fn store(&mut self, sums: &mut [f32], stride: usize) {
        assert!(sums.len() >= (BLOCK - 1) * stride + BLOCK);
        let (upper, lower) = sums.split_at_mut(SIDE * stride);
        // SAFETY: as for `load`.
        unsafe {
            asm!(
                "tilestored [{upper} + {stride}], tmm0",
                "tilestored [{upper} + {stride} + 64], tmm1",
                "tilestored [{lower} + {stride}], tmm2",
                "tilestored [{lower} + {stride} + 64], tmm3",
                upper = in(reg) upper.as_mut_ptr(),
                lower = in(reg) lower.as_mut_ptr(),
                stride = in(reg) stride * size_of::<f32>(),
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    fn multiply(&mut self, a: &[[u16; TILE]], b: &[[u16; TILE]]) {
        let steps = a.len() / 2;
        assert!(steps > 0 && a.len() == 2 * steps && b.len() == a.len());
        // SAFETY: the tile registers are configured, and `a` and `b` have the two tiles of each step.
        unsafe {
            asm!(
                "2:",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 2b",
                a = inout(reg) a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                steps = inout(reg) steps => _,
                row = in(reg) 4 * SIDE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }
}
