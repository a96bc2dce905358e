//! Rows on their way to a GPU: pinned host memory and its copy on the device.

use std::ops::Range;

use ddp_kernels::cuda::{Gpu, Upload};
use ddp_kernels::{DType, KernelError};

use crate::batches::{Batch, BatchMut};
use crate::trainer::RowShape;

/// Features, targets and weights of up to a number of rows, on both sides.
#[derive(Debug)]
pub(crate) struct DeviceRows {
    x: Upload,
    targets: Upload,
    /// Where rows have weights.
    weights: Option<Upload>,
}

impl DeviceRows {
    /// Room for `n_rows` rows.
    pub(crate) fn new(gpu: &'static Gpu, n_rows: usize, shape: RowShape) -> Result<Self, KernelError> {
        let n_rows = n_rows.max(1);
        let target_dims: Vec<_> = [n_rows].into_iter().chain(shape.n_targets).collect();
        Ok(DeviceRows {
            x: Upload::new(gpu, &[n_rows, shape.n_features], DType::F32)?,
            targets: Upload::new(gpu, &target_dims, shape.target_dtype)?,
            weights: match shape.has_weights {
                true => Some(Upload::new(gpu, &[n_rows], DType::F32)?),
                false => None,
            },
        })
    }

    /// Whether there is room for `n_rows` rows, with weights or without.
    pub(crate) fn holds(&self, n_rows: usize, has_weights: bool) -> bool {
        n_rows <= self.x.device().shape().dims()[0] && has_weights == self.weights.is_some()
    }

    /// The first `n_rows` rows of the host's side, to write to; waits for the copy of two steps ago.
    pub(crate) fn host(&mut self, n_rows: usize) -> Result<BatchMut<'_>, KernelError> {
        Ok(BatchMut {
            x: self.x.host()?.rows(0, n_rows)?,
            targets: self.targets.host()?.rows(0, n_rows)?,
            weights: match &mut self.weights {
                Some(weights) => Some(weights.host()?.rows(0, n_rows)?),
                None => None,
            },
        })
    }

    /// Starts the copy of the first `n_rows` rows.
    pub(crate) fn send(&mut self, n_rows: usize) -> Result<(), KernelError> {
        for upload in [&mut self.x, &mut self.targets].into_iter().chain(&mut self.weights) {
            let row = upload.device().numel() / upload.device().shape().dims()[0];
            upload.send(n_rows * row)?;
        }
        Ok(())
    }

    /// Takes rows that are on the device already.
    pub(crate) fn copy(&mut self, batch: Batch<'_>) -> Result<(), KernelError> {
        let n = batch.x.shape().dims()[0];
        batch.copy_to(BatchMut {
            x: self.x.device_mut().rows(0, n)?,
            targets: self.targets.device_mut().rows(0, n)?,
            weights: match &mut self.weights {
                Some(weights) => Some(weights.device_mut().rows(0, n)?),
                None => None,
            },
        })
    }

    /// Rows `rows` on the device.
    pub(crate) fn batch(&self, rows: Range<usize>) -> Result<Batch<'_>, KernelError> {
        Ok(Batch {
            x: self.x.device().view().rows(rows.start, rows.end)?,
            targets: self.targets.device().view().rows(rows.start, rows.end)?,
            weights: match &self.weights {
                Some(weights) => Some(weights.device().view().rows(rows.start, rows.end)?),
                None => None,
            },
        })
    }

    /// The work that reads the device's side was asked for.
    pub(crate) fn consumed(&mut self) -> Result<(), KernelError> {
        for upload in [&mut self.x, &mut self.targets].into_iter().chain(&mut self.weights) {
            upload.consumed()?;
        }
        Ok(())
    }
}
