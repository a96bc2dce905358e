//! The two types in which operations compute: f32 for training, f64 for references and gradient checks.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use super::gemm_fn::GemmFn;
#[cfg(target_arch = "x86_64")]
use super::lanes::{F32Lanes, F64Lanes, Lanes};
use super::math;
use crate::Element;

/// A real number type that operations compute in.
pub(crate) trait Float:
    Element
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
    + Sum
{
    /// One.
    const ONE: Self;
    /// Negative infinity.
    const NEG_INFINITY: Self;
    /// `e^self`.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// `ln(1 + self)`, for numbers from 0.
    fn ln_1p_positive(self) -> Self;
    /// Largest angle for which [`Float::sin_near`] and [`Float::cos_near`] are accurate.
    const MAX_ANGLE: Self;
    /// Sine of an angle up to [`Float::MAX_ANGLE`].
    fn sin_near(self) -> Self;
    /// Cosine of an angle up to [`Float::MAX_ANGLE`].
    fn cos_near(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// `1 / (1 + e^-self)`.
    fn sigmoid(self) -> Self;
    /// Error function.
    fn erf(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// `self * a + b`, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Numbers of this type in a vector register.
    #[cfg(target_arch = "x86_64")]
    type Lanes: Lanes<Real = Self>;
    /// The matmul kernel of the crate `gemm` for this type and this processor's vector instructions.
    fn gemm_fn() -> GemmFn<Self>;
    /// The smallest positive number with all its bits.
    const MIN_POSITIVE: Self;
    /// 2^24 times [`Float::MIN_POSITIVE`].
    const NEGLIGIBLE: Self;
    /// Zero in place of a number so small that it, or its product with a learning rate, is subnormal: processors compute up to a hundred
    /// times slower with these. A moving average that gets only zeros becomes one: of a unit that is never active, or of a row of an
    /// embedding that no batch has.
    #[inline(always)]
    fn or_zero(self) -> Self {
        if self.abs() < Self::NEGLIGIBLE { Self::from_f64(0.0) } else { self }
    }
    /// Zero in place of a subnormal number: for second moments, of which only the root is used.
    #[inline(always)]
    fn or_zero_if_subnormal(self) -> Self {
        if self.abs() < Self::MIN_POSITIVE { Self::from_f64(0.0) } else { self }
    }
    /// Whether it is neither infinite nor NaN.
    #[inline(always)]
    fn is_number(self) -> bool {
        let zero = Self::from_f64(0.0);
        self * zero == zero
    }
    /// The larger of `self` and `floor`; NaN if `self` is NaN.
    #[inline(always)]
    fn at_least(self, floor: Self) -> Self {
        if self < floor { floor } else { self }
    }
}

macro_rules! float {
    (
        $t:ident, $exp:path, $ln:path, $ln_1p:path, $max_angle:expr, $sin_cos:path, $tanh:path, $sigmoid:expr, $erf:path,
        $gemm:path, $lanes:ident $(,)?
    ) => {
        impl Float for $t {
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            const MIN_POSITIVE: Self = $t::MIN_POSITIVE;
            const NEGLIGIBLE: Self = $t::MIN_POSITIVE * 16_777_216.0;
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                $ln(self)
            }
            #[inline(always)]
            fn ln_1p_positive(self) -> Self {
                $ln_1p(self)
            }
            const MAX_ANGLE: Self = $max_angle;
            #[inline(always)]
            fn sin_near(self) -> Self {
                $sin_cos(self).0
            }
            #[inline(always)]
            fn cos_near(self) -> Self {
                $sin_cos(self).1
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                $tanh(self)
            }
            #[inline(always)]
            fn sigmoid(self) -> Self {
                $sigmoid(self)
            }
            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $t::abs(self)
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                $t::mul_add(self, a, b)
            }
            #[cfg(target_arch = "x86_64")]
            type Lanes = $lanes;
            #[inline(always)]
            fn gemm_fn() -> GemmFn<Self> {
                $gemm()
            }
        }
    };
}
float!(
    f32,
    math::exp,
    math::ln,
    math::ln_1p_positive,
    math::MAX_ANGLE,
    math::sin_cos,
    math::tanh,
    math::sigmoid,
    math::erf,
    gemm_f32::gemm::f32::get_gemm_fn,
    F32Lanes,
);
float!(
    f64,
    f64::exp,
    f64::ln,
    f64::ln_1p,
    f64::INFINITY,
    f64::sin_cos,
    f64::tanh,
    |x: f64| 1.0 / (1.0 + (-x).exp()),
    libm::erf,
    gemm_f64::gemm::f64::get_gemm_fn,
    F64Lanes,
);
