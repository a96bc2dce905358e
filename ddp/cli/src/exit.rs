//! The end of a command: its exit status, and the rank that reports a failure.
//!
//! ```
//! use ddp_train::exit::{Stop, conclude};
//! use ddp::prelude::World;
//! use ddp_train::report::log::Log;
//!
//! fn main() -> std::process::ExitCode {
//!     let world = World::init().expect("a world of one rank, or of mpirun's");
//!     let log = Log::none(&world);
//!     let result = (|| -> Result<(), Stop> {
//!         // What the program does.
//!         Ok(())
//!     })();
//!     conclude(world, &log, result)
//! }
//! ```

use std::io;
use std::process::ExitCode;

use ddp::exit_code;
use ddp::report::ReportError;
use ddp::report::notes::LOG_FILE;
use ddp::run_folder::FolderError;
use ddp_comm::{Failure, Reporter, World, failure};
use ddp_kernels::hint::{joined, with_hint};
use miette::Diagnostic as _;
use tracing::{error, warn};

use crate::error::Error;
use crate::report::FailedRun;
use crate::report::log::{Log, LogOptions, error_line};
use crate::report::stdout::say;

/// The reason why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// A rank failed.
    #[error(transparent)]
    Failed(ddp_comm::Stop<Error>),
    /// A rank failed in a training run, whose last event reports the failure.
    #[error("{0}")]
    FailedRun(ddp_comm::Stop<Error>, Box<FailedRun>),
    /// All ranks stopped as requested; the run saved a checkpoint, if it had begun.
    #[error("stopped by {0}")]
    Requested(String),
    /// The command has already reported why it ends with this status.
    #[error("ended with status {0}")]
    Reported(u8),
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

/// Leaves the world, or reports the failure of the command and aborts the job. Every rank calls it last.
pub fn conclude(world: World, log: &Log, result: Result<(), Stop>) -> ExitCode {
    let (stop, run) = match result {
        Ok(()) => return leave_after(world, log, 0),
        Err(Stop::Requested(_)) => return leave_after(world, log, exit_code::SAVED),
        Err(Stop::Reported(status)) => return leave_after(world, log, status),
        Err(Stop::Failed(stop)) => (stop, None),
        Err(Stop::FailedRun(stop, run)) => (stop, Some(run)),
    };
    log.terminal().flush();
    let (reporter, code) = match &stop {
        ddp_comm::Stop::Agreed(failure) => match failure {
            Failure::Here { error, .. } => (failure.reporter(), error.exit_code()),
            Failure::Elsewhere { .. } | Failure::Comm(_) => (failure.reporter(), exit_code::FAILED),
        },
        ddp_comm::Stop::Alone(error) if error.is_same_on_all_ranks() => {
            (Reporter::RankZero, error.exit_code())
        }
        ddp_comm::Stop::Alone(error @ Error::Library(ddp::Error::Comm(comm))) => {
            (comm.reporter(), error.exit_code())
        }
        ddp_comm::Stop::Alone(error) => (Reporter::ThisRank, error.exit_code()),
    };
    log.terminal().begin_failure();
    let (message, hint) = match &stop {
        ddp_comm::Stop::Alone(error) | ddp_comm::Stop::Agreed(Failure::Here { error, .. }) => {
            (error.message(), error.hint())
        }
        ddp_comm::Stop::Agreed(Failure::Comm(error)) => {
            (error.to_string(), error.help().map(|hint| hint.to_string()))
        }
        ddp_comm::Stop::Agreed(elsewhere @ Failure::Elsewhere { .. }) => (elsewhere.to_string(), None),
    };
    let has_lost_folder = match &stop {
        ddp_comm::Stop::Alone(error) | ddp_comm::Stop::Agreed(Failure::Here { error, .. }) => {
            matches!(error, Error::Library(ddp::Error::Folder(error)) if matches!(**error, FolderError::Lost { .. }))
        }
        ddp_comm::Stop::Agreed(_) => false,
    };
    let text = joined(message.clone(), hint.as_deref());
    error!(target: LOG_FILE, "{text}");
    failure::abort_with(&world, code.into(), reporter, |prefix| {
        if let Some(run) = run {
            let write = if has_lost_folder { FailedRun::write_elsewhere } else { FailedRun::write };
            write(&run, code, world.rank().0, &message, hint.as_deref());
        }
        log.terminal().failure(prefix, &text)
    })
}

/// Leaves the world, and then waits until the last lines are written, so that other ranks do not wait.
///
/// A communicator that does not come to its end is no failure of the command, whose results are complete: a scheduler would start
/// the job again.
fn leave_after(world: World, log: &Log, status: u8) -> ExitCode {
    let closed = world.close();
    if let Some(slow) = closed.as_ref().err().filter(|error| error.is_after_work()) {
        warn!("{}", with_hint(slow));
        log.terminal().flush();
        // The ranks have left MPI, so this ends none of the others.
        failure::end_job(status.into());
    }
    let code = left(closed, status);
    log.terminal().flush();
    code
}

/// The exit status after the world was left.
fn left(closed: ddp_comm::Result<()>, status: u8) -> ExitCode {
    match closed {
        Ok(()) => ExitCode::from(status),
        Err(error) => {
            say(&error_line(&with_hint(&error)));
            ExitCode::from(exit_code::FAILED)
        }
    }
}

/// Ends a command with invalid arguments, or a command that only prints its help; rank 0 reports.
pub fn conclude_usage(world: World, usage: &clap::Error) -> ExitCode {
    if world.world_size() > 1 && usage.exit_code() != 0 {
        failure::abort(&world, usage.exit_code(), Reporter::RankZero, usage.render().to_string().trim_end());
    }
    if world.rank().0 == 0 {
        match usage.print() {
            // Help was requested and cannot be printed. A usage error that stderr refuses cannot be reported anywhere.
            Err(source) if usage.exit_code() == 0 && source.kind() != io::ErrorKind::BrokenPipe => {
                let log = Log::install(&world, &LogOptions::default(), false);
                return conclude(world, &log, Err(ReportError::Stdout { source }.into()));
            }
            _ => {}
        }
    }
    left(world.close(), u8::try_from(usage.exit_code()).unwrap_or(exit_code::USAGE))
}
