//! Element types, and conversions between f32 and the 16-bit float formats: rounded to nearest, ties to even, as on a GPU.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

crate::named_enum! {
    /// Type of a tensor's elements.
    pub enum DType {
        /// IEEE 754 single precision: the default of training.
        F32 = "f32",
        /// IEEE 754 double precision: for reference results and gradient checks.
        F64 = "f64",
        /// Signed 64-bit integers: class indices, as in PyTorch.
        I64 = "i64",
        /// The upper half of an f32: its range with 8 bits of precision, for the matrix units of GPUs.
        BF16 = "bf16",
        /// Bytes, 0 to 255: for storing and copying rows.
        U8 = "u8",
        /// IEEE 754 half precision: 11 bits, up to 65,504, for the matrix units of GPUs.
        F16 = "f16",
        /// Signed 32-bit integers.
        I32 = "i32",
        /// Booleans, one byte each, 0 or 1: the result of comparisons.
        Bool = "bool",
    }
}

impl DType {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::U8 | DType::Bool => 1,
            DType::BF16 | DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// Whether it is one of the float types.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::BF16 | DType::F16)
    }
}

/// A Rust number type that tensors hold and operations compute with.
pub trait Element: Pod + Send + Sync + PartialEq + PartialOrd + fmt::Debug {
    /// Its [`DType`].
    const DTYPE: DType;
    /// The additive identity.
    const ZERO: Self;
    /// Rounds `v` to the nearest value of the type.
    fn from_f64(v: f64) -> Self;
    /// The value as f64, rounded if necessary.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($t:ty, $dtype:ident) => {
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = 0 as $t;
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                v as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    };
}
element!(f32, F32);
element!(f64, F64);
element!(i64, I64);
element!(i32, I32);
element!(u8, U8);

macro_rules! half_element {
    ($t:ty, $dtype:ident, $of_f32:ident) => {
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = <$t>::ZERO;
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                // half's own conversion from f64 reads only its upper 32 bits.
                $of_f32(to_odd(v))
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    };
}
half_element!(bf16, BF16, bf16_of_f32);
half_element!(f16, F16, f16_of_f32);

/// A Rust type that tensors are created from and read into: every [`Element`], and `bool`.
pub trait HostValue: Copy + fmt::Debug {
    /// The [`DType`] of such tensors.
    const DTYPE: DType;
    /// The values as the bytes of a tensor.
    fn as_bytes(values: &[Self]) -> &[u8];
    /// Reads `n` values; `fill` writes their bytes.
    ///
    /// # Errors
    /// Errors of `fill`.
    fn read<E>(n: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Vec<Self>, E>;
}

impl<T: Element> HostValue for T {
    const DTYPE: DType = T::DTYPE;

    fn as_bytes(values: &[T]) -> &[u8] {
        bytemuck::cast_slice(values)
    }

    fn read<E>(n: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Vec<T>, E> {
        let mut values = vec![T::ZERO; n];
        fill(bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}

impl HostValue for bool {
    const DTYPE: DType = DType::Bool;

    fn as_bytes(values: &[bool]) -> &[u8] {
        bytemuck::cast_slice(values)
    }

    fn read<E>(n: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Vec<bool>, E> {
        let mut bytes = vec![0; n];
        fill(&mut bytes)?;
        Ok(bytes.into_iter().map(|byte| byte != 0).collect())
    }
}

#[inline(always)]
pub(crate) fn f32_of_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds as [`bf16::from_f32`] does, without branches, so that loops over it vectorize.
#[inline(always)]
pub(crate) fn bf16_of_f32(value: f32) -> bf16 {
    let bits = value.to_bits();
    // Half a unit in the last place, minus one bit if the last place is already even: a carry rounds up.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded } as u16)
}

#[inline(always)]
pub(crate) fn f32_of_f16(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = bits & 0x7fff;
    // The exponent bias of f32 is larger by 112: multiplying by 2^112 corrects it, for subnormal numbers too.
    let finite = (f32::from_bits(magnitude << 13) * f32::from_bits((112 + 127) << 23)).to_bits();
    let special = 0x7f80_0000 | magnitude << 13;
    f32::from_bits(if magnitude >= 0x7c00 { special } else { finite } | (bits & 0x8000) << 16)
}

/// Rounds as [`half::f16::from_f32`] does, without branches, so that loops over it vectorize.
#[inline(always)]
pub(crate) fn f16_of_f32(value: f32) -> f16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // As for bf16 above, with exponents shifted; values above the largest finite number carry into infinity.
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // Below 2^-14: added to 1/2, the last place of f32 is that of subnormal f16, so the sum rounds correctly.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = 0x7e00 | magnitude >> 13 & 0x1ff;
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let large = if magnitude > 0x7f80_0000 { nan } else { 0x7c00 };
    let rounded = if magnitude >= (127 + 16) << 23 { large } else { finite };
    f16::from_bits((rounded | bits >> 16 & 0x8000) as u16)
}

/// Converts f64 to f32 rounding to odd, before rounding to a shorter format.
///
/// Rounding to nearest would round twice: a value next to a tie of the 16-bit format would become the tie. So lost bits set
/// the lowest bit of the f32.
pub(crate) fn to_odd(x: f64) -> f32 {
    let single = x as f32;
    if x.is_nan() || f64::from(single) == x {
        return single;
    }
    let is_too_large = f64::from(single).abs() > x.abs();
    let towards_zero = single.to_bits() - u32::from(is_too_large);
    f32::from_bits(towards_zero | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every value of a 16-bit format, and the values around each tie between two of them.
    #[test]
    fn every_short_number_and_every_tie_is_as_the_crate_half_has_it() {
        for bits in 0..=u16::MAX {
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            assert!(
                f32_of_bf16(b).to_bits() == b.to_f32().to_bits() || b.is_nan() && f32_of_bf16(b).is_nan()
            );
            assert!(f32_of_f16(h).to_bits() == h.to_f32().to_bits() || h.is_nan() && f32_of_f16(h).is_nan());
            let beside = |x: f32, half_unit: u32| {
                let tie = x.to_bits() + half_unit;
                [x, f32::from_bits(tie - 1), f32::from_bits(tie), f32::from_bits(tie + 1)]
            };
            let subnormal_ties = (bits & 0x7c00 == 0).then(|| {
                let tie = f32::from(bits & 0x7fff) * 2f32.powi(-24) + 2f32.powi(-25);
                [tie, f32::from_bits(tie.to_bits() - 1), f32::from_bits(tie.to_bits() + 1), -tie]
            });
            for x in beside(b.to_f32(), 1 << 15)
                .into_iter()
                .chain(beside(h.to_f32(), 1 << 12))
                .chain(subnormal_ties.into_iter().flatten())
            {
                let (got, want) = (bf16_of_f32(x), bf16::from_f32(x));
                assert!(got.to_bits() == want.to_bits() || x.is_nan() && got.is_nan(), "{x:e} to bf16");
                let (got, want) = (f16_of_f32(x), f16::from_f32(x));
                assert!(
                    got.to_bits() == want.to_bits() || x.is_nan() && got.is_nan(),
                    "{x:e} to f16: {got:?}"
                );
            }
        }
    }
}
