//! Element types.

use std::fmt;

use bytemuck::Pod;

use crate::cpu::Stored;
use crate::cpu::stored::to_odd;

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 single precision: the default of training.
    F32,
    /// IEEE 754 double precision: for reference results and gradient checks.
    F64,
    /// Signed 64-bit integers: class indices, as in PyTorch.
    I64,
    /// The upper half of an f32: its range with 8 bits of precision, for the matrix units of GPUs.
    BF16,
    /// Bytes, 0 to 255: for storing and copying rows; no operation computes in it.
    U8,
    /// IEEE 754 half precision: 11 bits, up to 65,504, for the matrix units of GPUs.
    F16,
}

impl DType {
    /// All of them.
    pub const ALL: [DType; 6] = [DType::F32, DType::F64, DType::I64, DType::BF16, DType::U8, DType::F16];

    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::BF16 | DType::F16 => 2,
            DType::F32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I64 => "i64",
            DType::BF16 => "bf16",
            DType::U8 => "u8",
            DType::F16 => "f16",
        })
    }
}

/// A Rust type that a tensor can hold.
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
element!(u8, U8);

macro_rules! half_element {
    ($t:ty, $dtype:ident) => {
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = <$t>::ZERO;
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                // half's own conversion from f64 reads only its upper 32 bits.
                Stored::store(to_odd(v))
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    };
}
half_element!(half::bf16, BF16);
half_element!(half::f16, F16);
