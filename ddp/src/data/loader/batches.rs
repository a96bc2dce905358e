//! Batches as tensors on the rank's device, for loops of a program's own.

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, Tensor};

use super::DataLoader;
use super::device_feed::DeviceFeed;
use crate::data::error::{DataError, Result};
use crate::data::step_rows::StepRows as _;
use crate::data::tensor_rows_error::TensorRowsError;

/// This rank's rows of one global batch, on its device.
#[derive(Debug)]
pub struct TensorBatch {
    /// Features, `[B, features]` f32; a rank can have no rows.
    pub x: Tensor,
    /// Targets: class indices, `[B]` i64, or values, `[B, K]` f32.
    pub y: Tensor,
    /// Weights of the rows, `[B]` f32, if rows have weights.
    pub weights: Option<Tensor>,
    /// The epoch, from 1.
    pub epoch: u64,
    /// Rows of the global batch over all ranks, by which a mean is divided.
    pub global_rows: usize,
    /// Place of the first row in the global batch.
    pub first_row: usize,
    /// Ranks that have a share of the global batch each.
    pub n_ranks: usize,
}

/// The batches up to the end of an epoch.
#[derive(Debug)]
pub struct Batches<'a> {
    loader: &'a mut DataLoader,
    feed: DeviceFeed,
    has_begun: bool,
    has_ended: bool,
}

impl DataLoader {
    /// The batches up to the end of the epoch, as pairs of features and targets on the device of [`super::LoaderOptions`]: one epoch,
    /// or the rest of one that was left early.
    ///
    /// The pairs own their memory. On a GPU they are copied there while earlier work computes.
    ///
    /// # Errors
    /// [`TensorRowsError::Weighted`] for rows with weights, which [`DataLoader::batches`] returns; [`DataError::Kernel`]. After the plan's
    /// last epoch the first item is [`DataError::PlanEnded`].
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use ddp::data::{BatchPlan, DataLoader, LoaderOptions, TensorDataset};
    /// use ddp::prelude::*;
    ///
    /// ddp::launch(2, |world| -> ddp::Result<()> {
    ///     let x = Tensor::randn(&[10, 3], DType::F32, Device::Cpu, 1)?;
    ///     let rows = Arc::new(TensorDataset::new(&x, &x.sum(1)?)?);
    ///     // Global batches of 4 rows, of which each rank gets 2.
    ///     let plan = BatchPlan { n_epochs: Some(2), ..BatchPlan::new(4) };
    ///     let mut loader = DataLoader::new(world, rows, &plan, LoaderOptions::new(Device::Cpu))?;
    ///     for epoch in 0..2 {
    ///         for batch in loader.iter()? {
    ///             let (x, y) = batch?;
    ///             assert_eq!((x.dims()[1], y.dims()[1]), (3, 1), "epoch {epoch}");
    ///         }
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), ddp::Error>(())
    /// ```
    pub fn iter(&mut self) -> Result<impl Iterator<Item = Result<(Tensor, Tensor)>> + '_> {
        if self.rows.dataset().layout().has_weights {
            return Err(TensorRowsError::Weighted.into());
        }
        Ok(self.batches()?.map(|batch| batch.map(|TensorBatch { x, y, .. }| (x, y))))
    }

    /// Same as [`DataLoader::iter`], with weights of rows, the epoch and the places of the rows.
    ///
    /// # Errors
    /// [`DataError::Kernel`]. After the plan's last epoch the first item is [`DataError::PlanEnded`].
    pub fn batches(&mut self) -> Result<Batches<'_>> {
        let feed = DeviceFeed::new(self.gpu.map_or(Device::Cpu, Gpu::device))?;
        Ok(Batches { loader: self, feed, has_begun: false, has_ended: false })
    }
}

impl Batches<'_> {
    fn load(&mut self) -> Result<Option<TensorBatch>> {
        let Some(mut step) = self.loader.next_step()? else { return Ok(None) };
        let (epoch, global_rows, n_ranks) = (step.epoch(), step.global_rows(), step.partition().world_size);
        let first_row = step.partition().first_own_row(global_rows);
        self.has_ended = step.ends_epoch();
        let batch = self.feed.next(&mut step)?;
        let weights = batch.weights.map(|weights| weights.to_tensor()).transpose()?;
        let (x, y) = (batch.x.to_tensor()?, batch.targets.to_tensor()?);
        self.feed.consumed()?;
        Ok(Some(TensorBatch { x, y, weights, epoch, global_rows, first_row, n_ranks }))
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<TensorBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let mut batch = self.load();
        self.has_ended |= !matches!(batch, Ok(Some(_)));
        if !self.has_begun && matches!(batch, Ok(None)) {
            batch = Err(DataError::PlanEnded);
        }
        self.has_begun = true;
        batch.transpose()
    }
}
