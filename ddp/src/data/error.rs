//! What can be wrong with data. Every message names file, place, what was expected and found, and the way out.

use std::io;
use std::path::PathBuf;

use ddp_comm::CommError;
use ddp_kernels::KernelError;

use crate::data::table::CsvError;
use crate::storage::user_file::FileError;

/// The result of this room's functions.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

/// A fault of the user's data (exit status 2), or of the disk that it lies on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed.
    #[error(transparent)]
    Comm(Box<CommError>),
    /// A file could not be opened or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A fault of a CSV file.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// Rows that were to be kept on a GPU.
    #[error(
        "no room on the GPU for {rows} ({mib} MiB): {source}\nhint: leave `data.placement` at \"auto\", or store the features as f16, bf16 or u8"
    )]
    RowsNotOnDevice {
        /// The rows, in words.
        rows: String,
        /// What they need.
        mib: usize,
        /// What the GPU says.
        source: KernelError,
    },
    /// The system gives no thread.
    #[error(
        "can't start a thread that loads rows: {source}\nhint: a smaller `data.loader_threads`, or see the system's limit of threads"
    )]
    LoaderThread {
        /// The system's answer.
        source: io::Error,
    },
    /// A `builtin:` name that this build does not hold.
    #[error(
        "no built-in data set `builtin:{name}`\n\
         hint: there is builtin:{known}; a file of that name is `./builtin:{name}`"
    )]
    BuiltinUnknown {
        /// What follows `builtin:`.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// Targets that a built-in set does not have.
    #[error(
        "builtin:{name} holds one class index, `label`, of 10 classes; the config asks for \
         {asked}\n\
         hint: leave out `data.task`, `data.target` and `data.classes`, or name a CSV file in \
         `data.train`"
    )]
    BuiltinTargets {
        /// What follows `builtin:`.
        name: String,
        /// What the config asks for.
        asked: String,
    },
    /// A split that leaves one part without rows.
    #[error(
        "{source_name}: {empty} left when {n_rows} rows are split by `data.eval_fraction` = \
         {fraction}\n\
         hint: change `data.eval_fraction`, or name a file with test rows in `data.eval`"
    )]
    EmptySplit {
        /// The data.
        source_name: String,
        /// Rows before the split.
        n_rows: usize,
        /// The part to take out.
        fraction: f64,
        /// "no test rows" or "no training rows".
        empty: &'static str,
    },
    /// Training and evaluation rows with other columns.
    #[error(
        "{source_name}: its {n_columns} feature columns differ from the {n_other} of {other}: \
         {difference}\n\
         hint: both need the same columns; in tables their order may differ"
    )]
    ColumnsDiffer {
        /// The data with other columns.
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
    /// Some ranks would never have a row.
    #[error(
        "{source_name}: {n_rows} training rows, fewer than the {world_size} ranks\n\
         hint: start at most {n_rows} ranks (`mpirun -n {n_rows}`)"
    )]
    FewerRowsThanRanks {
        /// The data.
        source_name: String,
        /// Training rows.
        n_rows: usize,
        /// Ranks.
        world_size: usize,
    },
    /// Weights for another number of classes than the data's.
    #[error(
        "`loss.class_weights` has {n_weights} numbers, expected {n_classes}: one a class of \
         {source_name}\n\
         hint: give one weight for each class, or leave the key out"
    )]
    ClassWeightsCount {
        /// The data.
        source_name: String,
        /// Its classes.
        n_classes: usize,
        /// Weights given.
        n_weights: usize,
    },
    /// A file that is not what its name says.
    #[error("data file `{}` is no usable {format} file: {reason}\nhint: {hint}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// "npy", "Parquet", ...
        format: &'static str,
        /// What is wrong with it.
        reason: String,
        /// The way out.
        hint: &'static str,
    },
    /// A name ending that no format has.
    #[error(
        "data file `{}`: its name doesn't tell its format\nhint: set `data.format` to csv, npy, npz, safetensors, parquet or idx, or name it so",
        path.display()
    )]
    FormatUnknown {
        /// The file.
        path: PathBuf,
    },
    /// Parquet in a build without it.
    #[error(
        "data file `{}`: this build reads no Parquet\nhint: build with `cargo build --release --features parquet`, or convert the file to npy or safetensors",
        path.display()
    )]
    ParquetNotBuilt {
        /// The file.
        path: PathBuf,
    },
    /// A folder or pattern without files.
    #[error("no data file for `{pattern}`\nhint: {hint}")]
    NoFiles {
        /// As the user wrote it.
        pattern: String,
        /// The way out.
        hint: String,
    },
    /// A folder with files of several formats.
    #[error(
        "`{pattern}` holds files of several formats: `{}` and `{}`\nhint: name those of one format by a pattern, such as \"part-*.npy\"",
        first.display(), other.display()
    )]
    MixedFormats {
        /// The folder or pattern.
        pattern: String,
        /// A file.
        first: PathBuf,
        /// A file of another format.
        other: PathBuf,
    },
    /// A tensor that is not in the file.
    #[error("data file `{}` has no array \"{key}\"; it has {found}\nhint: {hint}", path.display())]
    NoArray {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        key: String,
        /// What is there.
        found: String,
        /// The way out.
        hint: String,
    },
    /// Features without labels.
    #[error("`{source_name}` has no labels\nhint: {hint}")]
    NoLabels {
        /// The features.
        source_name: String,
        /// The way out.
        hint: &'static str,
    },
    /// Features and labels of different lengths.
    #[error(
        "`{features}` has {n_features} rows, but its {what} `{other}` have {n_other}\nhint: both must come from the same rows: was one of them cut or written anew?"
    )]
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
    /// Shards that don't belong together.
    #[error(
        "`{}` and `{}` don't go together: {difference}\nhint: all shards must have the same columns and types",
        first.display(), other.display()
    )]
    ShardsDiffer {
        /// The first shard.
        first: PathBuf,
        /// The shard that differs.
        other: PathBuf,
        /// How.
        difference: String,
    },
    /// A shard without rows.
    #[error("data file `{}` has no rows\nhint: leave empty shards out", path.display())]
    NoRows {
        /// The file.
        path: PathBuf,
    },
    /// NaN or infinity among the features.
    #[error(
        "{place}, {column}: expected a finite number, got {value}\nhint: set `data.missing` to \"mean\" or \"zero\" if NaN stands for a missing value, else mend the data"
    )]
    NotFinite {
        /// File and row.
        place: String,
        /// The column.
        column: String,
        /// NaN or infinity.
        value: f64,
    },
    /// NaN or infinity among the targets, which nothing can stand in for.
    #[error(
        "{place}, {column}: expected a finite number, got {value}\nhint: mend the targets, or leave out the rows without one"
    )]
    TargetNotFinite {
        /// File and row.
        place: String,
        /// The target.
        column: String,
        /// NaN or infinity.
        value: f64,
    },
    /// A label that is no class.
    #[error(
        "{place}: label {label} is out of range, expected 0 to {} ({classes} classes)\nhint: set `data.classes` to {} or more, or number the classes from 0",
        classes - 1, label.saturating_add(1)
    )]
    LabelOutOfRange {
        /// File and row.
        place: String,
        /// The label.
        label: i64,
        /// Number of classes.
        classes: usize,
    },
    /// A label that is below 0.
    #[error("{place}: expected a class number of 0 or above, got {label}\nhint: number the classes from 0")]
    LabelNegative {
        /// File and row.
        place: String,
        /// The label.
        label: i64,
    },
    /// A label with a fraction.
    #[error(
        "{place}: expected a whole class number, got {label}\nhint: for real-valued targets set `data.task` to \"regression\""
    )]
    LabelNotWhole {
        /// File and row.
        place: String,
        /// The label.
        label: f64,
    },
    /// A label so large that it is likely no class.
    #[error(
        "{place}: label {label} would make as many classes\nhint: is it an identifier? number the classes from 0, or set `data.classes`; for real-valued targets set `data.task` to \"regression\""
    )]
    LabelHuge {
        /// File and row.
        place: String,
        /// The label.
        label: i64,
    },
    /// One class only.
    #[error(
        "`{source_name}`: all {n_rows} rows have label 0, expected two classes or more\nhint: is `data.target` or `data.labels` the right one? or set `data.classes`"
    )]
    SingleClass {
        /// The data.
        source_name: String,
        /// Its rows.
        n_rows: usize,
    },
    /// A multilabel target that is neither 0 nor 1.
    #[error(
        "{place}, {column}: expected 0 or 1 for task \"multilabel\", got {value}\nhint: for real-valued targets set `data.task` to \"regression\""
    )]
    NotBinary {
        /// File and row.
        place: String,
        /// The column.
        column: String,
        /// The value.
        value: f64,
    },
    /// A weight that is none.
    #[error("{place}: expected a weight of 0 or above, got {value}\nhint: mend the column of `data.weight`")]
    BadWeight {
        /// File and row.
        place: String,
        /// The value.
        value: f64,
    },
    /// Labels of another shape than the task needs.
    #[error("the labels in `{source_name}` have shape {shape:?}, expected {expected}\nhint: {hint}")]
    LabelShape {
        /// Where they are.
        source_name: String,
        /// Their shape.
        shape: Vec<usize>,
        /// What fits.
        expected: String,
        /// The way out.
        hint: &'static str,
    },
    /// More bytes than may be held in memory.
    #[error(
        "`{source_name}` needs {needed_mib} MiB of memory {what}, and `data.loader_memory_mib` is {limit_mib}\nhint: {hint}"
    )]
    TooLarge {
        /// The data.
        source_name: String,
        /// What the memory is for.
        what: &'static str,
        /// MiB.
        needed_mib: u64,
        /// MiB.
        limit_mib: u64,
        /// The way out.
        hint: String,
    },
    /// A file that got shorter while it was used, or a disk that failed.
    #[error(
        "data file `{}` changed while it was read: a part of it is gone\nhint: don't write to data that is trained on; if nobody did, check the disk",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Reading failed.
    #[error("data file `{}` can't be read: {source}\nhint: check its permissions and the disk", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A setting that the format has no use for.
    #[error("`{key}` is given, and `{source_name}` {why}\nhint: {hint}")]
    NotForFormat {
        /// The config's key.
        key: &'static str,
        /// The data.
        source_name: String,
        /// Why it makes no sense.
        why: &'static str,
        /// The way out.
        hint: String,
    },
    /// A column that the config names and the data don't have.
    #[error("data file `{}`: no column \"{column}\" for `{key}`\nhint: {hint}", path.display())]
    ColumnMissing {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The config's key.
        key: &'static str,
        /// The way out.
        hint: String,
    },
    /// A column of a type that can't be what it is needed for.
    #[error("data file `{}`, column \"{column}\": expected {expected}, got {got}\nhint: {hint}", path.display())]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What it should hold.
        expected: &'static str,
        /// Its type.
        got: String,
        /// The way out.
        hint: &'static str,
    },
    /// Nothing where a value must be.
    #[error("{place}, {column}: the value is missing\nhint: {hint}")]
    MissingValue {
        /// File and row.
        place: String,
        /// The column.
        column: String,
        /// The way out.
        hint: &'static str,
    },
    /// A list of another length than the first one.
    #[error(
        "{place}, {column}: expected a list of {expected} numbers as in the first row, got {got}\nhint: make all lists of a column equally long, or take it out with `data.drop`"
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
    /// A row of text without an end.
    #[error(
        "data file `{}`, line {line}: the row that begins here takes more than {max_mib} MiB\nhint: does the file have line ends, and is every quote closed?",
        path.display()
    )]
    RecordTooLarge {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// What a row may take.
        max_mib: usize,
    },
    /// Rows that would be decoded many times over.
    #[error(
        "`{source_name}` needs {needed_mib} MiB of memory as rows of f32, and `data.loader_memory_mib` is {limit_mib}: a full shuffle would decode a row group for each row\nhint: set `data.shuffle_mode` to \"blocks\", raise the limit, or convert the rows once: `ddp-train data convert {source_name} rows.safetensors`"
    )]
    ShuffleDecodes {
        /// The data.
        source_name: String,
        /// MiB.
        needed_mib: u64,
        /// MiB.
        limit_mib: u64,
    },
    /// A column with as many values as an identifier has.
    #[error(
        "column \"{column}\" of `{}` has more than {limit} distinct values\nhint: is it an identifier? take it out with `data.drop`",
        path.display()
    )]
    VocabularyHuge {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The most that are taken.
        limit: usize,
    },
    /// Files that would be written over.
    #[error("`{}` exists\nhint: --overwrite replaces it, or write to another place", path.display())]
    OutExists {
        /// The file, or one of them.
        path: PathBuf,
    },
    /// A place or format to which rows can't be written.
    #[error("can't write rows to `{out}`: {reason}\nhint: {hint}")]
    OutFormat {
        /// As the user wrote it.
        out: String,
        /// What is wrong with it.
        reason: String,
        /// The way out.
        hint: &'static str,
    },
    /// A value that a shorter number format has not.
    #[error(
        "{place}, column \"{column}\": {value} does not fit in {dtype}\nhint: --dtype f32 holds all values"
    )]
    DoesNotFit {
        /// File and row.
        place: String,
        /// The column.
        column: String,
        /// The value.
        value: f32,
        /// The number format.
        dtype: String,
    },
    /// A user's dataset that failed.
    #[error("dataset {source_name}: {reason}")]
    Custom {
        /// [`super::Dataset::source`]
        source_name: String,
        /// What it says.
        reason: String,
    },
}

impl DataError {
    /// Whether the run failed, rather than the command, config or data being at fault.
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::Changed { .. }
                | Self::Kernel(_)
                | Self::Comm(_)
                | Self::RowsNotOnDevice { .. }
                | Self::LoaderThread { .. }
        )
    }
}

impl From<CommError> for DataError {
    fn from(error: CommError) -> Self {
        DataError::Comm(Box::new(error))
    }
}
