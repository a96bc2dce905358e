//! The error type of the program: the library's errors with hints that name flags and keys, and errors of commands.
//!
//! Every message states what happened, where (file, line, column, key), and the expected and the given value; if there is a fix,
//! the last line is `hint: ...`. [`Error::exit_code`] maps an error to an exit status of [`ddp::exit_code`].

pub mod command;
pub(crate) mod hints;

use std::fmt;

use ddp::checkpoint::CheckpointError;
use ddp::config::ConfigError;
use ddp::data::DataError;
use ddp::exchange::ExchangeError;
use ddp::export::ExportError;
use ddp::model::ModelError;
use ddp::optim::OptimError;
use ddp::predict::PredictError;
use ddp::report::ReportError;
use ddp::run_folder::FolderError;
use ddp::storage::atomic_write::WriteError;
use ddp::train::TrainError;
use ddp_comm::CommError;
use ddp_kernels::KernelError;
use ddp_kernels::hint::joined;
use ddp_launch::LaunchError;
use ddp_rows::error::RowsError;
use ddp_rows::user_file::FileError;
use miette::Diagnostic as _;

use crate::error::command::CommandError;
pub use crate::error::hints::ModelCommand;
use crate::error::hints::{model_data_message, of_library, of_model_data};

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
            Self::Command(error) => error.to_string(),
            Self::Launch(error) => error.to_string(),
        }
    }

    /// The way out, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Library(error) => of_library(error),
            Self::ModelData(error, command) => of_model_data(error, *command),
            Self::Command(error) => error.help().map(|hint| hint.to_string()),
            Self::Launch(error) => error.help().map(|hint| hint.to_string()),
        }
    }

    /// Makes the error for rows that `command` reads for a trained model.
    pub(crate) fn of_model_data(error: DataError, command: ModelCommand) -> Self {
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
            PredictError::Data(error) => Error::of_model_data(*error, ModelCommand::Predict),
            error => Error::Library(error.into()),
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
    RowsError,
    WriteError,
    ConfigError,
    Box<ConfigError>,
    DataError,
    Box<DataError>,
    FolderError,
    CheckpointError,
    Box<CheckpointError>,
    ModelError,
    ExportError,
    OptimError,
    ExchangeError,
    ReportError,
    TrainError,
);

#[cfg(test)]
mod tests {
    use ddp::exit_code::{ENVIRONMENT, USAGE};

    use super::*;

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
}
