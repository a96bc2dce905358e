//! One loaded batch, the input of a step.

use ddp_kernels::ops::{self, ScalarsOutput};
use ddp_kernels::{DType, Device, TensorRef};

use super::Rows;
use super::device_order::DeviceOrder;
use super::host_batch::{HostBatch, Sending};
use super::plan::Job;
use crate::data::DeviceNormalizer;
use crate::data::datasets::batch::Batch;
use crate::data::device_rows::{DeviceRows, DeviceShape, PinnedRows};
use crate::data::error::Result;
use crate::data::order::epoch_order::RowOrder;
use crate::data::order::partition::RankPartition;
use crate::data::step_rows::{MicroBatch, StepRows};

/// This rank's rows of one global batch.
#[derive(Debug)]
pub struct LoadedStep<'a> {
    pub(super) batch: &'a mut HostBatch,
    pub(super) rows: &'a Rows,
    pub(super) device: Device,
    pub(super) normalizer: Option<&'a DeviceNormalizer>,
    /// Where the GPU computes row numbers.
    pub(super) device_order: Option<&'a mut DeviceOrder>,
    /// Whether copies to a GPU are timed.
    pub(super) times_copies: bool,
}

impl LoadedStep<'_> {
    fn job(&self) -> &Job {
        self.batch.job()
    }

    /// The epoch, from 1.
    pub fn epoch(&self) -> u64 {
        self.job().epoch + 1
    }

    /// Whether the epoch has no more steps.
    pub fn ends_epoch(&self) -> bool {
        self.job().ends_epoch
    }

    /// Positions of the global batch in the epoch's order: the numbers of its rows where the order is that of the rows.
    pub fn positions(&self) -> std::ops::Range<usize> {
        self.job().global.clone()
    }

    /// Numbers of the rows in the dataset's source.
    pub(crate) fn source_rows(&self) -> Vec<usize> {
        let order = &self.job().order;
        self.job()
            .own()
            .flatten()
            .map(|position| self.rows.dataset().source_row(order.index(position)))
            .collect()
    }

    /// Part of the rows, in evaluation.
    pub fn part(&self) -> usize {
        self.job().part
    }

    /// Targets and weights, in host memory.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) if they cannot be read.
    pub(crate) fn targets_and_weights(&self) -> Result<(TensorRef<'_>, Option<TensorRef<'_>>)> {
        let Batch { targets, weights, .. } = self.batch()?;
        Ok((targets, weights))
    }

    /// The rows in the model's format, on the CPU; for a batch that is sent to a GPU, the host's copies in the format in which they are sent.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) if they cannot be read.
    ///
    /// # Panics
    /// If the rows are on the GPU ([`super::DataLoader::is_on_gpu`]).
    pub fn batch(&self) -> Result<Batch<'_>> {
        self.batch.rows(&**self.rows.dataset(), 0..self.job().n_own())
    }
}

impl StepRows for LoadedStep<'_> {
    fn partition(&self) -> RankPartition {
        self.job().partition
    }

    fn global_rows(&self) -> usize {
        self.job().n_rows()
    }

    fn has_weights(&self) -> bool {
        self.rows.dataset().layout().has_weights
    }

    fn device(&self) -> Device {
        self.device
    }

    fn micro_batch(&mut self, index: usize) -> Result<MicroBatch<'_>> {
        let pass = self.partition().micro_batch(self.global_rows(), index);
        let start = self.partition().n_own_rows_before(self.global_rows(), index);
        let rows = start..start + pass.len();
        Ok(MicroBatch { rows: self.batch.rows(&**self.rows.dataset(), rows)?, first_row: pass.start })
    }

    fn device_shape(&self) -> DeviceShape {
        let layout = self.rows.dataset().layout();
        match self.rows {
            Rows::Gpu(..) => DeviceShape::gathered(layout),
            Rows::Host(_) => {
                let converts = layout.dtype != DType::F32 || self.normalizer.is_some();
                let shape = DeviceShape::sent(layout, converts);
                self.batch.waiting_format().map_or(shape, |format| shape.sent_in(format))
            }
        }
    }

    fn send(&mut self, to: &mut DeviceRows, scalars: Option<ScalarsOutput<'_>>) -> Result<()> {
        let n_own = self.job().n_own();
        let normalizer = self.normalizer;
        let Rows::Gpu(_, table) = self.rows else {
            ops::begin_step(scalars, None)?;
            let Sending::Rows(memory) = self.batch.memory() else {
                unreachable!("rows are sent from the host")
            };
            let weights = memory.weights.as_mut().map(|weights| weights.pinned());
            let (x, targets) = (memory.x.pinned(), memory.targets.pinned());
            let rows = PinnedRows { x, targets, weights };
            return Ok(to.send(n_own, rows, self.times_copies, normalizer)?);
        };
        let job = self.batch.job();
        match (&*job.order, &mut self.device_order) {
            (RowOrder::Rows(order), Some(on_device)) => {
                let (mut first, mut scalars) = (0, scalars);
                for own in job.own() {
                    let numbers = to.numbers_mut(n_own)?.range(first, first + own.len())?;
                    on_device.number(order, own.start, numbers, scalars.take())?;
                    first += own.len();
                }
            }
            (RowOrder::Blocks(order), Some(on_device)) => {
                let (mut first, mut scalars) = (0, scalars);
                for own in job.own() {
                    let numbers = to.numbers_mut(n_own)?.range(first, first + own.len())?;
                    first += own.len();
                    on_device.number_in_blocks(order, job.epoch, own, numbers, scalars.take())?;
                }
            }
            _ => {
                ops::begin_step(scalars, None)?;
                let Sending::Indices(indices) = self.batch.memory() else {
                    unreachable!("numbers that the GPU does not compute are sent")
                };
                to.send_numbers(n_own, indices)?;
            }
        }
        let normalizer = normalizer.map(DeviceNormalizer::view);
        Ok(to.gather(n_own, |numbers, out| table.gather(numbers, normalizer, out))?)
    }
}
