//! Keeps the size of micro-batches if fewer ranks remain: each rank then processes more rows of the global batch, but has memory
//! for only as many rows at a time as before.

use ddp::config::{Batch, Config, Determinism};

/// Batch settings of a run as it was configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batches {
    /// Rows of a global batch if the config sets them; otherwise a rank's micro-batch has a fixed size anyway.
    global_rows: Option<usize>,
    n_micro: usize,
}

impl Batches {
    pub(crate) fn of(config: &Config) -> Self {
        let train = &config.train;
        // Micro-shards divide the batch in the same way for any number of ranks.
        let global_rows = match (train.batch, train.deterministic) {
            (Batch::Global(rows), Determinism::Off | Determinism::On) => Some(rows),
            _ => None,
        };
        Batches { global_rows, n_micro: train.grad_accum_steps }
    }

    /// Micro-batches per rank on `n_ranks` of `n_before` ranks, if the number differs from the configured one.
    pub(crate) fn n_micro(&self, n_before: usize, n_ranks: usize) -> Option<usize> {
        let rows = self.global_rows.filter(|_| n_ranks < n_before)?;
        Some((self.n_micro * n_before).div_ceil(n_ranks).min(rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_ranks_take_more_micro_batches() {
        let global = Batches { global_rows: Some(64), n_micro: 2 };
        assert_eq!([4, 3, 2, 1].map(|n_ranks| global.n_micro(4, n_ranks)), [None, Some(3), Some(4), Some(8)]);
        assert_eq!(Batches { global_rows: Some(5), ..global }.n_micro(4, 1), Some(5), "a row is the least");
        assert_eq!(Batches { global_rows: None, ..global }.n_micro(4, 1), None);
    }
}
