//! Mean loss over the rows of an epoch, as seen in training.
//!
//! ```
//! use ddp::ops::LossSums;
//! use ddp::train::train_loss::TrainLoss;
//!
//! let mut loss = TrainLoss::default();
//! loss.add(LossSums { loss: 6.0, weight: 4.0 }, 4);
//! loss.add(LossSums { loss: 1.5, weight: 2.0 }, 2);
//! assert_eq!((loss.mean(), loss.n_rows()), (1.25, 6));
//! ```

use ddp_kernels::ops::LossSums;

use crate::checkpoint::EpochLossState;

/// Mean loss over the rows of an epoch.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainLoss {
    sums: LossSums,
    n_rows: usize,
}

impl TrainLoss {
    /// Restores the sums from a checkpoint.
    pub fn from_state(state: &EpochLossState) -> Self {
        let sums = LossSums { loss: state.loss, weight: state.weight };
        TrainLoss { sums, n_rows: state.n_rows as usize }
    }

    /// State for a checkpoint.
    pub fn to_state(&self) -> EpochLossState {
        EpochLossState { loss: self.sums.loss, weight: self.sums.weight, n_rows: self.n_rows as u64 }
    }

    /// Adds a step's sums over its `n_rows` rows.
    pub fn add(&mut self, sums: LossSums, n_rows: usize) {
        self.sums += sums;
        self.n_rows += n_rows;
    }

    /// Rows so far.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Mean loss.
    pub fn mean(&self) -> f64 {
        self.sums.mean()
    }
}
