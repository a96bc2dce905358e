//! Elementary functions in f32 without branches, so that loops over them vectorize.
//!
//! Each is a range reduction and a polynomial; the coefficients are our own near-minimax fits (reweighted least
//! squares at 4,000 Chebyshev nodes in f64). The tests hold every one to its stated error against f64.

/// 1.5 · 2^23: adding it rounds a small f32 to an integer and leaves that integer in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has trailing zeros, so that multiplying it by a small integer is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// `x = n·ln2 + r` with `|r| <= ln2/2`; returns `(n, r)`.
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    (shifted.to_bits() as i32 - ROUND.to_bits() as i32, r)
}

/// `e^r - 1` for `|r| <= ln2/2`, with small relative error also near zero.
#[inline(always)]
fn exp_m1_small(r: f32) -> f32 {
    let mut q = 0.001_395_048_8_f32;
    q = q.mul_add(r, 0.008_368_89);
    q = q.mul_add(r, 0.041_666_206);
    q = q.mul_add(r, 0.166_665_18);
    q = q.mul_add(r, 0.5);
    (r * r).mul_add(q, r)
}

/// `e^x` within 2 ulp; 0 below and infinite above the range of f32, NaN for NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Comparisons, not `min` and `max`, which would turn NaN into a number.
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -104.0 { -104.0 } else { clamped };
    let (n, r) = reduce(clamped);
    let p = exp_m1_small(r) + 1.0;
    // In two steps, since 2^n itself may be out of range when the result is not.
    let half = n >> 1;
    p * pow2(half) * pow2(n - half)
}

/// `e^x - 1` for `0 <= x <= 40`.
#[inline(always)]
fn exp_m1_positive(x: f32) -> f32 {
    let (n, r) = reduce(x);
    let scale = pow2(n);
    exp_m1_small(r).mul_add(scale, scale - 1.0)
}

/// `tanh x` within 4 ulp.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    // From 9.02 on the result rounds to 1.
    let a = if a > 10.0 { 10.0 } else { a };
    let t = exp_m1_positive(2.0 * a);
    (t / (t + 2.0)).copysign(x)
}

/// `1 / (1 + e^-x)` within 3 ulp of the result wherever that is a normal number.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `erf x` within 3 ulp.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let s = x * x;
    // |x| <= 0.92: x + x·p(x²).
    let mut p = -0.000_599_940_3_f32;
    p = p.mul_add(s, 0.004_994_829_7);
    p = p.mul_add(s, -0.026_767_72);
    p = p.mul_add(s, 0.112_818_46);
    p = p.mul_add(s, -0.376_124_98);
    p = p.mul_add(s, 0.128_379_15);
    let small = p.mul_add(x, x);
    // Beyond: 1 - e^q(|x|); from 3.93 on the result rounds to 1.
    let t = if a > 4.0 { 4.0 } else { a };
    let mut q = 0.000_195_938_61_f32;
    q = q.mul_add(t, -0.003_043_23);
    q = q.mul_add(t, 0.022_226_967);
    q = q.mul_add(t, -0.103_931_69);
    q = q.mul_add(t, -0.637_182_2);
    q = q.mul_add(t, -1.127_675_7);
    q = q.mul_add(t, -0.000_195_663_38);
    let large = (1.0 - exp(q)).copysign(x);
    // NaN takes the first branch's value, which is NaN.
    if a > 0.92 { large } else { small }
}

/// `ln x` within 2 ulp for normal positive numbers; infinity for infinity, NaN for NaN and below 0, and minus infinity
/// from 0 to the smallest normal number.
#[inline(always)]
pub(super) fn ln(x: f32) -> f32 {
    const SQRT_HALF_BITS: i32 = 0x3f35_04f3;
    // x = 2^n · (1 + f) with 1 + f in sqrt(1/2)..sqrt(2).
    // Of numbers below 0 both differences may wrap; the result is NaN whatever they are.
    let n = (x.to_bits() as i32).wrapping_sub(SQRT_HALF_BITS) >> 23;
    let f = f32::from_bits((x.to_bits() as i32).wrapping_sub(n << 23) as u32) - 1.0;
    let mut p = -0.076_344_15_f32;
    p = p.mul_add(f, 0.127_615_45);
    p = p.mul_add(f, -0.131_601_99);
    p = p.mul_add(f, 0.142_017_63);
    p = p.mul_add(f, -0.166_233_57);
    p = p.mul_add(f, 0.200_012_27);
    p = p.mul_add(f, -0.250_008_23);
    p = p.mul_add(f, 0.333_333_3);
    let square = f * f;
    let n = n as f32;
    // Small parts first.
    let low = (square * f).mul_add(p, n * LN2_LO) - 0.5 * square;
    let finite = n.mul_add(LN2_HI, f + low);
    let finite = if x > f32::MAX { f32::INFINITY } else { finite };
    let positive = if x < f32::MIN_POSITIVE { f32::NEG_INFINITY } else { finite };
    // Also where x is NaN, which compares as neither.
    if x >= 0.0 { positive } else { f32::NAN }
}

/// `ln (1 + x)` within 4 ulp, for `x >= 0`.
#[inline(always)]
pub(super) fn ln_1p_positive(x: f32) -> f32 {
    let sum = 1.0 + x;
    // The sum is rounded; the quotient undoes most of the error (Kahan).
    let near = ln(sum) * (x / (sum - 1.0));
    let far = if x > 1e8 { ln(x) } else { near };
    if sum == 1.0 { x } else { far }
}

/// 1.5 · 2^52: adding it rounds an f64 below 2^51 to an integer and leaves that integer in the low mantissa bits.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;
/// π/2 minus the f64 nearest to it.
const HALF_PI_REST: f64 = 6.123_233_995_736_766e-17;

/// Largest angle for which [`sin_cos`] has its stated error.
pub(super) const MAX_ANGLE: f32 = 1e9;

/// Sine and cosine within 0.51 ulp, for `|x| <= MAX_ANGLE`, by Taylor series in f64 whose remainder is below 1e-13.
#[inline(always)]
pub(super) fn sin_cos(x: f32) -> (f32, f32) {
    let x = f64::from(x);
    // x = quarters·π/2 + r with |r| <= π/4.
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND_F64);
    let n = shifted - ROUND_F64;
    let quarters = shifted.to_bits();
    let r = n.mul_add(-HALF_PI_REST, n.mul_add(-std::f64::consts::FRAC_PI_2, x));
    let square = r * r;
    let mut p = 1.0 / 6_227_020_800.0_f64;
    p = p.mul_add(square, -1.0 / 39_916_800.0);
    p = p.mul_add(square, 1.0 / 362_880.0);
    p = p.mul_add(square, -1.0 / 5040.0);
    p = p.mul_add(square, 1.0 / 120.0);
    p = p.mul_add(square, -1.0 / 6.0);
    let sin = (p * square).mul_add(r, r);
    let mut p = -1.0 / 87_178_291_200.0_f64;
    p = p.mul_add(square, 1.0 / 479_001_600.0);
    p = p.mul_add(square, -1.0 / 3_628_800.0);
    p = p.mul_add(square, 1.0 / 40_320.0);
    p = p.mul_add(square, -1.0 / 720.0);
    p = p.mul_add(square, 1.0 / 24.0);
    p = p.mul_add(square, -0.5);
    let cos = p.mul_add(square, 1.0);
    let (of_sin, of_cos) = if quarters & 1 == 0 { (sin, cos) } else { (cos, sin) };
    // The signs of the quarters: + + - - for the sine, + - - + for the cosine.
    let signed = |v: f64, negative: u64| f64::from_bits(v.to_bits() ^ (negative << 63));
    let sin = signed(of_sin, quarters >> 1 & 1);
    let cos = signed(of_cos, (quarters + 1) >> 1 & 1);
    (sin as f32, cos as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error of `f` against `reference`, in units in the last place (ulp) of the reference.
    fn max_ulp(range: (f32, f32), f: impl Fn(f32) -> f32, reference: impl Fn(f64) -> f64) -> (f64, f32) {
        let n = 400_000;
        (0..=n)
            .map(|i| {
                let x = range.0 + (range.1 - range.0) * (i as f32 / n as f32);
                let want = reference(f64::from(x));
                let nearest = want as f32;
                let ulp = f64::from(f32::from_bits(nearest.abs().to_bits() + 1) - nearest.abs());
                ((f64::from(f(x)) - want).abs() / ulp, x)
            })
            .fold((0.0, 0.0), |worst, e| if e.0 > worst.0 { e } else { worst })
    }

    #[test]
    fn errors_are_as_stated() {
        let cases: [(&str, (f64, f32), f64); 21] = [
            ("ln", max_ulp((1e-30, 1000.0), ln, f64::ln), 2.0),
            ("ln near 1", max_ulp((0.99, 1.01), ln, f64::ln), 2.0),
            ("ln of large", max_ulp((1.0, 1e38), ln, f64::ln), 2.0),
            ("ln_1p", max_ulp((0.0, 1.0), ln_1p_positive, f64::ln_1p), 4.0),
            ("ln_1p near 0", max_ulp((0.0, 1e-6), ln_1p_positive, f64::ln_1p), 4.0),
            ("ln_1p of large", max_ulp((1.0, 1e38), ln_1p_positive, f64::ln_1p), 4.0),
            ("sin", max_ulp((-10.0, 10.0), |x| sin_cos(x).0, f64::sin), 0.51),
            ("sin near 0", max_ulp((-1e-6, 1e-6), |x| sin_cos(x).0, f64::sin), 0.51),
            ("sin of large", max_ulp((-MAX_ANGLE, MAX_ANGLE), |x| sin_cos(x).0, f64::sin), 0.51),
            ("cos", max_ulp((-10.0, 10.0), |x| sin_cos(x).1, f64::cos), 0.51),
            ("cos near a quarter", max_ulp((1.57, 1.58), |x| sin_cos(x).1, f64::cos), 0.51),
            ("cos of large", max_ulp((-MAX_ANGLE, MAX_ANGLE), |x| sin_cos(x).1, f64::cos), 0.51),
            ("exp", max_ulp((-87.0, 88.7), exp, f64::exp), 2.0),
            ("exp near 0", max_ulp((-1e-3, 1e-3), exp, f64::exp), 2.0),
            ("exp denormal", max_ulp((-103.0, -87.0), exp, f64::exp), 2.0),
            ("tanh", max_ulp((-12.0, 12.0), tanh, f64::tanh), 4.0),
            ("tanh near 0", max_ulp((-1e-2, 1e-2), tanh, f64::tanh), 4.0),
            ("sigmoid", max_ulp((-80.0, 30.0), sigmoid, |x| 1.0 / (1.0 + (-x).exp())), 3.0),
            ("erf", max_ulp((-5.0, 5.0), erf, libm::erf), 3.0),
            ("erf near 0", max_ulp((-1e-2, 1e-2), erf, libm::erf), 3.0),
            ("erf at the seam", max_ulp((0.91, 0.93), erf, libm::erf), 3.0),
        ];
        for (name, (ulp, at), limit) in cases {
            assert!(ulp <= limit, "{name}: {ulp:.2} ulp at {at:e}, stated {limit}");
        }
    }

    #[test]
    fn ends_of_the_range() {
        for f in [exp, tanh, sigmoid, erf] {
            assert!(f(f32::NAN).is_nan());
        }
        assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
        assert_eq!((exp(0.0), exp(1000.0), exp(-1000.0)), (1.0, f32::INFINITY, 0.0));
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(0.0)), (1.0, -1.0, 0.0));
        assert_eq!((erf(f32::INFINITY), erf(f32::NEG_INFINITY), erf(0.0)), (1.0, -1.0, 0.0));
        assert_eq!((sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY), sigmoid(0.0)), (1.0, 0.0, 0.5));
        assert_eq!((ln(1.0), ln(0.0), ln(f32::INFINITY)), (0.0, f32::NEG_INFINITY, f32::INFINITY));
        assert!([-1.0, -1e-3, -1e-38, f32::NEG_INFINITY, f32::NAN].map(ln).iter().all(|ln| ln.is_nan()));
        assert_eq!((ln_1p_positive(0.0), ln_1p_positive(f32::INFINITY)), (0.0, f32::INFINITY));
        assert!(ln_1p_positive(f32::NAN).is_nan());
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        assert!(sin_cos(f32::NAN).0.is_nan() && sin_cos(f32::NAN).1.is_nan());
        assert!(tanh(-0.0).is_sign_negative() && erf(-0.0).is_sign_negative());
    }
}
