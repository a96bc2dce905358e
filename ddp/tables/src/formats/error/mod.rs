//! Errors of files of rows; their union is [`RowsError`]. A message names file and place, what was expected and found, and a remedy.
//!
//! ```
//! use ddp_tables::formats::error::CellProblem;
//!
//! let problem = CellProblem::NotFinite { text: "inf".to_owned() };
//! assert_eq!(problem.to_string(), "expected a finite number, got \"inf\"");
//! ```

mod cell_problem;

use std::io;
use std::path::PathBuf;

pub use cell_problem::{CellProblem, PLAIN_NOTATION, is_formatted};
use ddp::report::visible::shell_word;
use ddp::storage::user_file::FileError;
use ddp::storage::write_error::WriteError;

/// Result of the functions of formats.
pub type Result<T, E = RowsError> = std::result::Result<T, E>;

/// A fault of a file of rows, or a failure to read or write it.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum RowsError {
    /// A file could not be opened or read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    File(#[from] FileError),
    /// A file could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Write(#[from] WriteError),
    /// A fault of a CSV file.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Csv(#[from] CsvError),
    /// A column that is missing or does not fit its use.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Column(Box<ColumnError>),
    /// A file that is not valid in its format.
    #[error("data file `{}` is not a valid {format} file: {reason}", path.display())]
    #[diagnostic(help("{hint}"))]
    Malformed {
        path: PathBuf,
        /// "npy", "Parquet", ...
        format: &'static str,
        reason: String,
        hint: &'static str,
    },
    /// A file of a format that is not read.
    #[error("data file `{}` is {name}", path.display())]
    #[diagnostic(help("{hint}"))]
    Foreign {
        path: PathBuf,
        /// The format, with its article.
        name: &'static str,
        /// A way to convert it.
        hint: &'static str,
    },
    /// An array whose elements are not read.
    #[error("data file `{}`: the array `{name}` has the type {got}, expected integers, or floats of 16 bits or more", path.display())]
    #[diagnostic(help(
        "convert it, for example with tensor.to(torch.float32), or name another array: `data.features_key`, `data.labels_key`"
    ))]
    ArrayType {
        path: PathBuf,
        name: String,
        /// Its type in the file.
        got: String,
    },
    /// Parquet or Arrow in a build without them.
    #[error("data file `{}`: this build does not support Parquet and Arrow files", path.display())]
    #[diagnostic(help(
        "build with `cargo build --release --features parquet`, or convert the file to npy or safetensors"
    ))]
    ParquetNotBuilt { path: PathBuf },
    /// Shards that differ in columns or types.
    #[error("`{}` and `{}` don't match: {difference}", first.display(), other.display())]
    #[diagnostic(help("all shards must have the same columns and types"))]
    ShardsDiffer {
        /// The first shard.
        first: PathBuf,
        /// The shard that differs.
        other: PathBuf,
        difference: String,
    },
    /// A shard without rows.
    #[error("data file `{}` has no rows", path.display())]
    #[diagnostic(help("remove empty shards"))]
    NoRows { path: PathBuf },
    /// Rows that exceed the memory limit.
    #[error(
        "`{source_name}` needs {needed_mib} MiB of memory {what}, but `data.loader_memory_mib` allows {limit_mib}"
    )]
    #[diagnostic(help("{hint}"))]
    TooLarge {
        source_name: String,
        /// Purpose of the memory.
        what: &'static str,
        needed_mib: u64,
        limit_mib: u64,
        hint: String,
    },
    /// A file that was truncated while in use, or a failed disk.
    #[error("data file `{}` changed while it was read: a part of it is missing", path.display())]
    #[diagnostic(help("don't write to data in use; if nothing did, check the disk"))]
    Changed { path: PathBuf },
    /// Reading failed.
    #[error("data file `{}` can't be read: {source}", path.display())]
    #[diagnostic(help("check its permissions and the disk"))]
    Unreadable { path: PathBuf, source: io::Error },
    /// A row of text that exceeds the size limit.
    #[error("data file `{}`, line {line}: the row that starts here exceeds {max_mib} MiB", path.display())]
    #[diagnostic(help(
        "check that the file has line ends and every quote is closed; rows may take a quarter of `data.loader_memory_mib`, at most 256 MiB"
    ))]
    RecordTooLarge {
        path: PathBuf,
        /// From 1.
        line: u64,
        /// Most MiB of a row.
        max_mib: usize,
    },
    /// A path or format that rows can't be written to.
    #[error("can't write rows to `{out}`: {reason}")]
    #[diagnostic(help("{hint}"))]
    OutFormat {
        /// Value as the user wrote it.
        out: String,
        reason: String,
        hint: String,
    },
}

impl RowsError {
    /// Whether reading or writing failed; otherwise the files or the command are at fault.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Write(_))
    }
}

impl From<ColumnError> for RowsError {
    fn from(error: ColumnError) -> Self {
        RowsError::Column(Box::new(error))
    }
}

/// A column that is missing or does not fit its use.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum ColumnError {
    /// A value of a shard that the common type of all shards rounds.
    #[error(
        "data file `{}`, row {row}, column \"{column}\": {text} is not exact as {}: the column is {} here and needs that type for other files", path.display(), types[1], types[0]
    )]
    #[diagnostic(help("write the column with one type in all files, or list it in `data.drop`"))]
    NotWidened {
        path: PathBuf,
        column: String,
        row: usize,
        text: String,
        /// The type in this file, and the one of all files.
        types: [String; 2],
    },
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
    /// A column with the name of a part of a date.
    #[error(
        "data file `{}`: there would be two features \"{column}\": the column, and the part of the date \"{}\"",
        path.display(),
        column.rsplit_once('.').map_or("", |(date, _)| date)
    )]
    #[diagnostic(help("rename one of them, list one in `data.drop`, or set `data.datetime` to \"seconds\""))]
    PartTaken { path: PathBuf, column: String },
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
        quoted(columns),
        shell_word(path)
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
    #[diagnostic(help("{}", problem.hint_at(*line)))]
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
        shell_word(path)
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

impl CsvError {
    /// Whether it is about the names of the columns, or about a first line that is taken for a row.
    pub fn is_of_first_line(&self) -> bool {
        matches!(
            self,
            Self::NoHeader { .. }
                | Self::UnnamedColumn { .. }
                | Self::DuplicateColumn { .. }
                | Self::Texts { line: 1, .. }
        )
    }
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
