//! Numbers converted from one type to another, with the count of those that the new type rounds.

use std::cmp::Ordering;

use ddp_kernels::Element;
use half::{bf16, f16};

use crate::values::element::{RawType, to_f64 as raw_to_f64, to_i128 as raw_to_i128};

/// A value that the new type cannot hold at all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misfit {
    /// Index of the value.
    pub(super) index: usize,
}

/// Appends the little-endian numbers in `bytes` to `out` as `to` and returns how many of them were rounded. NaN stays NaN.
///
/// # Errors
/// The first value that `to` cannot hold: one that overflows, and in integer types one with a fraction.
pub(super) fn cast(from: RawType, bytes: &[u8], to: RawType, out: &mut Vec<u8>) -> Result<u64, Misfit> {
    if from == to {
        out.extend_from_slice(bytes);
        return Ok(0);
    }
    if matches!(from, RawType::I64 | RawType::U64) {
        let wholes = bytes.chunks_exact(8).map(|bytes| raw_to_i128(from, bytes));
        // Both are whole.
        let differs = |whole, rounded: f64| rounded as i128 != whole;
        let double = |whole| if to == RawType::Bf16 { to_odd(whole) } else { whole as f64 };
        return put_all(wholes, to, out, Some, double, |whole| whole as f32, differs);
    }
    const BLOCK: usize = 1024;
    let size = from.size_bytes();
    let mut doubles = [0.0; BLOCK];
    let mut n_rounded = 0;
    for (number, bytes) in bytes.chunks(BLOCK * size).enumerate() {
        let doubles = &mut doubles[..bytes.len() / size];
        raw_to_f64(from, false, bytes, doubles);
        let whole =
            |double: f64| (double.fract() == 0.0 && double.abs() < 2f64.powi(65)).then_some(double as i128);
        let differs = |double: f64, rounded: f64| rounded != double && !double.is_nan();
        let doubles = doubles.iter().copied();
        let put = put_all(doubles, to, out, whole, |double| double, |double| double as f32, differs);
        n_rounded += put.map_err(|misfit| Misfit { index: number * BLOCK + misfit.index })?;
    }
    Ok(n_rounded)
}

/// The f64 next to `whole`, by an odd last bit if it is another number: rounded once more, it gives what `whole` itself would.
fn to_odd(whole: i128) -> f64 {
    let nearest = whole as f64;
    let beyond = (nearest as i128).unsigned_abs().cmp(&whole.unsigned_abs());
    match beyond {
        Ordering::Equal => nearest,
        Ordering::Less => f64::from_bits(nearest.to_bits() | 1),
        Ordering::Greater => f64::from_bits((nearest.to_bits() - 1) | 1),
    }
}

/// Appends `values`, which are whole numbers by `whole`, f64 by `double` and f32 by `single`; `differs` compares a value with a float
/// that stands for it.
#[inline(always)]
fn put_all<T: Copy>(
    values: impl Iterator<Item = T>,
    to: RawType,
    out: &mut Vec<u8>,
    whole: impl Fn(T) -> Option<i128>,
    double: impl Fn(T) -> f64,
    single: impl Fn(T) -> f32,
    differs: impl Fn(T, f64) -> bool,
) -> Result<u64, Misfit> {
    let mut n_rounded = 0;
    macro_rules! integers {
        ($t:ty) => {
            for (index, value) in values.enumerate() {
                let fits = whole(value).and_then(|whole| <$t>::try_from(whole).ok());
                out.extend(fits.ok_or(Misfit { index })?.to_le_bytes());
            }
        };
    }
    macro_rules! floats {
        (|$value:ident| $convert:expr) => {
            for (index, $value) in values.enumerate() {
                let short = $convert;
                let back = f64::from(short);
                if back.is_infinite() && double($value).is_finite() {
                    return Err(Misfit { index });
                }
                n_rounded += u64::from(differs($value, back));
                out.extend(short.to_le_bytes());
            }
        };
    }
    match to {
        RawType::Bool => {
            for (index, value) in values.enumerate() {
                match whole(value) {
                    Some(truth @ (0 | 1)) => out.push(truth as u8),
                    _ => return Err(Misfit { index }),
                }
            }
        }
        RawType::U8 => integers!(u8),
        RawType::I8 => integers!(i8),
        RawType::U16 => integers!(u16),
        RawType::I16 => integers!(i16),
        RawType::U32 => integers!(u32),
        RawType::I32 => integers!(i32),
        RawType::U64 => integers!(u64),
        RawType::I64 => integers!(i64),
        RawType::F64 => floats!(|value| double(value)),
        RawType::F32 => floats!(|value| single(value)),
        RawType::F16 => floats!(|value| <f16 as Element>::from_f64(double(value))),
        RawType::Bf16 => floats!(|value| <bf16 as Element>::from_f64(double(value))),
        RawType::Ascii | RawType::Unicode => unreachable!("texts are not numbers"),
    }
    Ok(n_rounded)
}

/// The index of the first number that is not finite, or neither finite nor NaN if that marks a missing value.
pub fn first_not_finite(raw: RawType, bytes: &[u8], may_be_nan: bool) -> Option<usize> {
    // Checks many numbers at a time without branches.
    macro_rules! find {
        ($t:ty, $sign:expr, $infinity:expr) => {{
            let is_bad = |bytes: &[u8; size_of::<$t>()]| {
                let size = <$t>::from_le_bytes(*bytes) & $sign;
                if may_be_nan { size == $infinity } else { size >= $infinity }
            };
            let (numbers, _) = bytes.as_chunks::<{ size_of::<$t>() }>();
            let has_bad = numbers.iter().fold(false, |bad, number| bad | is_bad(number));
            has_bad.then(|| numbers.iter().position(is_bad)).flatten()
        }};
    }
    match raw {
        RawType::F16 => find!(u16, 0x7fff, 0x7c00),
        RawType::Bf16 => find!(u16, 0x7fff, 0x7f80),
        RawType::F32 => find!(u32, 0x7fff_ffff, 0x7f80_0000),
        RawType::F64 => find!(u64, 0x7fff_ffff_ffff_ffff, 0x7ff0_0000_0000_0000),
        _ => None,
    }
}

/// The largest n such that the type holds every whole number from 0 to n.
pub(super) fn largest_code(raw: RawType) -> u64 {
    match raw {
        RawType::Bool => 1,
        RawType::U8 => 255,
        RawType::I8 => 127,
        RawType::U16 => u64::from(u16::MAX),
        RawType::I16 => i16::MAX as u64,
        RawType::F16 => 1 << 11,
        RawType::Bf16 => 1 << 8,
        RawType::F32 => 1 << 24,
        _ => 1 << 31,
    }
}

/// The type that holds the values of both, rounding none where there is one: f64 for a float and a large integer.
pub fn common(a: RawType, b: RawType) -> RawType {
    use RawType as T;
    let is_float = |raw| matches!(raw, T::F16 | T::Bf16 | T::F32 | T::F64);
    let bits = |raw: RawType| if raw == T::Bool { 0 } else { 8 * raw.size_bytes() };
    let is_signed = |raw| matches!(raw, T::I8 | T::I16 | T::I32 | T::I64);
    if a == b {
        return a;
    }
    match (is_float(a), is_float(b)) {
        (true, true) if a == T::F64 || b == T::F64 => T::F64,
        (true, true) => T::F32,
        (false, false) => {
            let (small, large) = if bits(a) < bits(b) { (a, b) } else { (b, a) };
            if bits(small) == 0
                || is_signed(small) == is_signed(large)
                || (is_signed(large) && bits(small) < bits(large))
            {
                return large;
            }
            // A signed and an unsigned type: the next larger signed one.
            match bits(large) {
                8 => T::I16,
                16 => T::I32,
                32 => T::I64,
                _ => T::F64,
            }
        }
        _ => {
            let (float, whole) = if is_float(a) { (a, b) } else { (b, a) };
            let n_bits = bits(whole) - usize::from(is_signed(whole) && bits(whole) > 0);
            let exact = |float| match float {
                T::F16 => 11,
                T::Bf16 => 8,
                T::F32 => 24,
                _ => 53,
            };
            [float, T::F32]
                .into_iter()
                .find(|raw| *raw != T::F64 && n_bits <= exact(*raw))
                .filter(|_| float != T::F64)
                .unwrap_or(T::F64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubles(to: RawType, values: &[f64]) -> Result<(Vec<u8>, u64), Misfit> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut out = Vec::new();
        cast(RawType::F64, &bytes, to, &mut out).map(|n| (out, n))
    }

    #[test]
    fn values_that_do_not_fit_are_found_and_rounded_ones_counted() {
        assert_eq!(doubles(RawType::U8, &[0.0, 255.0, 7.0]), Ok((vec![0, 255, 7], 0)));
        for bad in [0.5, -1.0, 256.0, f64::NAN, f64::INFINITY] {
            assert_eq!(doubles(RawType::U8, &[1.0, bad]), Err(Misfit { index: 1 }));
        }
        assert_eq!(doubles(RawType::F16, &[1.0]), Ok((vec![0, 0x3c], 0)));
        assert_eq!(doubles(RawType::F16, &[65_504.0, 65_520.0]), Err(Misfit { index: 1 }));
        assert_eq!(doubles(RawType::F32, &[0.5, 0.1, f64::NAN]).unwrap().1, 1);
        assert_eq!(doubles(RawType::F32, &[1e300]), Err(Misfit { index: 0 }));
        assert_eq!(doubles(RawType::Bf16, &[1.0, f64::from(f32::MAX)]), Err(Misfit { index: 1 }));
        let long = vec![0.1; 3000];
        assert_eq!(doubles(RawType::F32, &long).unwrap().1, 3000);
        let mut long = vec![1.0; 3000];
        long[2500] = -1.0;
        assert_eq!(doubles(RawType::U16, &long), Err(Misfit { index: 2500 }));
    }

    #[test]
    fn large_integers_are_exact_or_counted() {
        let wholes = [i64::MAX, i64::MIN, 1 << 53, (1 << 53) + 1];
        let bytes: Vec<u8> = wholes.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut out = Vec::new();
        assert_eq!(cast(RawType::I64, &bytes, RawType::I64, &mut out), Ok(0));
        assert_eq!(out, bytes);
        assert_eq!(cast(RawType::I64, &bytes, RawType::F64, &mut out), Ok(2));
        assert_eq!(cast(RawType::I64, &bytes, RawType::U64, &mut out), Err(Misfit { index: 1 }));
        assert_eq!(cast(RawType::U64, &u64::MAX.to_le_bytes(), RawType::F32, &mut out), Ok(1));
    }

    #[test]
    fn numbers_just_above_a_tie_are_rounded_up() {
        // Half a unit above 1, and the same plus a bit that half's own conversion drops.
        for (to, half_unit, tie, above) in [
            (RawType::F16, 2f64.powi(-11), 0x3c00u16, 0x3c01),
            (RawType::Bf16, 2f64.powi(-8), 0x3f80, 0x3f81),
        ] {
            let values =
                [1.0 + half_unit, 1.0 + half_unit + 2f64.powi(-40), -(1.0 + half_unit + 2f64.powi(-52))];
            let want: Vec<u8> =
                [tie, above, above | 0x8000].iter().flat_map(|bits| bits.to_le_bytes()).collect();
            assert_eq!(doubles(to, &values), Ok((want, 3)), "{to:?}");
        }
        let wholes = [(1i64 << 62) + (1 << 54), (1 << 62) + (1 << 54) + 1, -(1 << 62) - (1 << 54) - 1];
        let bytes: Vec<u8> = wholes.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut out = Vec::new();
        assert_eq!(cast(RawType::I64, &bytes, RawType::Bf16, &mut out), Ok(3));
        let want = [0x5e80u16, 0x5e81, 0xde81];
        assert_eq!(out, want.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>());
    }

    #[test]
    fn the_common_type_holds_both() {
        use RawType as T;
        for (a, b, want) in [
            (T::I64, T::F64, T::F64),
            (T::I64, T::F32, T::F64),
            (T::U8, T::F32, T::F32),
            (T::U8, T::F16, T::F16),
            (T::I16, T::F16, T::F32),
            (T::Bf16, T::F16, T::F32),
            (T::Bool, T::I64, T::I64),
            (T::Bool, T::F32, T::F32),
            (T::U8, T::I8, T::I16),
            (T::U8, T::I32, T::I32),
            (T::U32, T::I8, T::I64),
            (T::U64, T::I64, T::F64),
            (T::I32, T::F32, T::F64),
        ] {
            assert_eq!((common(a, b), common(b, a)), (want, want), "{a:?} {b:?}");
        }
    }
}
