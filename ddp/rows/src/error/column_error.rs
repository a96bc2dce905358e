//! Errors of columns.

use std::path::PathBuf;

use crate::error::CellProblem;

/// A column that is missing or does not fit its use.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum ColumnError {
    /// A column of the config that the data don't have.
    #[error("data file `{}`: no column \"{column}\" for `{key}`", path.display())]
    #[diagnostic(help("{hint}"))]
    Missing {
        path: PathBuf,
        column: String,
        /// The config's key.
        key: &'static str,
        hint: String,
    },
    /// A column whose type does not fit its role.
    #[error("data file `{}`, column \"{column}\": expected {expected}, got {got}", path.display())]
    #[diagnostic(help("{hint}"))]
    WrongType {
        path: PathBuf,
        column: String,
        expected: &'static str,
        /// Its type.
        got: String,
        hint: &'static str,
    },
    /// Features that hold texts.
    #[error(
        "data file `{}`: expected numbers, and {} columns are text: {}", path.display(), columns.len(), quoted(columns)
    )]
    #[diagnostic(help(
        "`data.categorical` = [{}] treats them as categories, `data.drop` leaves columns out; `ddp-train data inspect {}` suggests a config",
        quoted(columns), path.display()
    ))]
    Text { path: PathBuf, columns: Vec<String> },
    /// A value in the name of a folder that does not fit the role of its column.
    #[error("data file `{}`, column \"{column}\" of its folder's name: {problem}", path.display())]
    #[diagnostic(forward(problem))]
    Partition { path: PathBuf, column: String, problem: CellProblem },
    /// A list whose length differs from that of the first list.
    #[error("{place}, {column}: expected a list of {expected} numbers as in the first row, got {got}")]
    #[diagnostic(help("make all lists of a column equally long, or list it in `data.drop`"))]
    ListLength {
        /// File and row.
        place: String,
        column: String,
        /// Length of the first list.
        expected: usize,
        /// Length of this one.
        got: usize,
    },
    /// A categorical column with too many values.
    #[error("column \"{column}\" of `{}` has more than {limit} distinct values", path.display())]
    #[diagnostic(help("is it an identifier? list it in `data.drop`"))]
    VocabularyHuge { path: PathBuf, column: String, limit: usize },
}

/// `"city", "size"`
fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}
