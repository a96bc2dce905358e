//! Types of columns.

use serde::Serialize;

use super::collector::Column;

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
    /// Left out by the user.
    Dropped,
    /// All values are missing.
    Empty,
    /// An element of an array.
    #[serde(untagged)]
    Element(&'static str),
}

impl Kind {
    /// The type of a column with `n` values, among which there are numbers or not; a few stray values don't decide on it.
    pub(super) fn of(column: &Column, n: u64, has_numbers: bool, has_strays: bool) -> Self {
        let n = if has_strays { n - column.n_odd() } else { n };
        match () {
            () if column.types.texts.n > 0 && !has_strays => Kind::Text,
            () if column.types.n_truths > 0 && column.types.n_truths == n => Kind::Boolean,
            () if column.types.n_moments > 0 && column.types.n_moments == n && column.types.has_dates() => {
                Kind::Date
            }
            () if column.types.n_moments > 0 && column.types.n_moments == n => Kind::Time,
            () if column.has_fractions() || column.not_finite.n > 0 => Kind::Number,
            () if has_numbers => Kind::Integer,
            () => Kind::Empty,
        }
    }

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
            Kind::Dropped => "dropped",
            Kind::Empty => "empty",
            Kind::Element(name) => name,
        }
    }
}
