//! The error type of the program: the library's errors with hints that name flags and keys, and errors of commands.
//!
//! Every message states what happened, where (file, line, column, key), and the expected and the given value; if there is a fix,
//! the last line is `hint: ...`. [`Error::exit_code`] maps an error to an exit status of [`ddp::exit_code`].

pub mod command;

use std::fmt;

use ddp::checkpoint::CheckpointError;
use ddp::config::ConfigError;
use ddp::data::DataError;
use ddp::exchange::ExchangeError;
use ddp::exit_code;
use ddp::model::ModelError;
use ddp::optim::OptimError;
use ddp::report::ReportError;
use ddp::run_folder::FolderError;
use ddp::storage::atomic_write::WriteError;
use ddp::storage::user_file::FileError;
use ddp::train::TrainError;
use ddp_comm::CommError;
use ddp_comm::watchdog::Unwatched;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::hint::joined;
use ddp_kernels::{Device, KernelError, MemoryUse};
use ddp_launch::LaunchError;
use ddp_tables::error::TableError;
use ddp_tables::export::ExportError;
use ddp_tables::formats::error::{CsvError, RowsError};
use ddp_tables::predict::PredictError;
use miette::Diagnostic;

use crate::error::command::CommandError;

/// Result of the program's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a command.
#[derive(Debug)]
#[allow(missing_docs)] // Fields say what they are.
pub enum Error {
    /// The library failed.
    Library(ddp::Error),
    /// The rows cannot be used for a trained model.
    ModelData(Box<DataError>, ModelCommand),
    /// Predictions could not be made or written.
    Predict(Box<PredictError>),
    /// The model has no form in the requested format.
    Export(Box<ExportError>),
    /// The command cannot do what its flags request.
    Command(CommandError),
    /// The ranks could not be started.
    Launch(Box<LaunchError>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(self.message(), self.hint().as_deref()))
    }
}

impl std::error::Error for Error {}

impl Error {
    /// The message, without the hint.
    pub fn message(&self) -> String {
        match self {
            Self::Library(error) => error.to_string(),
            Self::ModelData(error, command) => model_data_message(error, *command),
            Self::Predict(error) => error.to_string(),
            Self::Export(error) => error.to_string(),
            Self::Command(error) => error.to_string(),
            Self::Launch(error) => error.to_string(),
        }
    }

    /// The way out, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Library(error) => library_hint(error),
            Self::ModelData(error, command) => from_model_data(error, *command),
            Self::Predict(error) => error.help().map(|hint| hint.to_string()),
            Self::Export(error) if matches!(**error, ExportError::UnknownLayer { .. }) => {
                Some("`--format safetensors` exports the weights of any model".to_owned())
            }
            Self::Export(error) => error.help().map(|hint| hint.to_string()),
            Self::Command(error) => error.help().map(|hint| hint.to_string()),
            Self::Launch(error) => error.help().map(|hint| hint.to_string()),
        }
    }

    /// Makes the error for rows that `command` reads for a trained model.
    pub(crate) fn from_model_data(error: impl Into<ddp::Error>, command: ModelCommand) -> Self {
        match error.into() {
            ddp::Error::Data(error) => Error::ModelData(error, command),
            error => Error::Library(error),
        }
    }

    /// Exit status of a process that ends with this error; see [`ddp::exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Library(error) => error.exit_code(),
            Self::ModelData(error, _) => error.exit_code(),
            Self::Predict(_) | Self::Export(_) => exit_code::USAGE,
            Self::Command(error) => error.exit_code(),
            Self::Launch(error) => error.exit_code(),
        }
    }

    /// Whether every rank fails with this same error at the same point, so that one of them reports it for all.
    pub fn is_same_on_all_ranks(&self) -> bool {
        match self {
            Error::Library(error) => error.is_same_on_all_ranks(),
            Error::Command(error) => error.is_same_on_all_ranks(),
            _ => false,
        }
    }
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        Error::Command(error)
    }
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Run(error) => Error::Library(*error),
            error => Error::Launch(Box::new(error)),
        }
    }
}

impl From<PredictError> for Error {
    fn from(error: PredictError) -> Self {
        match error {
            PredictError::Data(error) => Error::from_model_data(*error, ModelCommand::Predict),
            PredictError::Kernel(error) => error.into(),
            PredictError::Comm(error) => error.into(),
            PredictError::Config(error) => error.into(),
            PredictError::Checkpoint(error) => error.into(),
            PredictError::Write(error) => error.into(),
            PredictError::Report(error) => error.into(),
            PredictError::Model(error) => error.into(),
            error => Error::Predict(error.into()),
        }
    }
}

impl From<ExportError> for Error {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Write(error) => error.into(),
            error => Error::Export(error.into()),
        }
    }
}

/// Rooms of the library and of the crates below it.
macro_rules! of_library {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Error::Library(error.into())
            }
        })*
    };
}
of_library!(
    ddp::Error,
    KernelError,
    CommError,
    Box<CommError>,
    FileError,
    WriteError,
    ConfigError,
    Box<ConfigError>,
    DataError,
    Box<DataError>,
    FolderError,
    CheckpointError,
    Box<CheckpointError>,
    ModelError,
    OptimError,
    ExchangeError,
    ReportError,
    TrainError,
);

/// Crates above the library, whose errors are those of rows.
macro_rules! of_rows {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                DataError::from(error).into()
            }
        })*
    };
}
of_rows!(RowsError, TableError);

/// The hint of an error of the library, with the flag or key to change where it comes from a crate below.
pub(crate) fn library_hint(error: &ddp::Error) -> Option<String> {
    match error {
        ddp::Error::Kernel(error) => and(error, kernel_hint(error)),
        ddp::Error::Comm(error) => hint_for_comm(error),
        error => {
            hint_for_options(error).map(str::to_owned).or_else(|| error.help().map(|hint| hint.to_string()))
        }
    }
}

/// The flag or key of an option that the library names by its Rust type.
fn hint_for_options(error: &ddp::Error) -> Option<&'static str> {
    Some(match error {
        ddp::Error::Optim(OptimError::ScheduleNeedsLength { .. }) => "give `train.steps` or `train.epochs`",
        ddp::Error::Exchange(ExchangeError::ZeroWire) => "use `comm.dtype = \"f32\"`, or `comm.zero = 1`",
        ddp::Error::Exchange(ExchangeError::CopiesOfWhole) => {
            "use `comm.zero` 1 or 2, or leave out `comm.zero_copies`"
        }
        ddp::Error::Exchange(ExchangeError::TreeOfWhole) => {
            "use `comm.zero` 0 or 1, and `comm.dtype = \"f32\"`"
        }
        ddp::Error::Exchange(ExchangeError::TreeOfStatistics) => {
            "use `layer_norm` or `rms_norm` in `model.layers`, or `train.deterministic = true`"
        }
        ddp::Error::Exchange(ExchangeError::ShardedNorms { .. }) => "use `comm.zero = 0`",
        ddp::Error::Train(error) if matches!(**error, TrainError::NoGraph { .. }) => {
            "--cuda-graph auto continues without one"
        }
        _ => return None,
    })
}

/// The command that finds faults of a machine or a launcher.
pub(crate) const DOCTOR: &str =
    "`ddp-train doctor`, started in the same way, checks the launcher, the hosts and their GPUs";

/// The hint of a [`CommError`], with the flag or key to change.
fn hint_for_comm(error: &CommError) -> Option<String> {
    let hint = match error {
        CommError::Kernel(error) => kernel_hint(error),
        CommError::TooFewGpus { .. } => Some("for tests, --share-gpu lets ranks share a GPU"),
        CommError::LauncherMismatch { .. } | CommError::Nccl { .. } | CommError::DeviceTimeout { .. } => {
            Some(DOCTOR)
        }
        CommError::NotJoinedByMpi { .. } => Some("start them by `mpirun -n N ddp-train ...`"),
        CommError::CountMismatch { .. } => Some("compare `model` in their configs"),
        CommError::BucketCountMismatch { .. } => Some("compare `model` and `comm` in their configs"),
        CommError::UnorderedSums { .. } => Some("or leave out `train.deterministic`"),
        CommError::NoRegistration { .. } => Some("comm.register_buffers = \"auto\" or \"off\""),
        CommError::NoMpiLibrary { .. } => {
            Some("the ranks of one host need no MPI: ddp-train launch --launcher env -n N -- ...")
        }
        CommError::GpuTaken { .. } => Some("--share-gpu lets ranks share a GPU, which is slow"),
        _ => None,
    };
    and(error, hint)
}

/// The warning about ranks that the watchdog does not watch, with the key that turns it off.
pub(crate) fn unwatched_warning(unwatched: &Unwatched) -> String {
    joined(unwatched.to_string(), and(unwatched, Some("or set `watchdog.enabled = false`")).as_deref())
}

/// The hint of an error, with one more.
fn and(error: &dyn Diagnostic, more: Option<&str>) -> Option<String> {
    match (error.help(), more) {
        (Some(hint), Some(more)) => Some(format!("{hint}; {more}")),
        (hint, more) => hint.map(|hint| hint.to_string()).or_else(|| more.map(str::to_owned)),
    }
}

fn kernel_hint(error: &KernelError) -> Option<&'static str> {
    match error {
        KernelError::DeviceUnavailable { device: Device::Cuda(_), .. } if Gpu::count() == 0 => {
            Some("or compute on the CPU: --device cpu")
        }
        KernelError::OutOfMemory { in_use: Some(in_use), .. }
            if !in_use.is_held_by_others()
                && matches!(in_use.largest(), MemoryUse::Activations | MemoryUse::Workspace) =>
        {
            Some("raise `train.grad_accum_steps`, or lower `train.batch_size`")
        }
        KernelError::Compile { .. } => Some("`ddp-train devices` shows its version"),
        KernelError::Cuda { .. } if error.is_driver_mismatch() => {
            Some("`ddp-train devices` shows both versions")
        }
        KernelError::Threads { .. } => Some("raise that limit, or lower --threads"),
        _ => None,
    }
}

/// The command that reads rows for a trained model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelCommand {
    /// `eval`
    Eval,
    /// `predict`
    Predict,
    /// `train --init-from`
    InitFrom,
}

/// Whether a label is not a class of the training rows.
fn is_unknown_label(error: &DataError) -> bool {
    TableError::of(error).is_some_and(TableError::is_unknown_label)
}

/// The message of an error of rows that a trained model reads.
pub(crate) fn model_data_message(error: &DataError, command: ModelCommand) -> String {
    match command {
        ModelCommand::InitFrom if is_unknown_label(error) => {
            error.to_string().replace("of the training rows", "of the model of --init-from")
        }
        _ => error.to_string(),
    }
}

/// The hint of an error of rows that a trained model reads. How columns are read was decided in training, so a hint that names a
/// key of the config is replaced by what the command can do.
pub(crate) fn from_model_data(error: &DataError, command: ModelCommand) -> Option<String> {
    let hint = error.help()?.to_string();
    Some(match (TableError::of(error), command) {
        (_, ModelCommand::InitFrom) if is_unknown_label(error) => {
            "correct the label, or train a new output layer for the labels of these rows with --new-head"
                .to_owned()
        }
        (_, ModelCommand::InitFrom) => hint,
        (Some(TableError::ColumnsDiffer { .. }), ModelCommand::Predict) => {
            format!("{hint}; --keep NAME writes a column that the model does not know before the predictions")
        }
        (Some(TableError::Rows(RowsError::Csv(CsvError::TargetMissing { .. }))), ModelCommand::Eval) => {
            "evaluating compares with true values in that column; `ddp-train predict` needs none".to_owned()
        }
        (_, ModelCommand::Eval) if hint.contains("`data.labels`") => {
            "name their labels with --labels FILE".to_owned()
        }
        (_, ModelCommand::Eval) if is_unknown_label(error) => {
            "correct the label, or leave out such rows with --unknown-label skip".to_owned()
        }
        (_, ModelCommand::Eval) if hint.contains("`data.missing_target`") => {
            "fill in the value, or leave out such rows with --missing-target skip".to_owned()
        }
        _ if hint.contains("`data.decimal`") => {
            "give the mark before the fraction in these rows by --set data.decimal=. or --set data.decimal=,"
                .to_owned()
        }
        (_, command) if hint.contains("`data.") => {
            let values = match (TableError::of(error), command) {
                (Some(TableError::Rows(RowsError::Csv(error))), _) if error.is_of_first_line() => {
                    "first line"
                }
                (_, ModelCommand::Eval) => "values, or remove such rows",
                _ => "values, or write such rows without a prediction with --bad-rows null",
            };
            format!(
                "correct the {values}; how columns are read was decided in training: train again with other settings of \
                 `data` to change it"
            )
        }
        _ => hint,
    })
}

#[cfg(test)]
mod tests {
    use ddp::exit_code::{ENVIRONMENT, USAGE};
    use ddp_kernels::hint::with_hint;

    use super::*;
    use crate::error::Error;

    #[test]
    fn exit_codes_follow_the_table() {
        let errors: [(Error, u8); 3] = [
            (CommandError::NoEvalData.into(), USAGE),
            (CommandError::OtherWorldSize { expected: 2, world_size: 1 }.into(), ENVIRONMENT),
            (KernelError::UnknownDevice { name: "gpu".to_owned() }.into(), USAGE),
        ];
        for (error, code) in errors {
            assert_eq!(error.exit_code(), code, "{error:?}");
        }
    }

    #[test]
    fn the_warning_about_unwatched_ranks_names_the_key() {
        let problem = "rank 0: connection refused".to_owned();
        let unwatched = Unwatched { n_unwatched: 2, n_ranks: 4, first: 1, problem };
        let text = unwatched_warning(&unwatched);
        let fault = "does not watch 2 of 4 ranks (rank 1 can't connect to rank 0: connection refused): if";
        assert!(text.contains(fault), "{text}");
        assert!(text.ends_with("on any TCP port; or set `watchdog.enabled = false`"), "{text}");
    }

    #[test]
    fn errors_of_lower_crates_name_the_flag_to_change() {
        let threads = KernelError::Threads { threads: 9, reason: "no memory".to_owned() };
        assert!(
            Error::from(threads.clone())
                .to_string()
                .ends_with("\nhint: raise that limit, or lower --threads")
        );
        let through_comm = Error::from(CommError::from(threads)).to_string();
        assert!(through_comm.ends_with("\nhint: raise that limit, or lower --threads"), "{through_comm}");
        let text = Error::from(CommError::TooFewGpus { n_gpus: 2, n_ranks: 3 }).to_string();
        assert!(
            text.contains("2 GPUs and 3 ranks\nhint: ") && text.contains("; for tests, --share-gpu"),
            "{text}"
        );
        assert_eq!(text.matches("hint: ").count(), 1, "{text}");
        let no_graph = TrainError::NoGraph { reason: "a layer".to_owned() };
        let options: [(ddp::Error, _, _); 3] = [
            (ExchangeError::ZeroWire.into(), "CommDtype::F32", "`comm.dtype"),
            (OptimError::ScheduleNeedsLength { kind: "cosine" }.into(), "Schedule::new", "`train.steps`"),
            (no_graph.into(), "GraphMode::Auto", "--cuda-graph auto"),
        ];
        for (error, rust, key) in options {
            let (library, program) = (with_hint(&error), Error::from(error).to_string());
            assert!(library.contains(rust) && program.contains(key) && !program.contains(rust), "{program}");
        }
        let bucket = CommError::CountMismatch { bucket: 1, rank: 2, got: 7, expected: 8 };
        let buckets = CommError::BucketCountMismatch { rank: 2, got: 7, expected: 8 };
        let unordered = CommError::UnorderedSums { variable: "NCCL_ALGO", value: "NVLS".to_owned() };
        for (error, key) in [(bucket, "`model`"), (buckets, "`comm`"), (unordered, "`train.deterministic`")] {
            let (plain, text) = (error.to_string(), Error::from(error).to_string());
            assert!(!plain.contains(key) && text.contains(key), "{text}");
        }
    }
}
