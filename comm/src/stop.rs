//! Why a function that every rank calls ended early, and whether the other ranks know.

use crate::{CommError, Failure};

/// An error of a function that every rank calls.
#[derive(Debug, thiserror::Error)]
pub enum Stop<E> {
    /// All ranks know that one of them failed, and end in good order.
    #[error("{0}")]
    Agreed(Failure<E>),
    /// This rank failed where the others do not check: it ends the job.
    #[error("{0}")]
    Alone(E),
}

impl<E> Stop<E> {
    /// The error of this rank, if it has failed itself.
    pub fn error(&self) -> Option<&E> {
        match self {
            Stop::Agreed(Failure::Here { error, .. }) | Stop::Alone(error) => Some(error),
            Stop::Agreed(_) => None,
        }
    }

    /// The error of a collective by which this rank was to learn whether the others have failed.
    pub fn comm_error(&self) -> Option<&CommError> {
        match self {
            Stop::Agreed(Failure::Comm(error)) => Some(error),
            _ => None,
        }
    }

    /// The same stop, with the error type of the caller.
    pub fn convert<F: From<E>>(self) -> Stop<F> {
        self.map(F::from)
    }

    /// The same stop, with what `convert` makes of this rank's error.
    pub fn map<F>(self, convert: impl FnOnce(E) -> F) -> Stop<F> {
        match self {
            Stop::Agreed(Failure::Here { error, reports, on_all_ranks }) => {
                Stop::Agreed(Failure::Here { error: convert(error), reports, on_all_ranks })
            }
            Stop::Agreed(Failure::Elsewhere { rank }) => Stop::Agreed(Failure::Elsewhere { rank }),
            Stop::Agreed(Failure::Comm(error)) => Stop::Agreed(Failure::Comm(error)),
            Stop::Alone(error) => Stop::Alone(convert(error)),
        }
    }
}

impl<E> From<Failure<E>> for Stop<E> {
    fn from(failure: Failure<E>) -> Self {
        Stop::Agreed(failure)
    }
}

impl<E> From<E> for Stop<E> {
    fn from(error: E) -> Self {
        Stop::Alone(error)
    }
}
