//! Errors of CSV files: each names file, line and column.

use std::path::PathBuf;

use crate::error::CellProblem;

/// A fault of a CSV file.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum CsvError {
    /// A file without text, or with blank lines only.
    #[error("data file `{}`: the file is empty", path.display())]
    #[diagnostic(help("the first row holds the column names, each further row one row of data"))]
    Empty { path: PathBuf },
    /// Column names without rows.
    #[error("data file `{}`: no rows after the header", path.display())]
    #[diagnostic(help("each row after the first is one row of data"))]
    NoRows { path: PathBuf },
    /// A comment in place of the column names.
    #[error("data file `{}`: line 1: expected column names, got what looks like a comment: {text}", path.display())]
    #[diagnostic(help("remove such lines: grep -v '^#' {} > rows.csv", path.display()))]
    Comment {
        path: PathBuf,
        /// The line.
        text: String,
    },
    /// A first row that looks like the others.
    #[error(
        "data file `{}`: line 1: expected column names, got what looks like a row: {}",
        path.display(),
        shown_cells(cells)
    )]
    #[diagnostic(help(
        "`data.header` = false reads it as a row and calls the columns column_1, column_2 and so on (--no-header of `data \
         inspect`); true takes it for the names"
    ))]
    NoHeader { path: PathBuf, cells: Vec<String> },
    /// An empty cell in the header.
    #[error("data file `{}`: line 1: column {position} has no name", path.display())]
    #[diagnostic(help("name it, or leave it out: `data.drop` = [\"Unnamed: {}\"]", position - 1))]
    UnnamedColumn {
        path: PathBuf,
        /// From 1.
        position: usize,
    },
    /// Two columns of one name.
    #[error("data file `{}`: line 1: columns {first} and {second} are both named \"{column}\"", path.display())]
    #[diagnostic(help(
        "rename one of them; if the first line is a row, set `data.header` = false (--no-header of `data inspect`)"
    ))]
    DuplicateColumn {
        path: PathBuf,
        column: String,
        /// Position of the first, from 1.
        first: usize,
        /// Position of the second, from 1.
        second: usize,
    },
    /// No column of the target's name.
    #[error("data file `{}`: line 1: no target column \"{target}\"", path.display())]
    #[diagnostic(help("{hint}"))]
    TargetMissing {
        path: PathBuf,
        /// The name in the config.
        target: String,
        /// The nearest name, or the columns that there are.
        hint: String,
    },
    /// Only target columns.
    #[error("data file `{}`: line 1: no feature columns, only the target {targets}", path.display())]
    #[diagnostic(help("{hint}"))]
    NoFeatures {
        path: PathBuf,
        /// The target columns.
        targets: String,
        /// The reason for leaving out the others, if there are any.
        hint: String,
    },
    /// A row with more or fewer cells than the header.
    #[error("data file `{}`: line {line}: expected {expected} cells as in the header, got {got}", path.display())]
    #[diagnostic(help("{}", ragged_hint(*expected, *got)))]
    Ragged {
        path: PathBuf,
        /// Line on which the row starts, from 1.
        line: u64,
        /// Cells of the header.
        expected: usize,
        /// Cells of this row.
        got: usize,
    },
    /// A cell that can't be used.
    #[error("data file `{}`: line {line}, column \"{column}\": {problem}", path.display())]
    #[diagnostic(forward(problem))]
    Cell {
        path: PathBuf,
        /// Line on which the row starts, from 1.
        line: u64,
        /// Name of the column; in the header its position.
        column: String,
        problem: CellProblem,
    },
    /// Texts in several features of a row.
    #[error("data file `{}`: line {line}: expected numbers, got text in {}", path.display(), shown_texts(texts))]
    #[diagnostic(help(
        "`data.categorical` = [{}] treats them as categories, `data.drop` leaves columns out; if a text marks a \
         missing value, list it in `data.missing_values`; `ddp-train data inspect {}` suggests a config",
        quoted_names(texts),
        path.display()
    ))]
    Texts {
        path: PathBuf,
        /// Line on which the row starts, from 1.
        line: u64,
        /// Columns with their cells.
        texts: Vec<(String, String)>,
    },
    /// A quote without its end.
    #[error("data file `{}`: line {line}: a quote in this row is never closed", path.display())]
    #[diagnostic(help("close it; a quote inside quotes is written twice (\"\")"))]
    QuoteUnclosed {
        path: PathBuf,
        /// Line on which the row starts, from 1.
        line: u64,
    },
}

/// Most columns that a message names.
const SHOWN: usize = 5;

/// `"city" ("Bern"), "size" ("big")`
fn shown_texts(texts: &[(String, String)]) -> String {
    let shown: Vec<_> =
        texts.iter().take(SHOWN).map(|(name, text)| format!("\"{name}\" (\"{text}\")")).collect();
    match texts.len().checked_sub(SHOWN) {
        None | Some(0) => shown.join(", "),
        Some(more) => format!("{} and {more} more columns", shown.join(", ")),
    }
}

/// `5.1, 3.5, 1.4, 0.2, Iris-setosa`
fn shown_cells(cells: &[String]) -> String {
    let more = if cells.len() > SHOWN { ", ..." } else { "" };
    cells.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ") + more
}

fn quoted_names(texts: &[(String, String)]) -> String {
    let names: Vec<_> = texts.iter().take(SHOWN).map(|(name, _)| format!("\"{name}\"")).collect();
    let more = if texts.len() > SHOWN { ", ..." } else { "" };
    names.join(", ") + more
}

fn ragged_hint(expected: usize, got: usize) -> &'static str {
    if got < expected {
        "is the row cut off, or a delimiter missing?"
    } else {
        "texts with delimiters need quotes; in a comma-separated file decimals need a point"
    }
}
