//! Errors of exchanging gradients and weights between ranks.

use ddp_comm::CommError;
use ddp_kernels::KernelError;

/// The result of this room's functions.
pub type Result<T, E = ExchangeError> = std::result::Result<T, E>;

/// An error of the exchange of gradients and weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// An operation on a tensor or device failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed.
    #[error(transparent)]
    Comm(Box<CommError>),
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
}

impl From<CommError> for ExchangeError {
    fn from(error: CommError) -> Self {
        ExchangeError::Comm(Box::new(error))
    }
}
