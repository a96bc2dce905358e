//! Errors of files of rows as datasets. A message names file and place, what was expected and found, and a remedy.
//!
//! ```
//! use ddp::config::Config;
//! use ddp_tables::SourceSpec;
//! use ddp_tables::error::TableError;
//!
//! let config = Config::load(None, &["data.train=builtin:mnist".to_owned()])?;
//! let error = SourceSpec::train(&config.data).open().unwrap_err();
//! assert!(matches!(TableError::of(&error), Some(TableError::BuiltinUnknown { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod memory_words;
pub mod split_error;
pub mod target_error;

use std::io;
use std::path::PathBuf;

use ddp::data::DataError;
use ddp::data::column_kind::ColumnKind;
use ddp::data::error::SourceError;
use ddp::report::visible::shell_word;
use ddp_kernels::DType;

use self::split_error::SplitError;
use self::target_error::TargetError;
use crate::formats::error::{CellProblem, ColumnError, CsvError, RowsError};
use crate::values::filter::FilterError;

/// A fault of the user's files of rows, or a failure to read or write them.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum TableError {
    /// A file that can't be read, written or understood.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rows(RowsError),
    /// A fault of targets or labels.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Target(#[from] TargetError),
    /// Memory that the ranks of a host share could not be written or read.
    #[error("can't hold the rows in memory that the ranks of this host share: {source}")]
    #[diagnostic(help("free memory, or raise the container's limit"))]
    HostMemory { source: io::Error },
    /// Values of another kind than in the training rows.
    #[error(
        "data file `{}`: column \"{column}\" holds {}, but {of} has {} there", path.display(), found.name(), expected.name()
    )]
    #[diagnostic(help("{}", expected.remedy(*found)))]
    OtherKind {
        path: PathBuf,
        column: String,
        found: ColumnKind,
        expected: ColumnKind,
        /// Owner of the expected kind: the model, or other rows.
        of: String,
    },
    /// A `builtin:` name that this build does not hold.
    #[error("no built-in data set `builtin:{name}`")]
    #[diagnostic(help("available: builtin:{known}; write `./builtin:{name}` for a file of that name"))]
    BuiltinUnknown {
        /// Name after `builtin:`.
        name: String,
        /// The available names.
        known: String,
    },
    /// The name of a built-in set, without `builtin:`, where no file has that name.
    #[error("data file `{name}` does not exist")]
    #[diagnostic(help("the bundled data set is `builtin:{name}`"))]
    BuiltinWithoutPrefix {
        /// Name as given.
        name: String,
    },
    /// Targets that a built-in set does not have.
    #[error(
        "builtin:{name} holds one class index, `label`, of 10 classes; the config requests \
         {asked}"
    )]
    #[diagnostic(help(
        "leave out `data.task`, `data.target` and `data.classes`, or name a CSV file in \
         `data.train`"
    ))]
    BuiltinTargets {
        /// Name after `builtin:`.
        name: String,
        /// Targets in the config.
        asked: String,
    },
    /// A value by which rows can't be split.
    #[error("{place}, column \"{column}\": {problem}")]
    #[diagnostic(forward(problem))]
    SplitCell {
        /// File and line, or row.
        place: String,
        /// The column of `data.split`.
        column: String,
        problem: CellProblem,
    },
    /// A split by a column that can't be made.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Split(Box<SplitError>),
    /// A filter that is no condition.
    #[error("`data.filter` = {text:?} is no condition: {problem}")]
    #[diagnostic(help(
        "for example age >= 18 and country != 'DE'; texts and dates stand in single quotes, names of columns with blanks in double ones"
    ))]
    Filter { text: String, problem: FilterError },
    /// A filter that leaves out all rows.
    #[error("`data.filter` keeps none of the {n_rows} rows of {source_name}")]
    #[diagnostic(help(
        "`ddp-train data inspect {}` lists the values of the columns to compare with",
        shell_word(source_name)
    ))]
    FilterKeepsNone { source_name: String, n_rows: u64 },
    /// Files that were changed while they were read.
    #[error("{source_name}: its number of rows changed while it was read")]
    #[diagnostic(help("start again when nothing writes to it"))]
    RowsChanged { source_name: String },
    /// Training and evaluation rows with different columns.
    #[error(
        "{source_name}: its {n_columns} feature columns differ from the {n_other} of {other}: \
         {difference}"
    )]
    #[diagnostic(help("both need the same columns; in tables their order may differ"))]
    ColumnsDiffer {
        /// The data with different columns.
        source_name: String,
        /// Its number of feature columns.
        n_columns: usize,
        /// The training data.
        other: String,
        /// Its number of feature columns.
        n_other: usize,
        /// The first missing and the first extra name.
        difference: String,
    },
    /// A number of class weights that differs from the number of classes.
    #[error(
        "`loss.class_weights` has {n_weights} numbers, expected {n_classes}: one per class of \
         {source_name}"
    )]
    #[diagnostic(help("set one weight per class, or remove the key"))]
    ClassWeightsCount { source_name: String, n_classes: usize, n_weights: usize },
    /// An array of elements that no tensor holds.
    #[error("`{}`: {name} is an array of {found}, which no tensor holds", path.display())]
    #[diagnostic(help("save it as f32, f64, f16, i64, i32, u8 or bool"))]
    NoTensor {
        path: PathBuf,
        /// The array's name.
        name: String,
        /// Its type.
        found: &'static str,
    },
    /// A dtype that a file format lacks.
    #[error("`{}`: {format} has no type for {dtype}", path.display())]
    #[diagnostic(help("convert the tensor first: .to_dtype(DType::F32)"))]
    NoFileType {
        path: PathBuf,
        /// "npy", ...
        format: &'static str,
        dtype: DType,
    },
    /// No row is in the range that the user asked for.
    #[error("`{source_name}` has {n_rows} rows, so none is in {start}..{}", if *end == usize::MAX { String::new() } else { end.to_string() })]
    #[diagnostic(help("rows are counted from 0; check --rows"))]
    NoRowsInRange {
        source_name: String,
        n_rows: usize,
        /// First row of the range.
        start: usize,
        /// End of the range.
        end: usize,
    },
    /// Files of a lake table, some of whose rows its log has deleted or replaced.
    #[error(
        "folder `{}` is a {name} table: its log decides which rows of its files are valid, and is not read", path.display()
    )]
    #[diagnostic(help("export its current rows: {export}"))]
    LakeTable {
        path: PathBuf,
        name: &'static str,
        /// Command that exports the rows.
        export: String,
    },
    /// An object store, or what is behind an address, that can't be read.
    #[error("`{source_name}`: {reason}")]
    #[diagnostic(help("{hint}"))]
    Store {
        /// Address as the user wrote it.
        source_name: String,
        /// Words of the store.
        reason: String,
        hint: String,
    },
    /// A folder or pattern without files.
    #[error("no data file for `{pattern}`")]
    #[diagnostic(help("{hint}"))]
    NoFiles {
        /// Value as the user wrote it.
        pattern: String,
        hint: String,
    },
    /// The folder of a run in place of data.
    #[error("`{}` is the folder of a run and holds no data", path.display())]
    #[diagnostic(help(
        "its config is `{0}/config.toml`; `ddp-train checkpoint show {0}` shows its model, `ddp-train train {0}/config.toml --resume auto --out {0}` continues it",
        shell_word(path)
    ))]
    FolderOfRun { path: PathBuf },
    /// A folder with files of several formats.
    #[error("`{pattern}` contains files of several formats: `{}` and `{}`", first.display(), other.display())]
    #[diagnostic(help("select one format with a pattern, such as \"part-*.npy\""))]
    MixedFormats {
        /// The folder or pattern.
        pattern: String,
        /// A file.
        first: PathBuf,
        /// A file of another format.
        other: PathBuf,
    },
    /// An array that the file does not contain.
    #[error("data file `{}` has no array \"{key}\"; it has {found}", path.display())]
    #[diagnostic(help("{hint}"))]
    NoArray {
        path: PathBuf,
        /// Name of the array.
        key: String,
        /// Names of the arrays in the file.
        found: String,
        hint: String,
    },
    /// Features and labels of different lengths.
    #[error("`{features}` has {n_features} rows, but its {what} `{other}` have {n_other}")]
    #[diagnostic(help("both must come from the same rows; was one of them truncated or rewritten?"))]
    RowsDiffer {
        /// Where the features are.
        features: String,
        /// Rows there.
        n_features: usize,
        /// "labels" or "weights".
        what: &'static str,
        /// Where they are.
        other: String,
        /// Rows there.
        n_other: usize,
    },
    /// NaN or infinity among the features.
    #[error("{place}, {column}: expected a finite number, got {value}")]
    #[diagnostic(help(
        "set `data.missing` to \"mean\" or \"zero\" if NaN marks a missing value, otherwise correct the data"
    ))]
    NotFinite {
        /// File and row.
        place: String,
        column: String,
        /// NaN or infinity.
        value: f64,
    },
    /// A weight that is negative or not finite.
    #[error("{place}: expected a weight of 0 or above, got {value}")]
    #[diagnostic(help("correct the weights of `data.weight`"))]
    BadWeight {
        /// File and row.
        place: String,
        value: f64,
    },
    /// Rows that exceed the memory limit.
    #[error(
        "`{source_name}` needs {needed_mib} MiB of memory {what}, but {}", memory_words::limit(*limit_mib)
    )]
    #[diagnostic(help("{hint}{}", memory_words::way_out(*needed_mib, *limit_mib)))]
    TooLarge {
        source_name: String,
        /// Purpose of the memory.
        what: &'static str,
        needed_mib: u64,
        limit_mib: u64,
        hint: String,
    },
    /// A setting that does not apply to the format.
    #[error("`{key}` is set, but `{source_name}` {why}")]
    #[diagnostic(help("{hint}"))]
    NotForFormat {
        /// The config's key.
        key: &'static str,
        source_name: String,
        /// Reason that it does not apply, as the end of a sentence.
        why: &'static str,
        hint: String,
    },
    /// A cell that can't be converted.
    #[error("{place}, column \"{column}\": {problem}")]
    #[diagnostic(forward(problem))]
    Cell {
        /// File and line or row.
        place: String,
        column: String,
        problem: CellProblem,
    },
    /// Files of a table, or rows for a model, that write numbers in two ways.
    #[error("numbers of `{}` have a decimal {own}, unlike those of {of}", path.display())]
    #[diagnostic(help(
        "set `data.decimal` to \",\" or \".\" if it is the same in all files, or convert one of them"
    ))]
    OtherDecimal {
        /// The later file.
        path: PathBuf,
        /// The file before in quotes, or the model.
        of: String,
        /// Mark of the later file, in words.
        own: &'static str,
    },
    /// A missing value where one is required.
    #[error("{place}, {column}: the value is missing")]
    #[diagnostic(help("{hint}"))]
    MissingValue {
        /// File and row.
        place: String,
        column: String,
        hint: &'static str,
    },
    /// Rows that a full shuffle would decode many times.
    #[error(
        "`{source_name}` needs {needed_mib} MiB of memory as rows of f32, but {}: a full shuffle would decode a row group for each row",
        memory_words::limit(*limit_mib)
    )]
    #[diagnostic(help(
        "set `data.shuffle_mode` to \"blocks\", raise the limit, or write the rows as an array (numpy.save), which is read row by row"
    ))]
    ShuffleDecodes { source_name: String, needed_mib: u64, limit_mib: u64 },
    /// Output files that already exist.
    #[error("`{}` exists", path.display())]
    #[diagnostic(help("use --overwrite to replace it, or choose another path"))]
    OutExists {
        /// The file, or one of them.
        path: PathBuf,
    },
    /// A row that does not exist.
    #[error("{source_name} has {n_rows} rows, numbered from 0: there is no row {row}")]
    NoSuchRow {
        source_name: String,
        row: usize,
        /// Rows of the source.
        n_rows: usize,
    },
    /// More rows than a report shows.
    #[error("{n_rows} rows or more are too many to show, at most {max}")]
    #[diagnostic(help("`ddp-train data convert` writes all rows to a file"))]
    TooManyRowsToShow {
        /// Requested rows.
        n_rows: usize,
        max: usize,
    },
}

impl TableError {
    /// The error of files in `error`, if it is one.
    pub fn of(error: &DataError) -> Option<&Self> {
        error.source_error()
    }

    /// Whether a label is not a class of the training rows.
    pub fn is_unknown_label(&self) -> bool {
        match self {
            Self::Target(error) => error.is_unknown_label(),
            Self::Cell { problem, .. } | Self::Rows(RowsError::Csv(CsvError::Cell { problem, .. })) => {
                problem.is_unknown_label()
            }
            _ => false,
        }
    }
}

impl SourceError for TableError {
    fn is_failure(&self) -> bool {
        match self {
            Self::Rows(error) => error.is_failure(),
            Self::HostMemory { .. } => true,
            _ => false,
        }
    }
}

impl From<TableError> for DataError {
    fn from(error: TableError) -> Self {
        DataError::from_source(error)
    }
}

impl From<RowsError> for DataError {
    fn from(error: RowsError) -> Self {
        match error {
            RowsError::File(error) => error.into(),
            RowsError::Write(error) => error.into(),
            // The limit may be that of a container.
            RowsError::TooLarge { source_name, what, needed_mib, limit_mib, hint } => {
                TableError::TooLarge { source_name, what, needed_mib, limit_mib, hint }.into()
            }
            error => TableError::Rows(error).into(),
        }
    }
}

macro_rules! into_data_error {
    ($($error:ty => $variant:path),+) => {$(
        impl From<$error> for DataError {
            fn from(error: $error) -> Self {
                $variant(error.into()).into()
            }
        }
    )+};
}

into_data_error!(
    CsvError => TableError::Rows,
    ColumnError => TableError::Rows,
    TargetError => TableError::Target,
    SplitError => TableError::Split
);
