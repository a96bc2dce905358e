//! Element types.

use std::fmt;

use bytemuck::Pod;

use super::short_floats::{bf16_of_f32, f16_of_f32, to_odd};

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
half_element!(half::bf16, BF16, bf16_of_f32);
half_element!(half::f16, F16, f16_of_f32);

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
