//! How a command ends, and who says so.

use std::io::Write as _;
use std::process::ExitCode;

use ddp_comm::{CommError, Failure, World, failure};

use crate::error::Error;

/// Why a command stopped before its end.
#[derive(Debug)]
pub enum Stop {
    /// All ranks have heard of it and end in good order.
    Agreed(Failure<Error>),
    /// This rank failed where the others don't look: they are taken along.
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

/// Reports the end of a command and leaves the world. Every rank calls it last.
pub fn conclude(world: World, result: Result<(), Stop>) -> ExitCode {
    let code = match result {
        Ok(()) => 0,
        Err(Stop::Agreed(Failure::Here {
            error,
            speaks,
            everywhere,
        })) => {
            if speaks {
                let prefix = if everywhere {
                    String::new()
                } else {
                    world.prefix()
                };
                say(&format!("{prefix}error: {error}"));
            }
            error.exit_code()
        }
        Err(Stop::Agreed(Failure::Elsewhere { .. })) => 2,
        Err(Stop::Agreed(Failure::Comm(error))) => {
            failure::abort(&world, 1, &format!("error: {error}"))
        }
        Err(Stop::Alone(error)) if error.is_same_on_all_ranks() => {
            if world.rank().0 == 0 {
                say(&format!("error: {error}"));
            }
            error.exit_code()
        }
        Err(Stop::Alone(error)) => {
            failure::abort(&world, error.exit_code().into(), &format!("error: {error}"))
        }
    };
    match world.close() {
        Ok(()) => ExitCode::from(code),
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::from(code.max(1))
        }
    }
}

/// One write to stderr, so that lines of several ranks don't mix.
pub fn say(text: &str) {
    // Nobody is left to hear that stderr is closed.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

impl Error {
    /// Whether every rank has this very error at the same place, so that one of them may speak for all.
    pub fn is_same_on_all_ranks(&self) -> bool {
        match self {
            Error::LossNotFinite { .. } | Error::BatchOverflows => true,
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
