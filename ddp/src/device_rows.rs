//! Rows on their way to a GPU: pinned host memory and its copy on the device.

use std::ops::Range;

use ddp_kernels::cuda::{Gpu, Upload};
use ddp_kernels::{DType, KernelError, TensorMut, ops};

use crate::batches::Batch;
use crate::trainer::RowShape;

/// Features and targets of up to a number of rows, on both sides.
#[derive(Debug)]
pub(crate) struct DeviceRows {
    x: Upload,
    targets: Upload,
}

impl DeviceRows {
    /// Room for `n_rows` rows.
    pub(crate) fn new(gpu: &'static Gpu, n_rows: usize, shape: RowShape) -> Result<Self, KernelError> {
        let n_rows = n_rows.max(1);
        let target_dims: Vec<_> = [n_rows].into_iter().chain(shape.n_targets).collect();
        Ok(DeviceRows {
            x: Upload::new(gpu, &[n_rows, shape.n_features], DType::F32)?,
            targets: Upload::new(gpu, &target_dims, shape.target_dtype)?,
        })
    }

    /// Rows that there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.x.device().shape().dims()[0]
    }

    /// The first `n_rows` rows of the host's side, to write to; waits for the copy of two steps ago.
    pub(crate) fn host(&mut self, n_rows: usize) -> Result<(TensorMut<'_>, TensorMut<'_>), KernelError> {
        Ok((self.x.host()?.rows(0, n_rows)?, self.targets.host()?.rows(0, n_rows)?))
    }

    /// Starts the copy of the first `n_rows` rows.
    pub(crate) fn send(&mut self, n_rows: usize) -> Result<(), KernelError> {
        for upload in [&mut self.x, &mut self.targets] {
            let row = upload.device().numel() / upload.device().shape().dims()[0];
            upload.send(n_rows * row)?;
        }
        Ok(())
    }

    /// Takes rows that are on the device already.
    pub(crate) fn copy(&mut self, batch: Batch<'_>) -> Result<(), KernelError> {
        let n = batch.x.shape().dims()[0];
        ops::copy(batch.x, self.x.device_mut().rows(0, n)?)?;
        ops::copy(batch.targets, self.targets.device_mut().rows(0, n)?)
    }

    /// Rows `rows` on the device.
    pub(crate) fn batch(&self, rows: Range<usize>) -> Result<Batch<'_>, KernelError> {
        Ok(Batch {
            x: self.x.device().view().rows(rows.start, rows.end)?,
            targets: self.targets.device().view().rows(rows.start, rows.end)?,
        })
    }

    /// The work that reads the device's side was asked for.
    pub(crate) fn consumed(&mut self) -> Result<(), KernelError> {
        self.x.consumed()?;
        self.targets.consumed()
    }
}
