//! Columns of the rows that are written, with their types.

#[cfg(feature = "parquet")]
use arrow_schema::FieldRef;

use crate::data::CategoryColumn;
use crate::data::raw::RawType;
use crate::data::table::MomentType;

/// Columns of rows that are read from a source.
#[derive(Debug, Clone)]
pub(crate) struct Schema {
    /// The source, for messages.
    pub(crate) source: String,
    /// Columns in their order.
    pub(crate) groups: Vec<Group>,
}

/// Columns of one type and use; a single one in tables.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) purpose: Purpose,
    pub(crate) names: Vec<String>,
    pub(crate) kind: Kind,
    /// Columns of numbers that stand for texts, in files of arrays.
    pub(crate) categories: Vec<CategoryColumn>,
    /// Whether f32 keeps every digit of the numbers; `None` where the file has types.
    pub(crate) fits_single: Option<bool>,
}

/// Use of a column in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Feature,
    Target,
    Weight,
}

/// Type of the values of a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Number(RawType),
    Text,
    Moment(MomentType),
    /// A type of record batches, which only their files hold.
    #[cfg(feature = "parquet")]
    Arrow(FieldRef),
}

impl Group {
    /// A column of a table.
    pub(crate) fn column(purpose: Purpose, name: String, kind: Kind) -> Self {
        Group { purpose, names: vec![name], kind, categories: Vec::new(), fits_single: None }
    }

    /// Makes numbers that are features numbers of the type `raw`.
    pub(crate) fn set_feature_type(&mut self, raw: RawType) {
        if self.purpose == Purpose::Feature && matches!(self.kind, Kind::Number(_)) {
            self.kind = Kind::Number(raw);
        }
    }
}

impl Schema {
    /// The groups of one use.
    pub(crate) fn of(&self, purpose: Purpose) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |group| group.purpose == purpose)
    }

    /// Approximate bytes per row in memory.
    pub(crate) fn row_bytes(&self) -> usize {
        let size = |group: &Group| match group.kind {
            Kind::Number(raw) => group.names.len() * raw.size_bytes(),
            _ => 8 * group.names.len(),
        };
        self.groups.iter().map(size).sum::<usize>().max(1)
    }
}
