//! Columns of the rows that are written, with their types.

#[cfg(feature = "parquet")]
use arrow_schema::FieldRef;

use crate::values::element::RawType;
use crate::values::time::MomentType;
use crate::values::vocabulary::CategoryColumn;

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
