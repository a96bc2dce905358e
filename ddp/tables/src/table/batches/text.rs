//! Values of Arrow arrays as text, in the notation of CSV files.

use std::io::Write as _;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, types};
use arrow_schema::DataType;

use crate::table::batches::arrays::{is_infinite, keys, seconds_and_nanoseconds, ticks};
use crate::values::time;

/// Appends a value as text: nothing for a missing one, and for NaN, which pandas writes for missing ones; `infinity` for a date beyond the
/// calendar.
pub(super) fn put(array: &dyn Array, row: usize, out: &mut Vec<u8>) {
    macro_rules! number {
        ($t:ident) => {{
            // Writing to a vector does not fail.
            let _ = write!(out, "{}", array.as_primitive::<types::$t>().value(row));
        }};
    }
    macro_rules! float {
        ($value:expr) => {{
            let value = $value;
            if !value.is_nan() {
                let _ = write!(out, "{value}");
            }
        }};
    }
    macro_rules! decimal {
        ($t:ident) => {
            out.extend_from_slice(array.as_primitive::<types::$t>().value_as_string(row).as_bytes())
        };
    }
    if array.is_null(row) {
        return;
    }
    match array.data_type() {
        DataType::Boolean => {
            out.extend_from_slice(if array.as_boolean().value(row) { b"true" } else { b"false" });
        }
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float16 => float!(array.as_primitive::<types::Float16Type>().value(row).to_f32()),
        DataType::Float32 => float!(array.as_primitive::<types::Float32Type>().value(row)),
        DataType::Float64 => float!(array.as_primitive::<types::Float64Type>().value(row)),
        DataType::Decimal32(..) => decimal!(Decimal32Type),
        DataType::Decimal64(..) => decimal!(Decimal64Type),
        DataType::Decimal128(..) => decimal!(Decimal128Type),
        DataType::Decimal256(..) => decimal!(Decimal256Type),
        DataType::Utf8 => out.extend_from_slice(array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => out.extend_from_slice(array.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => out.extend_from_slice(array.as_string_view().value(row).as_bytes()),
        of @ (DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)) => {
            let (seconds, nanoseconds) = seconds_and_nanoseconds(array, row);
            let is_date = !matches!(of, DataType::Timestamp(..));
            if is_infinite(array, row) {
                out.extend_from_slice(if seconds < 0 { b"-infinity" } else { b"infinity" });
                return;
            }
            out.extend_from_slice(time::format(seconds, nanoseconds, is_date).as_bytes());
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            let (seconds, nanoseconds) = seconds_and_nanoseconds(array, row);
            out.extend_from_slice(time::format_time(seconds, nanoseconds).as_bytes());
        }
        DataType::Duration(_) => {
            // Exact, also where neither part of a negative one is.
            let (ticks, per_s) = ticks(array, row);
            let (whole, rest) = (ticks.unsigned_abs() / per_s as u64, ticks.unsigned_abs() % per_s as u64);
            let digits = per_s.ilog10() as usize;
            let fraction = if digits == 0 { String::new() } else { format!(".{rest:0digits$}") };
            let sign = if ticks < 0 { "-" } else { "" };
            let text = format!("{sign}{whole}{}", fraction.trim_end_matches('0').trim_end_matches('.'));
            out.extend_from_slice(text.as_bytes());
        }
        DataType::Dictionary(..) => {
            let mut place = None;
            keys(&*array.slice(row, 1), |_, key| place = key);
            if let Some(key) = place {
                put(array.as_any_dictionary().values(), key, out);
            }
        }
        _ => {}
    }
}
