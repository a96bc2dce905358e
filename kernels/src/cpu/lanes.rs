//! Vector registers of AVX2, for loops whose sums the compiler does not keep in registers by itself.

use std::arch::x86_64::*;

use super::simd::Avx2;

/// A register of [`Lanes::LEN`] numbers. A value exists only on a processor with AVX2 and FMA, so its methods are safe.
///
/// To be fast they must be inlined into code that [`Avx2::run`] calls.
pub(crate) trait Lanes: Copy {
    /// The type of a number.
    type Real: Copy;
    /// Numbers in a register.
    const LEN: usize;
    /// The same number in each lane.
    fn splat(proof: Avx2, value: Self::Real) -> Self;
    /// The first [`Lanes::LEN`] numbers of `from`.
    fn load(proof: Avx2, from: &[Self::Real]) -> Self;
    /// Writes the first [`Lanes::LEN`] numbers of `to`.
    fn store(self, to: &mut [Self::Real]);
    /// `self * a + b`, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
}

macro_rules! lanes {
    ($name:ident: $len:literal x $real:ident in $register:ident, $set1:ident, $load:ident, $store:ident, $fma:ident) => {
        #[doc = concat!("Numbers in a register: ", stringify!($len), " ", stringify!($real), ".")]
        #[derive(Clone, Copy)]
        pub(crate) struct $name($register);

        impl Lanes for $name {
            type Real = $real;
            const LEN: usize = $len;
            #[inline(always)]
            fn splat(_: Avx2, value: $real) -> Self {
                // SAFETY: the argument proves that the processor has AVX2.
                Self(unsafe { $set1(value) })
            }
            #[inline(always)]
            fn load(_: Avx2, from: &[$real]) -> Self {
                let from = from[..Self::LEN].as_ptr();
                // SAFETY: that many numbers are there, and the argument proves that the processor has AVX2.
                Self(unsafe { $load(from) })
            }
            #[inline(always)]
            fn store(self, to: &mut [$real]) {
                let to = to[..Self::LEN].as_mut_ptr();
                // SAFETY: that many numbers fit, and `self` exists only with AVX2.
                unsafe { $store(to, self.0) }
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                // SAFETY: `self` exists only with AVX2 and FMA.
                Self(unsafe { $fma(self.0, a.0, b.0) })
            }
        }
    };
}
lanes!(F32Lanes: 8 x f32 in __m256, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
lanes!(F64Lanes: 4 x f64 in __m256d, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd);
