//! Rows between a reader and a writer, their columns and the types that the reader found.

#[cfg(feature = "parquet")]
use arrow_array::ArrayRef;
#[cfg(feature = "parquet")]
use arrow_schema::{DataType, FieldRef, IntervalUnit};
use ddp::data::vocabulary::CategoryColumn;

use crate::values::element::{RawType, to_f64 as raw_to_f64};
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
}

impl Numbers {
    /// Value number `index`, rounded to f64.
    pub fn double(&self, index: usize) -> f64 {
        let size = self.raw.size_bytes();
        let mut value = [0.0];
        raw_to_f64(self.raw, false, &self.bytes[index * size..][..size], &mut value);
        value[0]
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

impl Kind {
    /// The type among those of these values that Parquet does not have, for a message.
    pub fn not_in_parquet(&self) -> Option<&'static str> {
        match self {
            #[cfg(feature = "parquet")]
            Kind::Arrow(field) => not_in_parquet(field.data_type()),
            _ => None,
        }
    }
}

#[cfg(feature = "parquet")]
fn not_in_parquet(kind: &DataType) -> Option<&'static str> {
    match kind {
        DataType::Interval(IntervalUnit::MonthDayNano) => Some("intervals of months, days and nanoseconds"),
        DataType::Union(..) => Some("a union of types"),
        DataType::Struct(fields) if fields.is_empty() => Some("a struct without fields"),
        DataType::Struct(fields) => fields.iter().find_map(|field| not_in_parquet(field.data_type())),
        DataType::List(of)
        | DataType::LargeList(of)
        | DataType::ListView(of)
        | DataType::LargeListView(of)
        | DataType::RunEndEncoded(_, of)
        | DataType::FixedSizeList(of, _)
        | DataType::Map(of, _) => not_in_parquet(of.data_type()),
        DataType::Dictionary(_, of) => not_in_parquet(of),
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale)
            if *scale < 0 =>
        {
            Some("decimals of a negative scale")
        }
        _ => None,
    }
}

impl Group {
    /// A column of a table.
    pub fn column(purpose: Purpose, name: String, kind: Kind) -> Self {
        Group { purpose, names: vec![name], kind, categories: Vec::new() }
    }
}

impl Schema {
    /// Approximate bytes per row in memory.
    pub fn row_bytes(&self) -> usize {
        let size = |group: &Group| match group.kind {
            Kind::Number(raw) => group.names.len() * raw.size_bytes(),
            _ => 8 * group.names.len(),
        };
        self.groups.iter().map(size).sum::<usize>().max(1)
    }
}

/// The index of the first number that is neither finite nor NaN, which marks a missing value.
pub fn first_not_finite(raw: RawType, bytes: &[u8]) -> Option<usize> {
    // Checks many numbers at a time without branches.
    macro_rules! find {
        ($t:ty, $sign:expr, $infinity:expr) => {{
            let is_bad = |bytes: &[u8; size_of::<$t>()]| <$t>::from_le_bytes(*bytes) & $sign == $infinity;
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

#[cfg(all(test, feature = "parquet"))]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{Field, Fields, UnionFields, UnionMode};

    use super::*;

    #[test]
    fn types_that_parquet_lacks_are_found_at_any_depth() {
        let field = |of: &DataType| Arc::new(Field::new("x", of.clone(), true));
        let within = |of: &DataType| DataType::List(field(&DataType::Struct(Fields::from(vec![field(of)]))));
        for (of, name) in [
            (DataType::Union(UnionFields::empty(), UnionMode::Sparse), "union"),
            (DataType::Struct(Fields::empty()), "struct"),
            (DataType::Decimal128(9, -2), "negative"),
            (DataType::Interval(IntervalUnit::MonthDayNano), "interval"),
        ] {
            for of in [of.clone(), within(&of)] {
                let found = Kind::Arrow(field(&of)).not_in_parquet();
                assert!(found.is_some_and(|found| found.contains(name)), "{of}");
            }
        }
        assert_eq!(Kind::Arrow(field(&within(&DataType::Decimal128(9, 2)))).not_in_parquet(), None);
    }
}
