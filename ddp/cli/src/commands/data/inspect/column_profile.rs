//! Properties of one column after all rows were read.

use serde::Serialize;

/// Properties of one column.
#[derive(Debug, Serialize)]
pub(super) struct ColumnProfile {
    pub(super) name: String,
    pub(super) is_target: bool,
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    /// Type in the file, if the file has types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stored_as: Option<String>,
    /// Whether some values can't be read for the kind of the column.
    #[serde(skip)]
    pub(super) has_faults: bool,
    pub(super) n_missing: u64,
    /// `None` if there are too many to count.
    pub(super) n_distinct: Option<usize>,
    #[serde(flatten)]
    pub(super) range: Option<Range>,
    /// The values if they are few, the most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) values: Vec<ValueCount>,
}

impl ColumnProfile {
    /// Whether the column, of `n_rows` rows, holds no value twice.
    pub(super) fn has_distinct_values(&self, n_rows: usize) -> bool {
        self.n_distinct == Some(n_rows - self.n_missing as usize)
    }
}

/// Type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Integer,
    Number,
    Text,
    /// True and false, or yes and no.
    Boolean,
    /// Dates, with or without a time.
    Date,
    /// Times of day.
    Time,
    /// Row numbers that pandas wrote, which are not used.
    Index,
    /// Values that a model can't use, such as structures and bytes.
    Other,
    /// Numbers of categories.
    Category,
    /// All values are missing.
    Empty,
    /// An element of an array.
    #[serde(untagged)]
    Element(&'static str),
}

/// Range and moments of a column of numbers.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Range {
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) mean: f64,
    pub(super) standard_deviation: f64,
}

/// A value and its frequency.
#[derive(Debug, Serialize)]
pub(super) struct ValueCount {
    pub(super) value: String,
    pub(super) n_rows: u64,
    /// Share of the rows in which the column has a value.
    pub(super) share: f64,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Text => "text",
            Kind::Boolean => "boolean",
            Kind::Date => "date",
            Kind::Time => "time",
            Kind::Index => "index",
            Kind::Other => "other",
            Kind::Category => "category",
            Kind::Empty => "empty",
            Kind::Element(name) => name,
        }
    }
}
