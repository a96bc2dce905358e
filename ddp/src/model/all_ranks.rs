//! The exchange between the ranks that a layer can use.

use std::fmt::Debug;

use ddp_kernels::{KernelError, TensorRef};

/// Exchange between the ranks within a pass, for layers whose rows depend on the rows of all ranks.
///
/// Every rank calls it the same number of times and in the same order, including ranks without rows. On a GPU it is asynchronous
/// and ordered like an operation, so that it can be captured.
pub trait AllRanks: Debug {
    /// Gathers `own`, `[L]` f64, from all ranks: returns `[N, L]` in rank order, the same on every rank.
    ///
    /// - `L`: at most [`Layer::exchanged_len`](super::Layer::exchanged_len)
    ///
    /// # Errors
    /// [`KernelError::Exchange`] if the exchange between the ranks failed.
    fn gather(&mut self, own: TensorRef<'_>) -> Result<TensorRef<'_>, KernelError>;
}

/// The same ranks for one layer's pass.
pub(super) fn reborrow<'a>(ranks: &'a mut Option<&mut dyn AllRanks>) -> Option<&'a mut dyn AllRanks> {
    match ranks {
        Some(ranks) => Some(&mut **ranks),
        None => None,
    }
}
