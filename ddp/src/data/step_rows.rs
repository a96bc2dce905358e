//! The rows of one global step as one rank sees them: micro-batches in host memory, or on their way to a GPU.

use ddp_kernels::ops::ScalarsOutput;

use crate::data::batch::Batch;
use crate::data::device_rows::{DeviceRows, DeviceShape};
use crate::data::error::Result;
use crate::data::order::partition::RankPartition;

/// One rank's part of a global batch.
#[derive(Debug, Clone, Copy)]
pub struct MicroBatch<'a> {
    /// Its rows; there may be none.
    pub rows: Batch<'a>,
    /// Place of its first row in the global batch.
    pub first_row: usize,
}

/// The rows of one global batch that belong to this rank.
pub trait StepRows {
    /// Partition of the global batch over ranks and micro-batches.
    fn partition(&self) -> RankPartition;

    /// Rows of the global batch over all ranks.
    fn global_rows(&self) -> usize;

    /// Number of micro-batches of this rank.
    fn n_micro_batches(&self) -> usize {
        self.partition().n_micro_batches(self.global_rows())
    }

    /// Number of this rank's rows.
    fn n_own_rows(&self) -> usize {
        self.partition().n_own_rows(self.global_rows())
    }

    /// Whether rows have weights.
    fn has_weights(&self) -> bool;

    /// Micro-batch `index`, in host memory.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) of reading the rows.
    fn micro_batch(&mut self, index: usize) -> Result<MicroBatch<'_>>;

    /// Shape and data type of the rows as they are copied to a GPU.
    fn device_shape(&self) -> DeviceShape;

    /// Starts copying all of this rank's rows to `to`, made for rows of [`StepRows::device_shape`], and writes the step's `scalars`,
    /// in the launch that numbers the rows where one does.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) of reading the rows or of the copies.
    fn send(&mut self, to: &mut DeviceRows, scalars: Option<ScalarsOutput<'_>>) -> Result<()>;
}
