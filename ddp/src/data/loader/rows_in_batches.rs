//! A loader for a loop of one's own, from the size of its batches on: `rows.batches(32).epochs(3).on(device)?`.

use std::sync::Arc;

use ddp_comm::World;
use ddp_kernels::Device;

use super::{BatchPlan, DataLoader, LoaderOptions, Shuffle};
use crate::data::datasets::dataset::Dataset;
use crate::data::datasets::resident::TensorDataset;
use crate::data::datasets::subset::Subset;
use crate::data::error::Result;

/// Rows and the size of their batches; [`RowsInBatches::on`] makes the loader. Shuffled anew each epoch with seed 0, endless, for one rank,
/// unless it says otherwise.
#[derive(Debug)]
#[must_use = "`on` makes the loader"]
pub struct RowsInBatches<'a> {
    rows: Arc<dyn Dataset>,
    plan: BatchPlan,
    world: Option<&'a World>,
}

impl TensorDataset {
    /// Loads the rows in steps of `batch_size` rows.
    ///
    /// ```
    /// use ddp::data::TensorDataset;
    /// use ddp::prelude::*;
    ///
    /// let x = Tensor::randn(&[100, 8], DType::F32, "cpu", 1)?;
    /// let rows = TensorDataset::new(&x, &x.sum(1)?)?;
    /// let mut loader = rows.batches(32).epochs(3).on("cpu")?;
    /// for _epoch in 0..3 {
    ///     for batch in loader.iter()? {
    ///         let (x, y) = batch?;
    ///         assert!(x.dims()[0] <= 32 && y.dims()[1] == 1);
    ///     }
    /// }
    /// # Ok::<(), ddp::Error>(())
    /// ```
    ///
    /// Source: `torch.utils.data.DataLoader`.
    pub fn batches<'a>(self, batch_size: usize) -> RowsInBatches<'a> {
        RowsInBatches::new(Arc::new(self), batch_size)
    }
}

impl Subset {
    /// Same as [`TensorDataset::batches`].
    pub fn batches<'a>(self, batch_size: usize) -> RowsInBatches<'a> {
        RowsInBatches::new(Arc::new(self), batch_size)
    }
}

impl<'a> RowsInBatches<'a> {
    /// Loads the rows of a dataset of one's own in steps of `batch_size` rows.
    pub fn new(rows: Arc<dyn Dataset>, batch_size: usize) -> Self {
        RowsInBatches { rows, plan: BatchPlan::new(batch_size), world: None }
    }

    /// Ends after `n` epochs.
    pub fn epochs(mut self, n: usize) -> Self {
        self.plan.n_epochs = Some(n as u64);
        self
    }

    /// Keeps the order of the rows.
    pub fn in_order(mut self) -> Self {
        self.plan.shuffle = Shuffle::Off;
        self
    }

    /// Leaves out the last step of an epoch where it has fewer rows; in a new order each epoch, these are other rows each time.
    pub fn drop_last(mut self) -> Self {
        self.plan.drop_last = true;
        self
    }

    /// Draws the orders of the epochs from this seed, the same on all ranks.
    pub fn seed(mut self, seed: u64) -> Self {
        self.plan.seed = seed;
        self
    }

    /// Divides the rows of each step among the ranks of `world`.
    pub fn across(self, world: &'a World) -> Self {
        RowsInBatches { world: Some(world), ..self }
    }

    /// The loader, whose batches arrive on `device`.
    ///
    /// # Errors
    /// See [`DataLoader::new`]; [`KernelError`](ddp_kernels::KernelError) for the name of no device.
    pub fn on(self, device: impl ddp_kernels::IntoDevice) -> Result<DataLoader> {
        let device: Device = device.into_device()?;
        let alone = World::single();
        DataLoader::new(self.world.unwrap_or(&alone), self.rows, &self.plan, LoaderOptions::new(device))
    }
}
