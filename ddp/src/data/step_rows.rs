//! The rows of one global step as one rank sees them: micro-batches in host memory, or on their way to a GPU.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ddp::data::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, TensorDataset};
//! use ddp::prelude::*;
//! use ddp::train::StepRows as _;
//!
//! let x = Tensor::randn(&[10, 3], DType::F32, Device::Cpu, 1)?;
//! let rows = Arc::new(TensorDataset::new(&x, &x.sum(1)?)?);
//! // Global batches of 8 rows in 2 micro-batches.
//! let plan = BatchPlan { partition: PartitionKind::Ranks { n_micro: 2 }, ..BatchPlan::new(8) };
//! let mut loader = DataLoader::new(&World::single(), rows, &plan, LoaderOptions::new(Device::Cpu))?;
//! let mut step = loader.next_step()?.expect("the plan has no last epoch");
//! assert_eq!((step.global_rows(), step.n_micro_batches()), (8, 2));
//! let second = step.micro_batch(1)?;
//! assert_eq!((second.first_row, second.rows.n_rows()), (4, 4));
//! # Ok::<(), ddp::Error>(())
//! ```

use ddp_kernels::Device;
use ddp_kernels::ops::ScalarsOutput;

use crate::data::datasets::batch::Batch;
use crate::data::device_rows::{DeviceRows, DeviceShape};
use crate::data::error::{DataError, Result};
use crate::data::order::partition::RankPartition;

/// One rank's shard of a global batch.
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

    /// Device for which the rows are loaded: the model's.
    fn device(&self) -> Device;

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

/// Checks that the rows are loaded for the device of the model.
///
/// # Errors
/// [`DataError::RowsElsewhere`].
pub(crate) fn check_device(rows: &impl StepRows, model: Device) -> Result<()> {
    let rows = rows.device();
    if rows == model { Ok(()) } else { Err(DataError::RowsElsewhere { model, rows }) }
}

/// Checks that the rows are divided among the ranks of the trainer.
///
/// # Errors
/// [`DataError::RowsOfOtherRanks`].
pub(crate) fn check_ranks(rows: &impl StepRows, own: usize) -> Result<()> {
    let of_rows = rows.partition().world_size;
    if of_rows == own { Ok(()) } else { Err(DataError::RowsOfOtherRanks { of_rows, own }) }
}
