//! The union of the errors of files of rows. A message names file and place, what was expected and found, and a remedy.

use std::io;
use std::path::PathBuf;

use super::column_error::ColumnError;
use super::csv_error::CsvError;
use super::write_error::WriteError;
use crate::user_file::FileError;

/// Result of this crate's functions.
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
    /// A value that the number format can't hold.
    #[error("{place}, column \"{column}\": {value} does not fit in {dtype}")]
    #[diagnostic(help("without --dtype no value is lost"))]
    DoesNotFit {
        /// File and row.
        place: String,
        column: String,
        value: f64,
        dtype: String,
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
