//! Properties of one column after all rows were read: its type, range and values, and what its source says of it in advance.

use std::path::PathBuf;

use ddp_tables::formats::compression::Compression;
use ddp_tables::formats::table::types::Place;
use serde::Serialize;

use super::collector::{Collector, Column};

/// Most distinct values that are listed individually.
pub(super) const MAX_SHOWN_VALUES: usize = 20;

/// Properties of one column.
#[derive(Debug, Serialize)]
pub(super) struct ColumnProfile {
    pub(super) name: String,
    pub(super) is_target: bool,
    /// Whether it holds weights of rows or divides them, so that it is no feature.
    #[serde(skip)]
    pub(super) has_other_use: bool,
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    /// Type in the file, if the file has types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stored_as: Option<String>,
    /// Whether a few values are of another kind than the column.
    #[serde(skip)]
    pub(super) has_strays: bool,
    /// Whether some values can't be read for the kind of the column.
    #[serde(skip)]
    pub(super) has_faults: bool,
    pub(super) n_missing: u64,
    /// Rows with a value.
    #[serde(skip)]
    pub(super) n_values: u64,
    /// `None` if there are too many to count.
    pub(super) n_distinct: Option<usize>,
    #[serde(flatten)]
    pub(super) range: Option<Range>,
    /// The values if they are few, the most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) values: Vec<ValueCount>,
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

impl ColumnProfile {
    /// The properties of the column number `index`.
    pub(super) fn new(origin: &Origin, collected: &Collector, index: usize) -> Self {
        let column = &collected.columns[index];
        let stats = &column.stats;
        let range = (stats.count[0] > 0.0).then(|| Range {
            min: stats.min[0],
            max: stats.max[0],
            mean: stats.mean[0],
            standard_deviation: stats.standard_deviation(0),
        });
        let is_target = origin.targets.contains(&index);
        let n_values = collected.n_rows as u64 - column.types.missing.n;
        // Dates are read as in a file of text.
        let are_moments = column.types.n_moments > 0 && column.types.n_moments == n_values;
        let is_text = origin.texts.contains(&index) && !is_target && range.is_some() && !are_moments;
        // Any text may be a label, and in a file with types a column of numbers has no texts.
        let has_strays =
            origin.is_table && origin.types.is_empty() && !is_target && column.has_strays(n_values);
        let kind = match origin.kinds[index] {
            Some(kind) => kind,
            None if is_text => Kind::Text,
            // Labels that are spelled like codes are texts.
            None if is_target && column.types.codes.n > 0 && !column.has_fractions() => Kind::Text,
            None => Kind::of(column, n_values, range.is_some(), has_strays),
        };
        let counts = column.values.by_count();
        let n: u64 = counts.iter().map(|(_, count)| count).sum();
        let values = if counts.len() <= MAX_SHOWN_VALUES { counts } else { Vec::new() };
        let share = |count: u64| count as f64 / n.max(1) as f64;
        ColumnProfile {
            name: origin.names[index].clone(),
            is_target,
            has_other_use: origin.other_uses.contains(&index),
            kind,
            stored_as: origin.types.get(index).cloned(),
            has_strays,
            has_faults: !has_strays
                && (column.not_finite.n > 0
                    || column.not_utf8.n > 0
                    || column.types.texts.n > 0 && 2 * column.n_words() <= n_values),
            n_missing: column.types.missing.n,
            n_values,
            n_distinct: column.values.len(),
            range: range.filter(|_| !matches!(kind, Kind::Text | Kind::Index | Kind::Dropped | Kind::Other)),
            values: values
                .into_iter()
                .map(|(value, n_rows)| ValueCount { value, n_rows, share: share(n_rows) })
                .collect(),
        }
    }

    /// Whether the column, of `n_rows` rows, holds no value twice.
    pub(super) fn has_distinct_values(&self, n_rows: usize) -> bool {
        self.n_distinct == Some(n_rows - self.n_missing as usize)
    }

    pub(super) fn is_feature(&self) -> bool {
        !self.is_target && !self.has_other_use && !matches!(self.kind, Kind::Index | Kind::Dropped)
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

/// A file and its size, if it is a regular file.
#[derive(Debug, Serialize)]
pub(super) struct FileSize {
    pub(super) path: String,
    pub(super) size_bytes: Option<u64>,
}

/// An array in a file.
#[derive(Debug, Serialize)]
pub(super) struct ArrayShape {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) shape: Vec<usize>,
}

/// Source of rows, and what is known about their columns in advance.
#[derive(Default)]
pub(super) struct Origin {
    pub(super) format: String,
    pub(super) files: Vec<FileSize>,
    pub(super) arrays: Vec<ArrayShape>,
    /// Whether the rows are those of a table, whose columns have names.
    pub(super) is_table: bool,
    pub(super) names: Vec<String>,
    /// Indices of the targets.
    pub(super) targets: Vec<usize>,
    /// Indices of the columns that hold weights of rows or divide them.
    pub(super) other_uses: Vec<usize>,
    /// Types of the columns; `None` if the values determine them.
    pub(super) kinds: Vec<Option<Kind>>,
    /// Types of the columns in the file, if it has them; those of folders have none.
    pub(super) types: Vec<String>,
    /// Indices of the columns that are texts by their type in the file.
    pub(super) texts: Vec<usize>,
    /// Columns that are not used unasked, with the reason: ends of sentences.
    pub(super) left_out: Vec<String>,
    /// Whether places are lines, from 1, not rows, from 0.
    pub(super) has_lines: bool,
    /// Lines of a config that name arrays.
    pub(super) keys: Vec<String>,
}

impl Origin {
    /// Source of rows in these files.
    pub(super) fn from_files(title: &str, files: &[PathBuf]) -> Self {
        let size = |path: &PathBuf| FileSize {
            path: path.display().to_string(),
            // Pipes have no size.
            size_bytes: path.metadata().ok().filter(|data| data.is_file()).map(|data| data.len()),
        };
        let format = match Compression::from_file(&files[0]) {
            Compression::None => title.to_owned(),
            compression => format!("{title}, {}", compression.name()),
        };
        Origin { format, files: files.iter().map(size).collect(), ..Origin::default() }
    }

    /// A place for messages.
    pub(super) fn place(&self, place: Place) -> String {
        let number = format!("{} {}", if self.has_lines { "line" } else { "row" }, place.number);
        if self.files.len() > 1 { format!("{number} of {}", self.files[place.file].path) } else { number }
    }
}
