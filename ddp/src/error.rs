//! The one error type of the crate.
//!
//! Every message says what went wrong, where (file, line, column, key), what was expected and what
//! was found; where there is a way out, the last line is `hint: ...`. [`Error::exit_code`] tells
//! the two kinds apart: 2 when the command, config or data is at fault, 1 when the run failed.

use std::io;
use std::path::{Path, PathBuf};

use ddp_comm::CommError;
use ddp_kernels::KernelError;

use crate::checkpoint::CheckpointError;
use crate::config::Origin;
pub use crate::data::CellProblem;
use crate::data::DataError;
use crate::model::ModelError;
use crate::optim::loss_scaler::LossScalerError;
use crate::run_folder::error::FolderError;
use crate::storage::disk::is_out_of_inodes;
use crate::storage::user_file::{FileError, missing_hint};

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, with its place and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ------------------------------------------------------------------ the layers below
    /// A device, tensor or operation failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Ranks failed to work together.
    #[error(transparent)]
    Comm(Box<CommError>),

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
    /// Data that can't be used.
    #[error(transparent)]
    Data(Box<DataError>),
    /// Checkpoints that can't be written, found or read.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),

    // ------------------------------------------------------------------ model and training
    /// A model file that can't be used.
    #[error(transparent)]
    Model(Box<ModelError>),
    /// A schedule that ends with the run, and nobody knows when that is.
    #[error(
        "the schedule \"{kind}\" needs the number of steps of the run\nhint: give `train.steps` or `train.epochs`"
    )]
    ScheduleNeedsLength {
        /// Its name in the config.
        kind: &'static str,
    },
    /// A schedule for a longer run.
    #[error(
        "the schedule \"wsd\" takes {warmup_steps} + {decay_steps} steps for warm-up and decay, and the run has {total_steps} steps\nhint: shorten `schedule.warmup_steps` or `schedule.decay_steps`, or give them as fractions; or train longer"
    )]
    ScheduleTooLong {
        /// Of the warm-up.
        warmup_steps: u64,
        /// Of the decay.
        decay_steps: u64,
        /// Of the run.
        total_steps: u64,
    },
    /// A parameter group of nothing.
    #[error("`optimizer.groups`: no parameter matches \"{pattern}\"\nhint: the parameters are {names}")]
    NoSuchParameter {
        /// The group's pattern.
        pattern: String,
        /// All names.
        names: String,
    },
    /// A parameter group that those before it leave nothing.
    #[error(
        "`optimizer.groups`: \"{pattern}\" has no parameter left: {earlier} before it matches all of its own ({names})\n\
         hint: the first group that matches counts: put the narrower one first, or remove one"
    )]
    HiddenGroup {
        /// The group's pattern.
        pattern: String,
        /// Those that come first, in quotes.
        earlier: String,
        /// What it would match.
        names: String,
    },
    /// Gradients that no rank keeps travel as they are.
    #[error(
        "`comm.zero = 2` adds up gradients on their way, and `comm.dtype = \"bf16\"` would round them in every micro-batch\nhint: `comm.dtype = \"f32\"`, or `comm.zero = 1`"
    )]
    ZeroWire,
    /// The fixed tree adds up whole gradients as they are.
    #[error(
        "`train.deterministic = \"world\"` adds up whole gradients in f32 on every rank\nhint: with it `comm.zero` is 0 or 1, and `comm.dtype` is \"f32\""
    )]
    TreeOfWhole,
    /// Training went astray.
    #[error(
        "the loss of step {step} is {loss}; the weights are those before it\nhint: a smaller `optimizer.lr`, `train.clip_grad_norm = 1.0`, or `data.normalize = \"standard\"`"
    )]
    LossNotFinite {
        /// Number of the step, from 1.
        step: u64,
        /// Its mean loss.
        loss: f64,
    },
    /// Training went astray, and the loss does not show it.
    #[error(
        "the gradient of step {step} is not finite (its norm is {norm})\nhint: a smaller `optimizer.lr`, `train.clip_grad_norm = 1.0`, or `data.normalize = \"standard\"`"
    )]
    GradientNotFinite {
        /// Number of the step, from 1.
        step: u64,
        /// The gradient's 2-norm.
        norm: f64,
    },
    /// Training in f16 went astray.
    #[error(transparent)]
    LossScaler(#[from] LossScalerError),
    /// A model that was trained without evaluation data, and none were named.
    #[error("the run had no evaluation data\nhint: name some with --data")]
    NoEvalData,
    /// Rows of a global batch beyond counting.
    #[error(
        "`train.batch_size` times ranks times `train.grad_accum_steps` is more rows than can be counted\nhint: a smaller `train.batch_size`"
    )]
    BatchOverflows,
    /// More ranks than a global batch has parts.
    #[error(
        "{world_size} ranks, and `train.micro_shards` cuts each global batch into {n_shards} parts: some ranks would have none\n\
         hint: at most {n_shards} ranks, or more `train.micro_shards`, which is another run"
    )]
    MoreRanksThanShards {
        /// Ranks.
        world_size: usize,
        /// Parts.
        n_shards: usize,
    },
    /// Handlers of signals that the system does not take.
    #[error("can't listen for signals: {source}")]
    Signals {
        /// The system's answer.
        source: io::Error,
    },

    // ------------------------------------------------------------------ files given by the user
    /// A file that was named isn't there.
    #[error(
        "{what} `{}` does not exist\n\
         hint: {}",
        path.display(), missing_hint(path)
    )]
    FileMissing {
        /// What the file is for: "config file", "data file".
        what: &'static str,
        /// As the user wrote it.
        path: PathBuf,
    },
    /// A folder was named where a file is needed.
    #[error(
        "{what} `{}` is a folder, expected a file\n\
         hint: name the file inside it",
        path.display()
    )]
    FileIsFolder {
        /// What the file is for.
        what: &'static str,
        /// As the user wrote it.
        path: PathBuf,
    },
    /// The system refused to open or read a file.
    #[error(
        "{what} `{}` can't be read: {source}\n\
         hint: check its permissions and the disk",
        path.display()
    )]
    FileUnreadable {
        /// What the file is for.
        what: &'static str,
        /// As the user wrote it.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },

    // ------------------------------------------------------------------ config
    /// A config file far larger than any config.
    #[error(
        "config file `{}` has {n_bytes} bytes, expected at most {max_bytes}\n\
         hint: is it a data file? data go to `data.train` in the config",
        path.display()
    )]
    ConfigTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        n_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A config file with bytes that are not UTF-8.
    #[error("config file {at}: not UTF-8 text\nhint: save the file as UTF-8")]
    ConfigNotUtf8 {
        /// Place of the first bad byte.
        at: Box<Origin>,
    },
    /// A config file that is not TOML.
    #[error(
        "config file {at}: not valid TOML: {message}\n\
         hint: {}",
        syntax_hint(at)
    )]
    ConfigSyntax {
        /// Place of the first fault.
        at: Box<Origin>,
        /// The parser's message.
        message: String,
    },
    /// A key that no version of the config knows.
    #[error("{at}: unknown key `{key}`\nhint: {hint}")]
    UnknownKey {
        /// Where it was given.
        at: Box<Origin>,
        /// The key, with its section.
        key: String,
        /// The nearest known key, or the list of keys.
        hint: String,
    },
    /// A value of another type than the key's.
    #[error("{at}: `{key}` must be {expected}, got {got}\nhint: write `{example}`")]
    WrongType {
        /// Where it was given.
        at: Box<Origin>,
        /// The key, with its section.
        key: String,
        /// The type that is needed.
        expected: &'static str,
        /// Type and value found.
        got: String,
        /// A right value for this key.
        example: String,
    },
    /// A value of the right type that can't be used.
    #[error("{at}: `{key}` must be {expected}, got {got}\nhint: {hint}")]
    BadValue {
        /// Where it was given.
        at: Box<Origin>,
        /// The key, with its section.
        key: &'static str,
        /// The values that can be used.
        expected: String,
        /// The value found.
        got: String,
        /// The way out.
        hint: String,
    },
    /// Two keys of which only one may be given.
    #[error("{at}: `{key}` and `{other}` are both given\nhint: keep one of them: {hint}")]
    Conflict {
        /// Where the second was given.
        at: Box<Origin>,
        /// One key.
        key: &'static str,
        /// The other.
        other: &'static str,
        /// What each means.
        hint: &'static str,
    },
    /// A `--set` that is no assignment.
    #[error("`--set {arg}`: expected SECTION.KEY=VALUE\nhint: for example `--set optimizer.lr=0.001`")]
    BadSet {
        /// The argument as given.
        arg: String,
    },

    // ------------------------------------------------------------------ data
    /// A file of no bytes, or of blank lines only.
    #[error(
        "data file `{}`: the file is empty\n\
         hint: the first row holds the column names, each further row one row of data",
        path.display()
    )]
    CsvEmpty {
        /// The file.
        path: PathBuf,
    },
    /// Column names and nothing after them.
    #[error(
        "data file `{}`: no rows after the header\n\
         hint: each row after the first is one row of data",
        path.display()
    )]
    CsvNoRows {
        /// The file.
        path: PathBuf,
    },
    /// A first row of numbers.
    #[error(
        "data file `{}`: line 1: expected column names, got numbers (\"{first}\" comes \
         first)\n\
         hint: add a first row with the column names",
        path.display()
    )]
    CsvNoHeader {
        /// The file.
        path: PathBuf,
        /// The first cell.
        first: String,
    },
    /// An empty cell in the header.
    #[error(
        "data file `{}`: line 1: column {position} has no name\n\
         hint: name it or remove it; pandas writes an unnamed index column unless told \
         `index=False`",
        path.display()
    )]
    CsvUnnamedColumn {
        /// The file.
        path: PathBuf,
        /// From 1.
        position: usize,
    },
    /// Two columns of one name.
    #[error(
        "data file `{}`: line 1: columns {first} and {second} are both named \"{column}\"\n\
         hint: rename one of them",
        path.display()
    )]
    CsvDuplicateColumn {
        /// The file.
        path: PathBuf,
        /// The name.
        column: String,
        /// Position of the first, from 1.
        first: usize,
        /// Position of the second, from 1.
        second: usize,
    },
    /// No column of the target's name.
    #[error("data file `{}`: line 1: no target column \"{target}\"\nhint: {hint}", path.display())]
    CsvTargetMissing {
        /// The file.
        path: PathBuf,
        /// The name in the config.
        target: String,
        /// The nearest name, or the columns that there are.
        hint: String,
    },
    /// Only target columns.
    #[error(
        "data file `{}`: line 1: no feature columns, only the target {targets}\n\
         hint: every column that is not in `data.target` is a feature",
        path.display()
    )]
    CsvNoFeatures {
        /// The file.
        path: PathBuf,
        /// The target columns.
        targets: String,
    },
    /// A row with more or fewer cells than the header.
    #[error(
        "data file `{}`: line {line}: expected {expected} cells as in the header, got {got}\n\
         hint: {}",
        path.display(), ragged_hint(*expected, *got)
    )]
    CsvRagged {
        /// The file.
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
    CsvCell {
        /// The file.
        path: PathBuf,
        /// Line on which the row starts, from 1.
        line: u64,
        /// Name of the column; in the header its position.
        column: String,
        /// What is wrong.
        problem: CellProblem,
    },
    /// All labels are 0, so there is nothing to tell apart.
    #[error(
        "data file `{}`: the label is 0 in all {n_rows} rows, expected at least 2 classes\n\
         hint: is `data.target` the right column? else set `data.classes`",
        path.display()
    )]
    SingleClass {
        /// The file.
        path: PathBuf,
        /// Its rows.
        n_rows: usize,
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

    // ------------------------------------------------------------------ the run's folder
    /// The run's folder, or the checkpoint in it, is not what this run could go on with.
    #[error(transparent)]
    Folder(Box<FolderError>),
    /// Results that can't be written to where stdout leads.
    #[error("can't write to stdout: {source}\nhint: {}", stdout_hint(source))]
    Stdout {
        /// The system's answer.
        source: io::Error,
    },
    /// A file of the run couldn't be written while the run was going on.
    #[error("can't write `{}`: {source}\nhint: {}", path.display(), write_hint(path, source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Exit status of the process: 2 for a bad command, config or data; 1 for a run that failed.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Write { .. }
            | Self::Stdout { .. }
            | Self::LossNotFinite { .. }
            | Self::GradientNotFinite { .. } => 1,
            Self::LossScaler(_) => 1,
            // A device that was asked for and isn't there is the user's matter; so is another config on another rank.
            Self::Kernel(KernelError::DeviceUnavailable { .. } | KernelError::UnknownDevice { .. }) => 2,
            Self::Comm(error) if matches!(**error, CommError::Disagreement { .. }) => 2,
            Self::Kernel(_) | Self::Comm(_) | Self::RowsNotOnDevice { .. } | Self::LoaderThread { .. } => 1,
            Self::Data(error) if error.is_failure() => 1,
            Self::Checkpoint(error) if error.is_failure() => 1,
            _ => 2,
        }
    }
}

impl From<CommError> for Error {
    fn from(error: CommError) -> Self {
        Error::Comm(Box::new(error))
    }
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Kernel(error) => error.into(),
            ModelError::File(error) => error.into(),
            other => Error::Model(Box::new(other)),
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Missing { what, path } => Error::FileMissing { what, path },
            FileError::IsFolder { what, path } => Error::FileIsFolder { what, path },
            FileError::Unreadable { what, path, source } => Error::FileUnreadable { what, path, source },
        }
    }
}

impl From<FolderError> for Error {
    fn from(error: FolderError) -> Self {
        Error::Folder(Box::new(error))
    }
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        Error::Data(Box::new(error))
    }
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        Error::Checkpoint(Box::new(error))
    }
}

fn ragged_hint(expected: usize, got: usize) -> &'static str {
    if got < expected {
        "is the row cut off, or a comma missing?"
    } else {
        "texts with commas need quotes; numbers take a point, not a comma"
    }
}

fn stdout_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => {
            "the disk that it leads to is full: free some space, or send it elsewhere"
        }
        _ => "check where it leads",
    }
}

fn write_hint(path: &Path, source: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let hint = match source.kind() {
        io::ErrorKind::StorageFull if is_out_of_inodes(path) => {
            "the disk holds as many files as it can (`df -i`): delete some and run again"
        }
        io::ErrorKind::StorageFull => "the disk is full: free some space and run again",
        io::ErrorKind::QuotaExceeded => "the disk quota is used up: free some space and run again",
        io::ErrorKind::ReadOnlyFilesystem => "that disk is read-only: mount it writable",
        io::ErrorKind::PermissionDenied => "check who may write there",
        io::ErrorKind::IsADirectory => "it is a folder: name a file in it",
        io::ErrorKind::NotADirectory => "a part of its path is a file: check the spelling",
        io::ErrorKind::NotFound => match folder.filter(|folder| !folder.exists()) {
            Some(folder) => {
                return format!(
                    "the folder `{}` does not exist: make it, or name another place",
                    folder.display()
                );
            }
            None => "was its folder removed meanwhile?",
        },
        _ => "check permissions and the disk",
    };
    hint.to_owned()
}

fn syntax_hint(at: &Origin) -> &'static str {
    match at {
        Origin::File { path, .. } if path.extension().is_some_and(|ext| ext == "csv") => {
            "a data file goes to the config's `data.train`, or to `--set data.train=FILE`"
        }
        _ => "lines are `key = value` under `[section]`; texts need quotes",
    }
}
