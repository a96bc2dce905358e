//! Rows between a reader and a writer, their columns and the types that the reader found.

#[cfg(feature = "parquet")]
use arrow_array::ArrayRef;
#[cfg(feature = "parquet")]
use arrow_schema::FieldRef;
use ddp::data::vocabulary::CategoryColumn;

use crate::values::element::{RawType, to_f64 as raw_to_f64, to_i128 as raw_to_i128};
use crate::values::texts::Texts;
use crate::values::time::MomentType;

/// Consecutive rows.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Number of rows.
    pub n_rows: usize,
    /// The values of each group of the schema.
    pub blocks: Vec<Block>,
}

/// Values of consecutive rows in one group of columns.
#[derive(Debug, Clone)]
pub enum Block {
    /// Numbers.
    Numbers(Numbers),
    /// Strings.
    Texts {
        /// One string per row.
        texts: Texts,
        /// Rows without a value.
        nulls: Nulls,
    },
    /// Dates or times, in the unit of the schema.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    Moments {
        /// One count of units per row.
        values: Vec<i64>,
        /// Rows without a value.
        nulls: Nulls,
    },
    /// An array of a file of record batches, as it is.
    #[cfg(feature = "parquet")]
    Arrow(ArrayRef),
}

/// Numbers in memory as in a file: `[n_rows, width]`, little-endian.
#[derive(Debug, Clone)]
pub struct Numbers {
    /// Type of an element.
    pub raw: RawType,
    /// The elements, row by row, little-endian.
    pub bytes: Vec<u8>,
    /// Rows without a value; they hold NaN or 0.
    pub nulls: Nulls,
}

/// Whether each row lacks a value; empty if none does.
#[derive(Debug, Clone, Default)]
pub struct Nulls(pub Vec<bool>);

impl Nulls {
    /// Whether the row has no value.
    pub fn is_null(&self, row: usize) -> bool {
        self.0.get(row).copied().unwrap_or(false)
    }

    /// Marks row `row`, the last one so far.
    pub fn mark(&mut self, row: usize) {
        self.0.resize(row, false);
        self.0.push(true);
    }

    /// The first row without a value.
    pub fn first(&self) -> Option<usize> {
        self.0.iter().position(|is_null| *is_null)
    }
}

impl Numbers {
    /// Appends the shortest text that parses as value number `index`; nothing for NaN, which marks a missing value.
    pub fn put(&self, index: usize, out: &mut String) {
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
    pub fn double(&self, index: usize) -> f64 {
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

/// Columns of rows that are read from a source.
#[derive(Debug, Clone)]
pub struct Schema {
    /// The source, for messages.
    pub source: String,
    /// Columns in their order.
    pub groups: Vec<Group>,
}

/// Columns of one type and use; a single one in tables.
#[derive(Debug, Clone)]
pub struct Group {
    /// Use of the columns.
    pub purpose: Purpose,
    /// Names of the columns.
    pub names: Vec<String>,
    /// Type of the columns.
    pub kind: Kind,
    /// Columns of numbers that stand for texts, in files of arrays.
    pub categories: Vec<CategoryColumn>,
    /// Whether f32 keeps every digit of the numbers; `None` where the file has types.
    pub fits_single: Option<bool>,
}

/// Use of a column in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Features.
    Feature,
    /// Targets.
    Target,
    /// The weight of each row.
    Weight,
}

/// Type of the values of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Numbers of a type.
    Number(RawType),
    /// Strings.
    Text,
    /// Dates or times.
    Moment(MomentType),
    /// A type of record batches, which only their files hold.
    #[cfg(feature = "parquet")]
    Arrow(FieldRef),
}

impl Group {
    /// A column of a table.
    pub fn column(purpose: Purpose, name: String, kind: Kind) -> Self {
        Group { purpose, names: vec![name], kind, categories: Vec::new(), fits_single: None }
    }

    /// Makes numbers that are features numbers of the type `raw`.
    pub fn set_feature_type(&mut self, raw: RawType) {
        if self.purpose == Purpose::Feature && matches!(self.kind, Kind::Number(_)) {
            self.kind = Kind::Number(raw);
        }
    }
}

impl Schema {
    /// The groups of one use.
    pub fn of(&self, purpose: Purpose) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |group| group.purpose == purpose)
    }

    /// Approximate bytes per row in memory.
    pub fn row_bytes(&self) -> usize {
        let size = |group: &Group| match group.kind {
            Kind::Number(raw) => group.names.len() * raw.size_bytes(),
            _ => 8 * group.names.len(),
        };
        self.groups.iter().map(size).sum::<usize>().max(1)
    }
}
