//! Rows between a reader and a writer, with the types that the reader found.

#[cfg(feature = "parquet")]
use arrow_array::ArrayRef;

use crate::data::raw::{RawType, raw_to_f64, raw_to_i128};
use crate::data::table::Texts;

/// Consecutive rows.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(crate) n_rows: usize,
    /// The values of each group of the schema.
    pub(crate) blocks: Vec<Block>,
}

/// Values of consecutive rows in one group of columns.
#[derive(Debug, Clone)]
pub(crate) enum Block {
    Numbers(Numbers),
    Texts {
        texts: Texts,
        nulls: Nulls,
    },
    /// Dates or times, in the unit of the schema.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    Moments {
        values: Vec<i64>,
        nulls: Nulls,
    },
    /// An array of a file of record batches, as it is.
    #[cfg(feature = "parquet")]
    Arrow(ArrayRef),
}

/// Numbers in memory as in a file: `[n_rows, width]`, little-endian.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    pub(crate) raw: RawType,
    pub(crate) bytes: Vec<u8>,
    /// Rows without a value; they hold NaN or 0.
    pub(crate) nulls: Nulls,
}

/// Whether each row lacks a value; empty if none does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nulls(pub(crate) Vec<bool>);

impl Nulls {
    pub(crate) fn is_null(&self, row: usize) -> bool {
        self.0.get(row).copied().unwrap_or(false)
    }

    /// Marks row `row`, the last one so far.
    pub(crate) fn mark(&mut self, row: usize) {
        self.0.resize(row, false);
        self.0.push(true);
    }

    /// The first row without a value.
    pub(crate) fn first(&self) -> Option<usize> {
        self.0.iter().position(|is_null| *is_null)
    }
}

impl Numbers {
    /// Appends the shortest text that parses as value number `index`; nothing for NaN, which marks a missing value.
    pub(crate) fn put(&self, index: usize, out: &mut String) {
        use std::fmt::Write as _;
        let size = self.raw.size_bytes();
        let bytes = &self.bytes[index * size..][..size];
        // Writing to a string does not fail.
        let _ = match self.raw {
            RawType::F64 => put_float(out, self.double(index)),
            RawType::F32 | RawType::F16 | RawType::Bf16 => put_float(out, self.double(index) as f32),
            RawType::Bool => write!(out, "{}", bytes[0] != 0),
            _ => write!(out, "{}", raw_to_i128(self.raw, bytes)),
        };
    }

    /// Value number `index`, rounded to f64.
    pub(crate) fn double(&self, index: usize) -> f64 {
        let size = self.raw.size_bytes();
        let mut value = [0.0];
        raw_to_f64(self.raw, false, &self.bytes[index * size..][..size], &mut value);
        value[0]
    }
}

/// Appends the shortest text that parses as `value`; nothing for NaN.
fn put_float<T: Into<f64> + Copy + std::fmt::Display + std::fmt::LowerExp>(
    out: &mut String,
    value: T,
) -> std::fmt::Result {
    use std::fmt::Write as _;
    let double: f64 = value.into();
    match double.abs() {
        _ if double.is_nan() => Ok(()),
        // Integers are formatted faster.
        size if size < 1e6 && double == double.trunc() && (double != 0.0 || double.is_sign_positive()) => {
            write!(out, "{}", double as i32)
        }
        size if size == 0.0 || (1e-5..1e16).contains(&size) => write!(out, "{value}"),
        _ => write!(out, "{value:e}"),
    }
}
