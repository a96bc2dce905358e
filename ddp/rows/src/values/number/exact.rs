//! Exact values of numbers, of which a model sees the nearest f32.

use crate::values::element::whole_less;

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
    /// A value that f64 holds, or the nearest to it.
    Double(f64),
}

impl Exact {
    /// A whole number; one beyond i64 is rounded.
    pub fn of_whole(whole: i128) -> Self {
        i64::try_from(whole).map_or(Exact::Double(whole as f64), |value| Exact::Whole { value, per_unit: 1 })
    }

    /// The value minus `origin`: integers minus a whole number are not rounded on the way.
    #[inline]
    pub fn less(self, origin: f64) -> f64 {
        match self {
            Exact::Double(value) => value - origin,
            // Without divisions, which take longer than the rest.
            Exact::Whole { value, per_unit: 1 } => whole_less(value.into(), origin),
            Exact::Whole { value, per_unit } => {
                let part = value.rem_euclid(per_unit) as f64 / per_unit as f64;
                whole_less(value.div_euclid(per_unit).into(), origin) + part
            }
        }
    }

    /// Integers per 1; `None` for f64.
    pub fn per_unit(self) -> Option<i64> {
        if let Exact::Whole { per_unit, .. } = self { Some(per_unit) } else { None }
    }

    /// The value as an integer of which `per_unit` are 1, if it is one; 0 for NaN.
    pub fn whole(self, per_unit: i64) -> Option<i64> {
        const MAX: f64 = (1u64 << 63) as f64;
        let units = match self {
            Exact::Whole { value, per_unit: of_value } if of_value == per_unit => return Some(value),
            Exact::Whole { value, per_unit: 1 } => value,
            Exact::Whole { .. } => return None,
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
