//! Exact values of numbers, of which a model sees the nearest f32.

/// The exact value of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Exact {
    Whole(i64),
    Double(f64),
}

impl Exact {
    /// A whole number; one beyond i64 is rounded.
    pub(crate) fn of_whole(whole: i128) -> Self {
        i64::try_from(whole).map_or(Exact::Double(whole as f64), Exact::Whole)
    }

    /// Whether the value is that of its f32, or missing.
    #[inline]
    pub(crate) fn is(self, single: f32) -> bool {
        match self {
            Exact::Whole(whole) => i128::from(whole) == single as i128,
            Exact::Double(double) => double == f64::from(single) || double.is_nan(),
        }
    }

    /// The value as an integer; 0 for a missing one.
    pub(crate) fn whole(self) -> Option<i64> {
        const MAX: f64 = (1u64 << 63) as f64;
        match self {
            Exact::Whole(whole) => Some(whole),
            Exact::Double(double) if double.is_nan() => Some(0),
            Exact::Double(double) => {
                (double.fract() == 0.0 && (-MAX..MAX).contains(&double)).then_some(double as i64)
            }
        }
    }
}
