//! Errors of columns.

use std::path::PathBuf;

use crate::data::CellProblem;

/// A column that is missing or does not fit its use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// A column of the config that the data don't have.
    #[error("data file `{}`: no column \"{column}\" for `{key}`\nhint: {hint}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The config's key.
        key: &'static str,
        /// The remedy.
        hint: String,
    },
    /// A column whose type does not fit its role.
    #[error("data file `{}`, column \"{column}\": expected {expected}, got {got}\nhint: {hint}", path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The expected content.
        expected: &'static str,
        /// Its type.
        got: String,
        /// The remedy.
        hint: &'static str,
    },
    /// Features that hold texts.
    #[error(
        "data file `{0}`: expected numbers, and {n} columns are text: {names}\n\
         hint: `data.categorical` = [{names}] treats them as categories, `data.drop` leaves columns out; \
         `ddp-train data inspect {0}` suggests a config",
        path.display(), n = columns.len(), names = quoted(columns)
    )]
    Text {
        /// The file.
        path: PathBuf,
        /// The columns.
        columns: Vec<String>,
    },
    /// A value in the name of a folder that does not fit the role of its column.
    #[error("data file `{}`, column \"{column}\" of its folder's name: {problem}", path.display())]
    Partition {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The fault.
        problem: CellProblem,
    },
    /// A list whose length differs from that of the first list.
    #[error(
        "{place}, {column}: expected a list of {expected} numbers as in the first row, got {got}\nhint: make all lists of a column equally long, or list it in `data.drop`"
    )]
    ListLength {
        /// File and row.
        place: String,
        /// The column.
        column: String,
        /// Length of the first list.
        expected: usize,
        /// Length of this one.
        got: usize,
    },
    /// A categorical column with too many values.
    #[error(
        "column \"{column}\" of `{}` has more than {limit} distinct values\nhint: is it an identifier? list it in `data.drop`",
        path.display()
    )]
    VocabularyHuge {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Most values.
        limit: usize,
    },
}

/// `"city", "size"`
fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}
