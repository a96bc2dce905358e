//! How a command ends, and who says so.

use std::io::{self, Write as _};
use std::process::ExitCode;

use ddp_comm::failure::{self, Voice};
use ddp_comm::{CommError, Failure, World};

use crate::error::Error;

/// Exit status of a run that was asked to stop and has saved itself.
const SAVED: u8 = 85;

/// Why a command stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// All ranks have heard of it and end in good order.
    #[error("{0}")]
    Agreed(Failure<Error>),
    /// The run was asked to stop, on all ranks, and has saved itself.
    #[error("stopped by {0}")]
    Saved(String),
    /// This rank failed where the others don't look: they are taken along.
    #[error("{0}")]
    Alone(Error),
}

impl From<Failure<Error>> for Stop {
    fn from(failure: Failure<Error>) -> Self {
        Stop::Agreed(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Alone(error)
    }
}

/// Leaves the world, or reports why the command stopped and ends the job. Every rank calls it last.
pub fn conclude(world: World, result: Result<(), Stop>) -> ExitCode {
    let stop = match result {
        Ok(()) => return leave(world),
        Err(Stop::Saved(_)) => {
            return match leave(world) {
                ExitCode::SUCCESS => ExitCode::from(SAVED),
                failed => failed,
            };
        }
        Err(stop) => stop,
    };
    let (voice, code) = match &stop {
        Stop::Agreed(failure) => match failure {
            Failure::Here { error, .. } => (failure.voice(), error.exit_code()),
            Failure::Elsewhere { .. } | Failure::Comm(_) => (failure.voice(), 1),
        },
        Stop::Saved(_) => unreachable!("returned above"),
        Stop::Alone(error) if error.is_same_on_all_ranks() => (Voice::Shared, error.exit_code()),
        Stop::Alone(Error::Comm(error)) => (error.voice(), 1),
        Stop::Alone(error) => (Voice::Own, error.exit_code()),
    };
    failure::abort(&world, code.into(), voice, format!("error: {stop}"))
}

fn leave(world: World) -> ExitCode {
    match world.close() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Ends a command whose arguments make no sense, or whose help was asked for; rank 0 speaks.
pub fn conclude_usage(world: World, usage: &clap::Error) -> ExitCode {
    if world.world_size() > 1 && usage.exit_code() != 0 {
        failure::abort(&world, usage.exit_code(), Voice::Shared, usage.render().to_string().trim_end());
    }
    if world.rank().0 == 0 {
        match usage.print() {
            // Help that was asked for and can't be shown. Nobody is left to hear that stderr can't be written.
            Err(source) if usage.exit_code() == 0 && source.kind() != io::ErrorKind::BrokenPipe => {
                return conclude(world, Err(Error::Stdout { source }.into()));
            }
            _ => {}
        }
    }
    match leave(world) {
        ExitCode::SUCCESS => ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2)),
        failed => failed,
    }
}

/// One write to stderr, so that lines of several ranks don't mix.
pub fn say(text: &str) {
    // Nobody is left to hear that stderr is closed.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

impl Error {
    /// Whether every rank has this very error at the same place, so that one of them may speak for all.
    pub fn is_same_on_all_ranks(&self) -> bool {
        match self {
            Error::LossNotFinite { .. } | Error::GradientNotFinite { .. } | Error::BatchOverflows => true,
            // All ranks see the same gradients.
            Error::LossScaler(_) => true,
            Error::Comm(error) => matches!(
                **error,
                CommError::Disagreement { .. }
                    | CommError::CountMismatch { .. }
                    | CommError::BucketCountMismatch { .. }
            ),
            _ => false,
        }
    }
}
