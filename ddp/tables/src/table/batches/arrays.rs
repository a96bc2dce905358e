//! Converts Arrow arrays of any type to numbers and texts.

use std::collections::HashMap;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{self, ArrowPrimitiveType, DecimalType};
use arrow_array::{Array, ArrayRef, downcast_primitive_array};
use arrow_schema::{DataType, TimeUnit};
use ddp::data::labels::bool_text;
use ddp_kernels::cpu::columns_to_rows;

use crate::values::number::Exact;
use crate::values::time;

/// Rows that are written while they are in the CPU's cache.
const TILE_ROWS: usize = 16;

/// Writes columns of `values`, `(feature, start)`, to rows.
pub(super) fn put_columns(values: &[f32], places: &[(usize, usize)], rows: &mut [f32], n_features: usize) {
    let n = rows.len() / n_features.max(1);
    let are_all = places.len() == n_features;
    if are_all && places.iter().enumerate().all(|(at, place)| *place == (at, at * n)) {
        return columns_to_rows(&values[..n_features * n], n_features, rows);
    }
    for start in (0..n).step_by(TILE_ROWS) {
        let tile = start..(start + TILE_ROWS).min(n);
        for &(feature, at) in places {
            for row in tile.clone() {
                rows[row * n_features + feature] = values[at + row];
            }
        }
    }
}

/// The row of the first missing value.
pub(super) fn first_null(array: &dyn Array) -> Option<usize> {
    let nulls = array.logical_nulls()?;
    (nulls.null_count() > 0).then(|| (0..array.len()).find(|&row| nulls.is_null(row)))?
}

/// The list in a row; `None` for a missing one.
pub(super) fn list(array: &dyn Array, row: usize) -> Option<ArrayRef> {
    match array.data_type() {
        _ if array.is_null(row) => None,
        DataType::List(_) => Some(array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => Some(array.as_list::<i64>().value(row)),
        _ => Some(array.as_fixed_size_list().value(row)),
    }
}

/// The values as f32, rounded to nearest; NaN for missing ones.
pub(super) fn to_f32(array: &dyn Array, out: &mut [f32]) {
    macro_rules! numbers {
        ($t:ident, |$v:ident| $value:expr) => {{
            let array = array.as_primitive::<types::$t>();
            for (&$v, out) in array.values().iter().zip(&mut *out) {
                *out = $value;
            }
        }};
    }
    match array.data_type() {
        DataType::Null => out.fill(f32::NAN),
        DataType::Boolean => {
            let values = array.as_boolean().values();
            values.iter().zip(&mut *out).for_each(|(value, out)| *out = f32::from(u8::from(value)));
        }
        DataType::Int8 => numbers!(Int8Type, |v| f32::from(v)),
        DataType::Int16 => numbers!(Int16Type, |v| f32::from(v)),
        DataType::Int32 => numbers!(Int32Type, |v| v as f32),
        DataType::Int64 => numbers!(Int64Type, |v| v as f32),
        DataType::UInt8 => numbers!(UInt8Type, |v| f32::from(v)),
        DataType::UInt16 => numbers!(UInt16Type, |v| f32::from(v)),
        DataType::UInt32 => numbers!(UInt32Type, |v| v as f32),
        DataType::UInt64 => numbers!(UInt64Type, |v| v as f32),
        DataType::Float16 => numbers!(Float16Type, |v| v.to_f32()),
        DataType::Float32 => numbers!(Float32Type, |v| v),
        DataType::Float64 => numbers!(Float64Type, |v| v as f32),
        DataType::Decimal32(_, scale) => numbers!(Decimal32Type, |v| decimal(v.into(), *scale) as f32),
        DataType::Decimal64(_, scale) => numbers!(Decimal64Type, |v| decimal(v.into(), *scale) as f32),
        DataType::Decimal128(_, scale) => numbers!(Decimal128Type, |v| decimal(v, *scale) as f32),
        DataType::Decimal256(precision, scale) => numbers!(Decimal256Type, |v| {
            // Wider than any native integer.
            let text = types::Decimal256Type::format_decimal(v, *precision, *scale);
            text.parse().expect("a decimal number")
        }),
        DataType::Date32
        | DataType::Date64
        | DataType::Timestamp(..)
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Duration(_) => {
            for (row, out) in out.iter_mut().enumerate() {
                *out = seconds(array, row) as f32;
            }
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let mut values = vec![f32::NAN; dictionary.values().len()];
            to_f32(dictionary.values(), &mut values);
            let value = |key: Option<usize>| key.and_then(|key| values.get(key)).copied().unwrap_or(f32::NAN);
            keys(array, |row, key| out[row] = value(key));
        }
        other => unreachable!("columns of type {other} are refused when the file is opened"),
    }
    if let Some(nulls) = array.nulls().filter(|nulls| nulls.null_count() > 0) {
        for (row, out) in out.iter_mut().enumerate() {
            if nulls.is_null(row) {
                *out = f32::NAN;
            }
        }
    }
}

/// The f64 nearest to a decimal of this scale, as its text is read: one division rounds once where f64 holds both numbers.
#[inline]
fn decimal(value: i128, scale: i8) -> f64 {
    if value.unsigned_abs() <= 1 << 53 && (0..=22).contains(&scale) {
        return value as f64 / 10f64.powi(scale.into());
    }
    format!("{value}e{}", -i32::from(scale)).parse().expect("a number")
}

/// The exact values; `None` for a type whose values f32 holds. Missing ones have no meaning.
pub(super) fn exact(array: &dyn Array) -> Option<Vec<Exact>> {
    macro_rules! numbers {
        ($t:ident, |$v:ident| $value:expr) => {
            array.as_primitive::<types::$t>().values().iter().map(|&$v| $value).collect()
        };
    }
    Some(match array.data_type() {
        DataType::Int32 => numbers!(Int32Type, |v| Exact::from_whole(v.into())),
        DataType::Int64 => numbers!(Int64Type, |v| Exact::from_whole(v.into())),
        DataType::UInt32 => numbers!(UInt32Type, |v| Exact::from_whole(v.into())),
        DataType::UInt64 => numbers!(UInt64Type, |v| Exact::from_whole(v.into())),
        DataType::Float64 => numbers!(Float64Type, |v| Exact::Double(v)),
        DataType::Decimal32(_, scale) => {
            numbers!(Decimal32Type, |v| Exact::Double(decimal(v.into(), *scale)))
        }
        DataType::Decimal64(_, scale) => {
            numbers!(Decimal64Type, |v| Exact::Double(decimal(v.into(), *scale)))
        }
        DataType::Decimal128(_, scale) => numbers!(Decimal128Type, |v| Exact::Double(decimal(v, *scale))),
        DataType::Decimal256(precision, scale) => numbers!(Decimal256Type, |v| {
            let text = types::Decimal256Type::format_decimal(v, *precision, *scale);
            Exact::Double(text.parse().expect("a decimal number"))
        }),
        DataType::Date32
        | DataType::Date64
        | DataType::Timestamp(..)
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Duration(_) => {
            let ticks = (0..array.len()).map(|row| ticks(array, row));
            ticks.map(|(value, per_unit)| Exact::Whole { value, per_unit }).collect()
        }
        DataType::Dictionary(..) => {
            let values = exact(array.as_any_dictionary().values())?;
            let mut out = vec![Exact::Double(f64::NAN); array.len()];
            keys(array, |row, key| {
                if let Some(value) = key.and_then(|key| values.get(key)) {
                    out[row] = *value;
                }
            });
            out
        }
        _ => return None,
    })
}

/// Integers below are exact in f64.
pub(super) const MAX_EXACT: f64 = (1u64 << 53) as f64;

/// The values as f64. Missing ones have no meaning.
pub(super) fn to_f64(array: &dyn Array) -> Vec<f64> {
    if let Some(array) = array.as_primitive_opt::<types::Float64Type>() {
        return array.values().to_vec();
    }
    if let Some(values) = exact(array) {
        return values.into_iter().map(|value| value.less(0.0)).collect();
    }
    let mut singles = vec![0.0; array.len()];
    to_f32(array, &mut singles);
    singles.into_iter().map(f64::from).collect()
}

/// Seconds of a date, time or duration; since 1970 for a date. Missing ones have no meaning.
fn seconds(array: &dyn Array, row: usize) -> f64 {
    let (seconds, nanoseconds) = seconds_and_nanoseconds(array, row);
    seconds as f64 + f64::from(nanoseconds) / 1e9
}

/// Whole seconds and the nanoseconds after them of a date, time or duration.
pub(super) fn seconds_and_nanoseconds(array: &dyn Array, row: usize) -> (i64, u32) {
    let (value, per_second) = ticks(array, row);
    let rest = value.rem_euclid(per_second) * (1_000_000_000 / per_second);
    (value.div_euclid(per_second), rest as u32)
}

/// Whether a date is beyond the calendar or at an end of its type, as PostgreSQL and DuckDB write infinity.
pub(super) fn is_infinite(array: &dyn Array, row: usize) -> bool {
    let (value, per_second) = ticks(array, row);
    let days = time::DAYS.map(i64::from);
    !(days[0]..=days[1]).contains(&value.div_euclid(86_400 * per_second))
        || value.unsigned_abs() >= i64::MAX as u64
}

/// A date, time or duration in a unit of its type, and the number of units per second.
pub(super) fn ticks(array: &dyn Array, row: usize) -> (i64, i64) {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    macro_rules! value {
        ($t:ident) => {
            i64::from(array.as_primitive::<types::$t>().value(row))
        };
    }
    match array.data_type() {
        DataType::Date32 => (86_400 * value!(Date32Type), 1),
        DataType::Date64 => (value!(Date64Type), 1_000),
        DataType::Time32(Second) => (value!(Time32SecondType), 1),
        DataType::Time32(_) => (value!(Time32MillisecondType), 1_000),
        DataType::Time64(Microsecond) => (value!(Time64MicrosecondType), 1_000_000),
        DataType::Time64(_) => (value!(Time64NanosecondType), 1_000_000_000),
        DataType::Timestamp(Second, _) => (value!(TimestampSecondType), 1),
        DataType::Timestamp(Millisecond, _) => (value!(TimestampMillisecondType), 1_000),
        DataType::Timestamp(Microsecond, _) => (value!(TimestampMicrosecondType), 1_000_000),
        DataType::Timestamp(Nanosecond, _) => (value!(TimestampNanosecondType), 1_000_000_000),
        DataType::Duration(Second) => (value!(DurationSecondType), 1),
        DataType::Duration(Millisecond) => (value!(DurationMillisecondType), 1_000),
        DataType::Duration(Microsecond) => (value!(DurationMicrosecondType), 1_000_000),
        DataType::Duration(Nanosecond) => (value!(DurationNanosecondType), 1_000_000_000),
        other => unreachable!("{other} is not a time"),
    }
}

/// The parts of dates, seven per row; NaN for a missing date.
pub(super) fn to_date_parts(array: &dyn Array, out: &mut [f32]) {
    if array.logical_null_count() == array.len() {
        // A column without values may have any type.
        return out.fill(f32::NAN);
    }
    let write = |out: &mut [f32], parts: [f32; 7]| out.copy_from_slice(&parts);
    let rows = out.chunks_exact_mut(time::PARTS.len()).enumerate();
    match array.data_type() {
        DataType::Dictionary(..) => {
            let values = array.as_any_dictionary().values();
            let mut places = vec![None; array.len()];
            keys(array, |row, key| places[row] = key.filter(|&key| !values.is_null(key)));
            for (row, out) in rows {
                write(out, places[row].map_or([f32::NAN; 7], |key| time::parts(seconds(values, key))));
            }
        }
        _ => {
            for (row, out) in rows {
                let is_null = array.is_null(row);
                write(out, if is_null { [f32::NAN; 7] } else { time::parts(seconds(array, row)) });
            }
        }
    }
}

/// Integers as i64, other numbers as f64; missing values are 0.
pub(super) enum LabelValues {
    Integers(Vec<i64>),
    /// Integers, some of which exceed i64.
    Unsigned(Vec<u64>),
    Floats(Vec<f64>),
    /// The number of each row's text, from 1; 0 for empty ones.
    Texts {
        codes: Vec<u32>,
        texts: Vec<String>,
    },
}

/// The values as class labels.
pub(super) fn label_values(array: &dyn Array) -> LabelValues {
    macro_rules! integers {
        ($t:ident) => {{
            let values = array.as_primitive::<types::$t>().values();
            LabelValues::Integers(values.iter().map(|&v| v.into()).collect())
        }};
    }
    match array.data_type() {
        DataType::Boolean => LabelValues::Texts {
            codes: array.as_boolean().values().iter().map(|value| 1 + u32::from(value)).collect(),
            texts: [false, true].map(|value| bool_text(value).to_owned()).into(),
        },
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let (codes, texts) = distinct_texts(array);
            LabelValues::Texts { codes, texts }
        }
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::UInt8 => integers!(UInt8Type),
        DataType::UInt16 => integers!(UInt16Type),
        DataType::UInt32 => integers!(UInt32Type),
        DataType::UInt64 => {
            let values = array.as_primitive::<types::UInt64Type>().values();
            let integers: Result<Vec<i64>, _> = values.iter().map(|&value| value.try_into()).collect();
            integers.map_or_else(|_| LabelValues::Unsigned(values.to_vec()), LabelValues::Integers)
        }
        DataType::Float64 => {
            LabelValues::Floats(array.as_primitive::<types::Float64Type>().values().to_vec())
        }
        DataType::Dictionary(..) => match label_values(array.as_any_dictionary().values()) {
            LabelValues::Integers(values) => LabelValues::Integers(spread(array, &values)),
            LabelValues::Unsigned(values) => LabelValues::Unsigned(spread(array, &values)),
            LabelValues::Floats(values) => LabelValues::Floats(spread(array, &values)),
            LabelValues::Texts { codes, texts } => LabelValues::Texts { codes: spread(array, &codes), texts },
        },
        DataType::Decimal32(_, 0) => integers!(Decimal32Type),
        DataType::Decimal64(_, 0) => integers!(Decimal64Type),
        DataType::Decimal128(_, 0) => {
            let values = array.as_primitive::<types::Decimal128Type>().iter().map(Option::unwrap_or_default);
            let integers: Result<Vec<i64>, _> = values.map(i64::try_from).collect();
            integers.map_or_else(|_| LabelValues::Floats(to_f64(array)), LabelValues::Integers)
        }
        _ => LabelValues::Floats(to_f64(array)),
    }
}

/// The number of each row's text, from 1, 0 for a missing one; and the texts by their numbers.
pub(super) fn distinct_texts(array: &dyn Array) -> (Vec<u32>, Vec<String>) {
    let (mut codes, mut texts, mut numbers) = (vec![0; array.len()], Vec::new(), HashMap::new());
    let mut code = |text: &str| match numbers.get(text) {
        Some(&number) => number,
        None => {
            texts.push(text.to_owned());
            let number = texts.len() as u32;
            numbers.insert(text.to_owned(), number);
            number
        }
    };
    categories(array, &mut code, &mut |row, code| codes[row] = code);
    (codes, texts)
}

/// The values of a dictionary, one per row.
fn spread<T: Copy + Default>(array: &dyn Array, values: &[T]) -> Vec<T> {
    let mut out = vec![T::default(); array.len()];
    keys(array, |row, key| out[row] = key.and_then(|key| values.get(key)).copied().unwrap_or_default());
    out
}

/// Calls `take` with each row and its index in the dictionary, `None` for a missing value.
pub(super) fn keys(array: &dyn Array, mut take: impl FnMut(usize, Option<usize>)) {
    let dictionary = array.as_any_dictionary();
    let is_empty = dictionary.values().is_empty();
    let keys = if is_empty { vec![0; array.len()] } else { dictionary.normalized_keys() };
    let nulls = dictionary.keys().nulls();
    for (row, key) in keys.into_iter().enumerate() {
        let is_null = is_empty || nulls.is_some_and(|nulls| nulls.is_null(row));
        take(row, (!is_null).then_some(key));
    }
}

/// Calls `code` with the text of each category, and `take` with each row and the resulting code; 0 for a missing value.
pub(super) fn categories(
    array: &dyn Array,
    code: &mut dyn FnMut(&str) -> u32,
    take: &mut dyn FnMut(usize, u32),
) {
    macro_rules! texts {
        ($array:expr) => {
            for (row, text) in $array.iter().enumerate() {
                take(row, text.map(str::trim).filter(|text| !text.is_empty()).map_or(0, &mut *code));
            }
        };
    }
    match array.data_type() {
        DataType::Utf8 => texts!(array.as_string::<i32>()),
        DataType::LargeUtf8 => texts!(array.as_string::<i64>()),
        DataType::Utf8View => texts!(array.as_string_view()),
        DataType::Dictionary(..) => {
            // Only values that occur in a row are added.
            let values = array.as_any_dictionary().values();
            let mut is_used = vec![false; values.len()];
            keys(array, |_, key| key.into_iter().for_each(|key| is_used[key] = true));
            let mut codes = vec![0; values.len()];
            for (key, place) in codes.iter_mut().enumerate().filter(|(key, _)| is_used[*key]) {
                categories(&values.slice(key, 1), code, &mut |_, code| *place = code);
            }
            keys(array, |row, key| take(row, key.map_or(0, |key| codes[key])));
        }
        DataType::Null => (0..array.len()).for_each(|row| take(row, 0)),
        DataType::Boolean => {
            for (row, value) in array.as_boolean().iter().enumerate() {
                take(row, value.map_or(0, |value| code(bool_text(value))));
            }
        }
        _ => downcast_primitive_array!(
            array => numbers(array, code, take),
            other => unreachable!("columns of type {other} are refused when the file is opened")
        ),
    }
}

/// Numbers in their usual notation.
fn numbers<T: ArrowPrimitiveType>(
    array: &arrow_array::PrimitiveArray<T>,
    code: &mut dyn FnMut(&str) -> u32,
    take: &mut dyn FnMut(usize, u32),
) {
    let mut last: Option<(T::Native, u32)> = None;
    for (row, value) in array.iter().enumerate() {
        let number = match (value, last) {
            (None, _) => 0,
            // pandas writes missing values as NaN.
            (Some(value), _) if value.partial_cmp(&value).is_none() => 0,
            (Some(value), Some((same, number))) if value == same => number,
            (Some(value), _) => {
                let number = code(&text(array.data_type(), value));
                last = Some((value, number));
                number
            }
        };
        take(row, number);
    }
}

fn text<T: std::fmt::Debug>(data_type: &DataType, value: T) -> String {
    let text = format!("{value:?}");
    // pandas stores integers with missing values as floats.
    if data_type.is_floating() { text.strip_suffix(".0").map_or(text.clone(), str::to_owned) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_rounded_once() {
        for (value, scale, text) in [
            (100_123_456_789_012_345_678, 18, "100.123456789012345678"),
            (9_007_199_254_740_993, 2, "90071992547409.93"),
            (-15, 1, "-1.5"),
            (7, -2, "700"),
            (123, 30, "1.23e-28"),
        ] {
            assert_eq!(decimal(value, scale), text.parse::<f64>().unwrap(), "{text}");
        }
    }
}
