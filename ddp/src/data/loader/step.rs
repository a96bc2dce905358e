//! One loaded batch, the input of a step.

use ddp_kernels::{DType, TensorRef};

use super::Rows;
use super::host_batch::{HostBatch, Sending};
use super::plan::Job;
use crate::data::DeviceNormalizer;
use crate::data::batch::{Batch, BatchMut};
use crate::data::device_rows::{DeviceRows, DeviceShape};
use crate::data::error::Result;
use crate::data::order::epoch_proof::RowsHash;
use crate::data::order::partition::RankPartition;
use crate::data::step_rows::{MicroBatch, StepRows};

/// This rank's rows of one global batch.
#[derive(Debug)]
pub struct LoadedStep<'a> {
    batch: &'a mut HostBatch,
    rows: &'a Rows,
    normalizer: Option<&'a DeviceNormalizer>,
}

impl<'a> LoadedStep<'a> {
    pub(super) fn new(
        batch: &'a mut HostBatch,
        rows: &'a Rows,
        normalizer: Option<&'a DeviceNormalizer>,
    ) -> Self {
        LoadedStep { batch, rows, normalizer }
    }

    fn job(&self) -> &Job {
        self.batch.job()
    }

    /// The epoch, from 1.
    pub fn epoch(&self) -> u64 {
        self.job().epoch + 1
    }

    /// Whether the epoch has no more steps.
    pub fn ends_epoch(&self) -> bool {
        self.job().ends_epoch()
    }

    /// Hash of this rank's rows of the step.
    pub fn rows_hash(&self) -> RowsHash {
        self.batch.rows_hash()
    }

    /// Positions of the rows in the epoch's order: their numbers where the order is that of the rows.
    pub(crate) fn positions(&self) -> std::ops::Range<usize> {
        self.job().own.clone()
    }

    /// Part of the rows, in evaluation.
    pub(crate) fn part(&self) -> usize {
        self.job().part
    }

    /// Targets and weights, in host memory.
    ///
    /// # Errors
    /// Errors of reading them.
    pub(crate) fn targets_and_weights(&self) -> Result<(TensorRef<'_>, Option<TensorRef<'_>>)> {
        let Batch { targets, weights, .. } = self.batch()?;
        Ok((targets, weights))
    }

    /// The rows in the model's format, on the CPU; for a batch that is sent to a GPU, the host's copies in their stored format.
    ///
    /// # Errors
    /// Errors of reading them.
    ///
    /// # Panics
    /// If the rows are on the GPU ([`super::Loader::is_on_gpu`]).
    pub fn batch(&self) -> Result<Batch<'_>> {
        self.batch.rows(&**self.rows.dataset(), 0..self.job().own.len())
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

    fn micro_batch(&mut self, index: usize) -> Result<MicroBatch<'_>> {
        let pass = self.partition().micro_batch(self.global_rows(), index);
        let first_own = self.own_rows().start;
        let rows = pass.start - first_own..pass.end - first_own;
        Ok(MicroBatch { rows: self.batch.rows(&**self.rows.dataset(), rows)?, first_row: pass.start })
    }

    fn device_shape(&self) -> DeviceShape {
        let layout = self.rows.dataset().layout();
        match self.rows {
            Rows::Gpu(..) => DeviceShape::gathered(layout),
            Rows::Host(_) => {
                DeviceShape::sent(layout, layout.dtype != DType::F32 || self.normalizer.is_some())
            }
        }
    }

    fn send(&mut self, to: &mut DeviceRows) -> Result<()> {
        let n_own = self.job().own.len();
        let normalizer = self.normalizer;
        match (self.batch.memory(), self.rows) {
            (Sending::Rows(memory), _) => {
                let weights = memory.weights.as_mut().map(|weights| weights.pinned());
                Ok(to.send(n_own, (memory.x.pinned(), memory.targets.pinned(), weights), normalizer)?)
            }
            (Sending::Indices(indices), Rows::Gpu(_, table)) => {
                let normalizer = normalizer.map(DeviceNormalizer::view);
                let gather =
                    |numbers: TensorRef<'_>, out: BatchMut<'_>| table.gather(numbers, normalizer, out);
                Ok(to.gather(n_own, indices, gather)?)
            }
            (Sending::Indices(_), Rows::Host(_)) => {
                unreachable!("numbers are sent where rows are on the GPU")
            }
        }
    }
}
