//! Mean loss over the rows of an epoch, as seen in training.

use ddp_kernels::ops::LossSums;

/// Mean loss over the rows of an epoch.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainLoss {
    sums: LossSums,
    n_rows: usize,
}

impl TrainLoss {
    /// Adds a step's sums over its `n_rows` rows.
    pub fn add(&mut self, sums: LossSums, n_rows: usize) {
        self.sums += sums;
        self.n_rows += n_rows;
    }

    /// Rows so far.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sums.mean()
    }
}
