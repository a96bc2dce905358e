//! The type that holds the values of a column in all files of a table: never narrower than one of theirs.

use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, TimeUnit};

/// Digits of an integer of 64 bits.
const DIGITS_OF_I64: u8 = 20;
/// Most digits of a decimal of 128 bits.
const MAX_DIGITS: u8 = 38;

/// The type that holds the values of both; `None` if there is none. Whether a value is exact in it is checked when it is converted.
pub(super) fn common_type(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType as T;
    if a == b {
        return Some(a.clone());
    }
    if let (Some((digits_a, scale_a)), Some((digits_b, scale_b))) = (decimal(a), decimal(b))
        && (a.is_decimal() || b.is_decimal())
    {
        let scale = scale_a.max(scale_b);
        let whole = (i16::from(digits_a) - i16::from(scale_a)).max(i16::from(digits_b) - i16::from(scale_b));
        let digits = u8::try_from(whole + i16::from(scale)).ok().filter(|digits| *digits <= MAX_DIGITS)?;
        return Some(T::Decimal128(digits, scale));
    }
    match (a, b) {
        (T::Null, other) | (other, T::Null) => Some(other.clone()),
        (a, b) if is_text(values(a)) && is_text(values(b)) => Some(T::LargeUtf8),
        (a, b) if is_whole(values(a)) && is_whole(values(b)) => {
            let both = [values(a), values(b)];
            let are_unsigned = both.iter().all(|of| of.is_unsigned_integer() || **of == T::Boolean);
            Some(if are_unsigned && both.contains(&&T::UInt64) { T::UInt64 } else { T::Int64 })
        }
        (a, b) if is_number(values(a)) && is_number(values(b)) => Some(T::Float64),
        (T::Timestamp(a, zone_a), T::Timestamp(b, zone_b)) => {
            let has_zone = zone_a.is_some() || zone_b.is_some();
            let zone = if zone_a == zone_b { zone_a.clone() } else { has_zone.then(|| "UTC".into()) };
            Some(T::Timestamp(finer(*a, *b), zone))
        }
        (T::Date32 | T::Date64, T::Date32 | T::Date64) => Some(T::Timestamp(TimeUnit::Millisecond, None)),
        (T::Date32, T::Timestamp(unit, zone)) | (T::Timestamp(unit, zone), T::Date32) => {
            Some(T::Timestamp(*unit, zone.clone()))
        }
        (T::Date64, T::Timestamp(unit, zone)) | (T::Timestamp(unit, zone), T::Date64) => {
            Some(T::Timestamp(finer(*unit, TimeUnit::Millisecond), zone.clone()))
        }
        (T::Time32(a) | T::Time64(a), T::Time32(b) | T::Time64(b)) => {
            Some(T::Time64(finer(finer(*a, *b), TimeUnit::Microsecond)))
        }
        (T::Duration(a), T::Duration(b)) => Some(T::Duration(finer(*a, *b))),
        (T::List(a), T::List(b)) => Some(T::List(common_element(a, b)?)),
        (T::LargeList(a) | T::List(a), T::LargeList(b) | T::List(b)) => {
            Some(T::LargeList(common_element(a, b)?))
        }
        (T::FixedSizeList(a, len), T::FixedSizeList(b, other)) if len == other => {
            Some(T::FixedSizeList(common_element(a, b)?, *len))
        }
        _ => None,
    }
}

fn common_element(a: &FieldRef, b: &FieldRef) -> Option<FieldRef> {
    let element = common_type(a.data_type(), b.data_type())?;
    Some(Arc::new(a.as_ref().clone().with_data_type(element).with_nullable(true)))
}

/// Whether times have a zone in exactly one of two types.
pub(super) fn zones_differ(a: &DataType, b: &DataType) -> bool {
    match (a, b) {
        (DataType::Timestamp(_, a), DataType::Timestamp(_, b)) => a.is_some() != b.is_some(),
        _ => false,
    }
}

/// Digits, and those after the point, of decimals and integers.
fn decimal(of: &DataType) -> Option<(u8, i8)> {
    match of {
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale) => Some((*digits, *scale)),
        of if is_whole(of) => Some((DIGITS_OF_I64, 0)),
        _ => None,
    }
}

fn is_text(of: &DataType) -> bool {
    matches!(of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// The type of the values of a dictionary.
fn values(of: &DataType) -> &DataType {
    match of {
        DataType::Dictionary(_, values) => values,
        other => other,
    }
}

fn is_number(of: &DataType) -> bool {
    is_whole(of) || of.is_floating()
}

fn is_whole(of: &DataType) -> bool {
    of.is_integer() || *of == DataType::Boolean
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    if per_second(a) > per_second(b) { a } else { b }
}

pub(super) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::Field;

    use super::*;

    #[test]
    fn common_types_are_never_narrower() {
        use DataType as T;
        use TimeUnit::{Microsecond, Millisecond, Nanosecond};
        let dictionary = |key: T, of: T| T::Dictionary(Box::new(key), Box::new(of));
        let field = |of: T| Arc::new(Field::new("item", of, true));
        for (a, b, expected) in [
            (T::Int64, T::Float64, Some(T::Float64)),
            (T::Null, T::Int8, Some(T::Int8)),
            (T::Int8, T::Boolean, Some(T::Int64)),
            (T::UInt64, T::UInt8, Some(T::UInt64)),
            (T::UInt64, T::Int8, Some(T::Int64)),
            (T::Float16, T::Float32, Some(T::Float64)),
            (T::Decimal128(10, 2), T::Decimal64(8, 4), Some(T::Decimal128(12, 4))),
            (T::Decimal128(38, 0), T::Decimal128(38, 10), None),
            (T::Decimal128(10, 2), T::Int32, Some(T::Decimal128(22, 2))),
            (T::Decimal128(10, 2), T::Float64, None),
            (
                T::Timestamp(Millisecond, None),
                T::Timestamp(Nanosecond, None),
                Some(T::Timestamp(Nanosecond, None)),
            ),
            (
                T::Timestamp(Microsecond, Some("Europe/Berlin".into())),
                T::Timestamp(Microsecond, None),
                Some(T::Timestamp(Microsecond, Some("UTC".into()))),
            ),
            (T::Date32, T::Timestamp(Millisecond, None), Some(T::Timestamp(Millisecond, None))),
            (dictionary(T::Int8, T::Utf8), dictionary(T::Int16, T::LargeUtf8), Some(T::LargeUtf8)),
            (dictionary(T::Int8, T::Utf8), T::Utf8, Some(T::LargeUtf8)),
            (dictionary(T::Int8, T::Float32), T::Int64, Some(T::Float64)),
            (dictionary(T::Int8, T::Date32), T::Date32, None),
            (T::Utf8, T::Int64, None),
            (
                T::List(field(T::Int64)),
                T::LargeList(field(T::Float32)),
                Some(T::LargeList(field(T::Float64))),
            ),
            (T::Int64, T::Timestamp(Millisecond, None), None),
        ] {
            assert_eq!(common_type(&a, &b), expected, "{a} and {b}");
            assert_eq!(common_type(&b, &a), expected, "{b} and {a}");
        }
    }
}
