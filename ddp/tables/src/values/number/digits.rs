//! Parses decimal numbers, eight digits at a time, with the same rounding as the standard library.
//!
//! Source of eight digits at a time: D. Lemire, "Quickly parsing eight digits", 2018.

use crate::values::element::whole_less;

/// Powers of ten from the smallest exponent on, each the nearest f64.
const POWERS: [f64; 81] = [
    1e-40, 1e-39, 1e-38, 1e-37, 1e-36, 1e-35, 1e-34, 1e-33, 1e-32, 1e-31, 1e-30, 1e-29, 1e-28, 1e-27, 1e-26,
    1e-25, 1e-24, 1e-23, 1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17, 1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11,
    1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8,
    1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25,
    1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38, 1e39, 1e40,
];
const MIN_EXPONENT: i32 = -40;
/// Digits that a u64 holds.
const MAX_DIGITS: usize = 19;
/// Digits of numbers that f64 holds exactly, as it does the power of ten by which they are divided.
const MAX_PLAIN_DIGITS: usize = 15;

/// The number `mantissa * 10^exponent`, or its negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal {
    is_negative: bool,
    mantissa: u64,
    exponent: i32,
    /// Whether it was written without point and exponent.
    is_whole: bool,
}

impl Decimal {
    /// The number at the start of `bytes`, with the decimal mark `point`, and its length; at least one byte must follow it.
    ///
    /// `None` if it has too many digits or is not a number.
    #[inline(always)]
    pub fn read(bytes: &[u8], point: u8) -> Option<(Self, usize)> {
        let sign = *bytes.first()?;
        let mut at = usize::from(sign == b'-' || sign == b'+');
        let mut mantissa = 0;
        let n_whole = digits(&bytes[at..], &mut mantissa)?;
        at += n_whole;
        // Leading zeros don't count, but more digits than fit may have wrapped around to 0.
        let mut n_significant = if mantissa == 0 && n_whole <= MAX_DIGITS { 0 } else { n_whole };
        let mut exponent = 0;
        let mut is_whole = true;
        let mut n_digits = n_whole;
        if *bytes.get(at)? == point {
            at += 1;
            is_whole = false;
            let start = at;
            if mantissa == 0 {
                while *bytes.get(at)? == b'0' {
                    at += 1;
                }
            }
            let n = digits(&bytes[at..], &mut mantissa)?;
            n_significant += n;
            at += n;
            n_digits += at - start;
            exponent = -i32::try_from(at - start).ok()?;
        }
        if n_digits == 0 || n_significant > MAX_DIGITS {
            return None;
        }
        if *bytes.get(at)? | 0x20 == b'e' {
            is_whole = false;
            at += 1;
            let sign = *bytes.get(at)?;
            at += usize::from(sign == b'-' || sign == b'+');
            let mut power = 0;
            let n = digits(&bytes[at..], &mut power)?;
            if !(1..=4).contains(&n) {
                return None;
            }
            at += n;
            exponent += if sign == b'-' { -(power as i32) } else { power as i32 };
        }
        let is_negative = sign == b'-';
        let number = Decimal { is_negative, mantissa, exponent, is_whole };
        (at < bytes.len()).then_some((number, at))
    }

    /// The number of a whole cell as most files write it: at most 15 digits and a point, without plus sign and exponent. `None` if it
    /// is written differently, or is none.
    #[inline]
    pub fn from_cell(cell: &[u8]) -> Option<Self> {
        // Byte by byte: cells are short, and a copy with room for eight digits after them takes longer.
        let (is_negative, digits) = match cell {
            [b'-', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let (mut mantissa, mut n_digits, mut n_decimals) = (0u64, 0, None);
        for &byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit < 10 {
                mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
                n_digits += 1;
                n_decimals = n_decimals.map(|n| n + 1);
            } else if byte == b'.' && n_decimals.is_none() {
                n_decimals = Some(0);
            } else {
                return None;
            }
        }
        let (exponent, is_whole) = (-n_decimals.unwrap_or(0), n_decimals.is_none());
        let number = Decimal { is_negative, mantissa, exponent, is_whole };
        (1..=MAX_PLAIN_DIGITS).contains(&n_digits).then_some(number)
    }

    /// Whether three digits follow its mark, if it has no exponent.
    #[inline(always)]
    pub fn has_thousandths(self) -> bool {
        self.exponent == -3
    }

    /// The nearest f32; `None` if that needs more precision.
    #[inline(always)]
    pub fn to_f32(self) -> Option<f32> {
        if self.mantissa == 0 {
            return Some(if self.is_negative { -0.0 } else { 0.0 });
        }
        let power = POWERS.get(usize::try_from(self.exponent - MIN_EXPONENT).ok()?)?;
        let value = self.mantissa as f64 * power;
        // Mantissa, power and product are each off by half a unit in their last place at most: `value` by less than 4. If the
        // point between two neighboring f32 is no nearer than that, both it and the true number round to the same one.
        let from_middle = (value.to_bits() & 0x1fff_ffff).abs_diff(0x1000_0000);
        let is_normal = (1.2e-38..3.4e38).contains(&value);
        if from_middle <= 4 || !is_normal {
            return None;
        }
        Some(if self.is_negative { -value as f32 } else { value as f32 })
    }

    /// The number as an integer, or the nearest f64; `None` if that needs more precision.
    #[inline(always)]
    pub fn exact(self) -> Option<Exact> {
        if self.is_whole {
            let whole = i128::from(self.mantissa);
            return Some(Exact::from_whole(if self.is_negative { -whole } else { whole }));
        }
        self.to_f64().map(Exact::Double)
    }

    /// The nearest f64; `None` if that needs more precision.
    #[inline(always)]
    pub fn to_f64(self) -> Option<f64> {
        /// Largest power of ten that f64 holds exactly.
        const MAX_EXACT: i32 = 22;
        if self.mantissa > 1 << 53 || self.exponent.abs() > MAX_EXACT {
            return None;
        }
        // Both are exact, so that the result is rounded once.
        let power = POWERS[(self.exponent.abs() - MIN_EXPONENT) as usize];
        let mantissa = self.mantissa as f64;
        let value = if self.exponent < 0 { mantissa / power } else { mantissa * power };
        Some(if self.is_negative { -value } else { value })
    }

    /// The number as an integer if it was written as one.
    #[inline(always)]
    pub fn to_i64(self) -> Option<i64> {
        let value = i64::try_from(self.mantissa).ok().filter(|_| self.is_whole)?;
        Some(if self.is_negative { -value } else { value })
    }
}

/// Appends the digits at the start of `bytes` to `number`, modulo 2^64, and returns their count; `None` at the end of `bytes`.
#[inline(always)]
fn digits(bytes: &[u8], number: &mut u64) -> Option<usize> {
    const SHIFTS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
    let mut n = 0;
    loop {
        // Each byte becomes its digit; other bytes become 10 or more and set the high bit. A carry out of such a byte only
        // reaches later ones.
        let values = u64::from_le_bytes(*bytes.get(n..)?.first_chunk()?) ^ 0x3030_3030_3030_3030;
        let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
        let count = (others.trailing_zeros() / 8) as usize;
        if count == 8 {
            *number = number.wrapping_mul(100_000_000).wrapping_add(eight(values));
            n += 8;
            continue;
        }
        if count > 0 {
            // Pad with leading zeros.
            let values = values << (8 * (8 - count));
            *number = number.wrapping_mul(SHIFTS[count]).wrapping_add(eight(values));
        }
        return Some(n + count);
    }
}

/// The number of eight digits, the first in the lowest byte.
#[inline(always)]
fn eight(digits: u64) -> u64 {
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let high = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let low = ((pairs >> 16) & PAIRS).wrapping_mul(1 + (10_000 << 32));
    high.wrapping_add(low) >> 32
}

/// The exact value of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Exact {
    /// An integer of which `per_unit` are 1: times may count nanoseconds.
    Whole {
        /// Count of units.
        value: i64,
        /// Units per 1.
        per_unit: i64,
    },
    /// A whole number beyond i64.
    Unsigned(u64),
    /// A value that f64 holds, or the nearest to it.
    Double(f64),
}

impl Exact {
    /// Result of [`per_unit`](Self::per_unit) for whole numbers beyond i64.
    pub const UNSIGNED: i64 = 0;

    /// A whole number; one beyond i64 and u64 is rounded.
    pub fn from_whole(whole: i128) -> Self {
        let unsigned = || u64::try_from(whole).map_or(Exact::Double(whole as f64), Exact::Unsigned);
        i64::try_from(whole).map_or_else(|_| unsigned(), |value| Exact::Whole { value, per_unit: 1 })
    }

    /// The value minus `origin`: integers minus a whole number are not rounded on the way.
    #[inline]
    pub fn less(self, origin: f64) -> f64 {
        match self {
            Exact::Double(value) => value - origin,
            Exact::Unsigned(value) => whole_less(value.into(), origin),
            // Without divisions, which take longer than the rest.
            Exact::Whole { value, per_unit: 1 } => whole_less(value.into(), origin),
            Exact::Whole { value, per_unit } => {
                let part = value.rem_euclid(per_unit) as f64 / per_unit as f64;
                whole_less(value.div_euclid(per_unit).into(), origin) + part
            }
        }
    }

    /// Integers per 1; `None` for f64, [`UNSIGNED`](Self::UNSIGNED) beyond i64.
    pub fn per_unit(self) -> Option<i64> {
        match self {
            Exact::Whole { per_unit, .. } => Some(per_unit),
            Exact::Unsigned(_) => Some(Self::UNSIGNED),
            Exact::Double(_) => None,
        }
    }

    /// The value as a whole number of u64, if it is one; 0 for NaN.
    pub fn unsigned(self) -> Option<u64> {
        const END: f64 = 2.0 * (1u64 << 63) as f64;
        match self {
            Exact::Unsigned(value) => Some(value),
            Exact::Whole { value, per_unit: 1 } => value.try_into().ok(),
            Exact::Whole { .. } => None,
            Exact::Double(value) if value.is_nan() => Some(0),
            Exact::Double(value) => {
                (value.fract() == 0.0 && (0.0..END).contains(&value)).then_some(value as u64)
            }
        }
    }

    /// The value as an integer of which `per_unit` are 1, if it is one; 0 for NaN.
    pub fn whole(self, per_unit: i64) -> Option<i64> {
        const MAX: f64 = (1u64 << 63) as f64;
        let units = match self {
            Exact::Whole { value, per_unit: of_value } if of_value == per_unit => return Some(value),
            Exact::Whole { value, per_unit: 1 } => value,
            Exact::Whole { .. } | Exact::Unsigned(_) => return None,
            Exact::Double(value) if value.is_nan() => 0,
            Exact::Double(value) if value.fract() == 0.0 && (-MAX..MAX).contains(&value) => value as i64,
            Exact::Double(_) => return None,
        };
        units.checked_mul(per_unit)
    }
}

/// Whether `value` is what the shortest decimal notation of its f32 says.
pub fn is_short(single: f32, value: f64) -> bool {
    single.is_nan() || f64::from(single) == value || single.to_string().parse() == Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<(Option<f32>, Option<i64>)> {
        let padded = format!("{text},\0\0\0\0\0\0\0\0");
        let (number, len) = Decimal::read(padded.as_bytes(), b'.')?;
        (len == text.len()).then(|| (number.to_f32(), number.to_i64()))
    }

    /// The exact value is the standard library's i64 or f64.
    fn check_exact(text: &str) {
        let padded = format!("{text},\0\0\0\0\0\0\0\0");
        let Some((number, _)) = Decimal::read(padded.as_bytes(), b'.') else { return };
        if let Some(got) = number.exact() {
            let want = match text.parse() {
                Ok(whole) => Exact::from_whole(whole),
                Err(_) => Exact::Double(text.parse().unwrap()),
            };
            assert_eq!(got, want, "{text}");
        }
    }

    /// The fast path agrees with the standard library.
    fn check(text: &str) {
        check_exact(text);
        let Some((single, whole)) = read(text) else { return };
        let want: f32 = text.parse().unwrap();
        if let Some(got) = single {
            assert_eq!(got.to_bits(), want.to_bits(), "{text}");
        }
        if let Some(got) = whole {
            assert_eq!(Ok(got), text.parse(), "{text}");
        }
    }

    #[test]
    fn usual_numbers_are_read_at_once() {
        for text in
            ["0", "-0", "+7", "12345678", "123456789", "0.123456", "-12.5", ".5", "5.", "1e3", "1.5E-05"]
        {
            let single = read(text).and_then(|(single, _)| single);
            assert_eq!(single.map(f32::to_bits), Some(text.parse::<f32>().unwrap().to_bits()), "{text}");
        }
        for text in ["0.8444218515250481", "0.00038075906433424102", "1.000000000000000056e-01"] {
            assert!(read(text).is_some_and(|(single, _)| single.is_some()), "{text}");
        }
        assert_eq!(read("-42"), Some((Some(-42.0), Some(-42))));
        assert_eq!(read("4.0").map(|(_, whole)| whole), Some(None));
        for text in ["", "-", ".", "+.", "e5", "1e", "1e+", "1 2", "x", "1x", "--1", "0x10", "1_0", "1.5.5"] {
            assert_eq!(read(text), None, "{text}");
        }
        // More digits than a u64 holds.
        for text in [
            "18446744073709551616",
            "36893488147419103232",
            "18446744073709551616.5",
            "184467440737095516160e-1",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        // Halfway between two f32, or too close to it.
        for text in ["16777217", "1e-45", "1e39", "3.5e38", "1.00000005960464477539"] {
            assert!(read(text).is_none_or(|(single, _)| single.is_none()), "{text}");
            check(text);
        }
    }

    #[test]
    fn usual_cells_are_plain() {
        for text in ["0", "-12", "3.25", "-0.000001", "123456789012345", "-12345678.9012345", ".5", "5."] {
            assert!(Decimal::from_cell(text.as_bytes()).is_some(), "{text}");
        }
        for text in ["", "-", ".", "1e5", "+1", "1,5", " 1", "1 ", "1234567890123456", "1.2.3", "nan", "1\0"]
        {
            assert!(Decimal::from_cell(text.as_bytes()).is_none(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn numbers_are_those_of_the_standard_library(text in "[+-]?[0-9]{0,12}(\\.[0-9]{0,20})?([eE][+-]?[0-9]{1,2})?") {
            if text.parse::<f32>().is_ok() { check(&text) } else { prop_assert_eq!(read(&text), None) }
        }

        #[test]
        fn cells_are_those_of_the_standard_library(text in "-?[0-9]{0,17}\\.?[0-9]{0,17}|[-+.e0-9x]{0,8}") {
            if let Some(number) = Decimal::from_cell(text.as_bytes()) {
                let double = number.to_f64().unwrap();
                prop_assert_eq!(double.to_bits(), text.parse::<f64>().unwrap().to_bits());
                prop_assert_eq!(number.to_i64(), text.parse::<i64>().ok());
            }
        }

        #[test]
        fn no_number_of_digits_wraps(
            n_wraps in 1u128..1 << 40,
            more in 0u128..3,
            behind in "(\\.[0-9]{0,30})?([eE]-?[0-9]{1,2})?",
            zeros in 0usize..30,
        ) {
            let number = (n_wraps << 64) + more;
            check(&format!("{number}{behind}"));
            check(&format!("{}{number}{behind}", "0".repeat(zeros)));
            check(&format!("-{}{}{behind}", "0".repeat(zeros), number >> 70));
        }

        #[test]
        fn long_numbers_are_those_of_the_standard_library(text in "[+-]?[0-9]{0,60}(\\.[0-9]{0,60})?([eE][+-]?[0-9]{1,3})?") {
            if text.parse::<f32>().is_ok() { check(&text) } else { prop_assert_eq!(read(&text), None) }
        }

        #[test]
        fn neighbors_of_midpoints_are_rounded_right(bits in 0u32..0x7f7f_ffff, nudge in -3i64..4, places in 1usize..18) {
            let middle = (f64::from(f32::from_bits(bits)) + f64::from(f32::from_bits(bits + 1))) / 2.0;
            let near = f64::from_bits(middle.to_bits().wrapping_add_signed(nudge));
            check(&format!("{near:.places$e}"));
            check(&near.to_string());
        }
    }
}
