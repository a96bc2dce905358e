//! The end of a command: its exit status, and which rank reports a failure.

use std::io;
use std::process::ExitCode;

use ddp_comm::failure::{self, Voice};
use ddp_comm::{Failure, World};

use crate::error::Error;
use crate::report::ReportError;
use crate::report::stdout::say;

/// Exit status of a run that was asked to stop and has saved itself.
const SAVED: u8 = 85;

/// Why a command stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// A rank failed.
    #[error(transparent)]
    Failed(ddp_comm::Stop<Error>),
    /// All ranks were told to stop, and the run was saved.
    #[error("stopped by {0}")]
    Saved(String),
}

impl<E> From<E> for Stop
where
    Error: From<E>,
{
    fn from(error: E) -> Self {
        Stop::Failed(ddp_comm::Stop::Alone(error.into()))
    }
}

impl<E> From<Failure<E>> for Stop
where
    Error: From<E>,
{
    fn from(failure: Failure<E>) -> Self {
        Stop::Failed(ddp_comm::Stop::from(failure).convert())
    }
}

impl<E> From<ddp_comm::Stop<E>> for Stop
where
    Error: From<E>,
{
    fn from(stop: ddp_comm::Stop<E>) -> Self {
        Stop::Failed(stop.convert())
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
        Err(Stop::Failed(stop)) => stop,
    };
    let (voice, code) = match &stop {
        ddp_comm::Stop::Agreed(failure) => match failure {
            Failure::Here { error, .. } => (failure.voice(), error.exit_code()),
            Failure::Elsewhere { .. } | Failure::Comm(_) => (failure.voice(), 1),
        },
        ddp_comm::Stop::Alone(error) if error.is_same_on_all_ranks() => (Voice::Shared, error.exit_code()),
        ddp_comm::Stop::Alone(Error::Comm(error)) => (error.voice(), 1),
        ddp_comm::Stop::Alone(error) => (Voice::Own, error.exit_code()),
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
                return conclude(world, Err(Error::Report(ReportError::Stdout { source }).into()));
            }
            _ => {}
        }
    }
    match leave(world) {
        ExitCode::SUCCESS => ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2)),
        failed => failed,
    }
}
