//! Fills buffers with the rows of batches.

use std::sync::{Arc, Mutex, PoisonError};

use super::host_batch::HostBatch;
use super::plan::Job;
use crate::data::error::Result;
use crate::data::order::epoch_order::RowOrder;
use crate::data::{Dataset, DeviceNormalizer, parallel};

/// Dataset, plan and conversion of the rows.
#[derive(Debug)]
pub(super) struct Filler {
    pub(super) dataset: Arc<dyn Dataset>,
    /// Normalizer on the CPU; a GPU normalizes itself.
    pub(super) normalizer: Option<Arc<DeviceNormalizer>>,
    /// Most rows of a job.
    pub(super) max_rows: usize,
    /// Jobs per buffer.
    pub(super) jobs_a_batch: usize,
    /// Cores of this rank, for threads of the dataset.
    cores: usize,
    /// Epoch and number of the last window that was announced to the dataset.
    announced: Mutex<Option<(u64, usize)>>,
}

impl Filler {
    pub(super) fn new(
        dataset: Arc<dyn Dataset>,
        normalizer: Option<Arc<DeviceNormalizer>>,
        max_rows: usize,
        jobs_a_batch: usize,
        cores: usize,
    ) -> Self {
        Filler { dataset, normalizer, max_rows, jobs_a_batch, cores, announced: Mutex::new(None) }
    }

    /// The next jobs of `plan` for one buffer; empty at the end.
    pub(super) fn take_jobs(&self, batch: &mut HostBatch, plan: &mut dyn Iterator<Item = Job>) {
        batch.jobs.clear();
        batch.jobs.extend(plan.take(self.jobs_a_batch));
    }

    /// Gathers the rows of the jobs.
    pub(super) fn fill(&self, batch: &mut HostBatch) -> Result<()> {
        batch.jobs.iter().for_each(|job| self.announce(job));
        batch.fill(&*self.dataset, self.normalizer.as_deref(), self.max_rows * self.jobs_a_batch)
    }

    /// Announces the next rows to the dataset if a batch is the first of its window.
    fn announce(&self, job: &Job) {
        let RowOrder::Blocks(order) = &*job.order else { return };
        let Some(last) = job.own().filter(|own| !own.is_empty()).last() else { return };
        let window = order.window_of(last.end - 1);
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let first = match *announced {
            Some((epoch, last)) if epoch == job.epoch => last + 1,
            _ => window,
        };
        // The window itself unless it was announced, and the one after it.
        for window in first..=window + 1 {
            let rows: Vec<_> = order.window_rows(window).collect();
            if !rows.is_empty() {
                parallel::with_threads(self.cores, || self.dataset.prefetch(&rows));
            }
        }
        *announced = Some((job.epoch, first.max(window + 2) - 1));
    }
}
