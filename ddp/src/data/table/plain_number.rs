//! Numbers in cells of text as most files write them: a few digits and a point, without exponent.

/// Most digits: with as many, the number and the power of ten are exact in f64.
const MAX_DIGITS: u32 = 15;

/// The number `mantissa / 10^n_decimals`, or its negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlainNumber {
    is_negative: bool,
    mantissa: u64,
    /// `None` for a number without a point.
    n_decimals: Option<u32>,
}

impl PlainNumber {
    /// The number of a cell; `None` if it is written differently, or is none.
    #[inline]
    pub(super) fn read(cell: &[u8]) -> Option<Self> {
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
        (1..=MAX_DIGITS).contains(&n_digits).then_some(PlainNumber { is_negative, mantissa, n_decimals })
    }

    /// The integer, if it was written as one.
    #[inline]
    pub(super) fn whole(self) -> Option<i64> {
        let size = self.mantissa as i64;
        self.n_decimals.is_none().then_some(if self.is_negative { -size } else { size })
    }

    /// The nearest f64.
    #[inline]
    pub(super) fn double(self) -> f64 {
        // Both are exact, so that the result is rounded once.
        let size = self.mantissa as f64 / self.power();
        if self.is_negative { -size } else { size }
    }

    /// Whether the nearest f32, rounded to as many decimals, is the number again.
    #[inline]
    pub(super) fn fits_single(self) -> bool {
        let size = self.mantissa as f64 / self.power();
        let single = f64::from(size as f32);
        single == size
            || (self.n_decimals.is_some() && (single * self.power() - self.mantissa as f64).abs() <= 0.5)
    }

    fn power(self) -> f64 {
        const POWERS: [f64; MAX_DIGITS as usize + 1] =
            [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
        POWERS[self.n_decimals.unwrap_or(0) as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_those_of_the_standard_library(text in "-?[0-9]{0,17}\\.?[0-9]{0,17}|[-+.e0-9x]{0,8}") {
            if let Some(number) = PlainNumber::read(text.as_bytes()) {
                let single = number.double() as f32;
                let shortest = single.to_string();
                let of_single = PlainNumber::read(shortest.as_bytes()).filter(|_| shortest.contains('.'));
                if let Some(of_single) = of_single {
                    prop_assert!(of_single.fits_single(), "{}", single);
                }
                prop_assert_eq!(number.double().to_bits(), text.parse::<f64>().unwrap().to_bits());
                prop_assert_eq!(number.whole(), text.parse::<i64>().ok());
            }
        }
    }

    #[test]
    fn shortest_decimals_of_singles_fit_and_others_do_not() {
        let fits = |text: &str| PlainNumber::read(text.as_bytes()).unwrap().fits_single();
        for text in [
            "0.1",
            "-123456.7",
            "0.12573022",
            "16777216",
            "33554436",
            "1.1132812",
            "1.1132813",
            "123456.789",
            "0.0",
        ] {
            assert!(fits(text), "{text}");
        }
        for text in ["0.123456789", "16777217", "1.11328123", "1700000000.5", "123456.787"] {
            assert!(!fits(text), "{text}");
        }
    }

    #[test]
    fn usual_numbers_are_plain() {
        for text in ["0", "-12", "3.25", "-0.000001", "123456789012345", ".5", "5."] {
            assert!(PlainNumber::read(text.as_bytes()).is_some(), "{text}");
        }
        for text in ["", "-", ".", "1e5", "+1", "1,5", " 1", "1234567890123456", "1.2.3", "nan"] {
            assert!(PlainNumber::read(text.as_bytes()).is_none(), "{text}");
        }
    }
}
