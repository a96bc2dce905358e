//! All rows on the GPU: batches are gathered there.

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorMut, TensorRef, ops};

use crate::data::batch::BatchMut;
use crate::data::error::Result;
use crate::data::{Dataset, RowLayout};

/// Bytes of rows per copy.
const CHUNK_BYTES: usize = 16 << 20;
/// Largest share of the GPU's free memory that rows take with `data.placement = "auto"`.
const MAX_SHARE: f64 = 0.5;

/// The rows of a dataset on a GPU, in their stored format.
#[derive(Debug)]
pub(crate) struct DeviceTable {
    x: Tensor,
    targets: Tensor,
    weights: Option<Tensor>,
}

impl DeviceTable {
    /// Bytes of GPU memory for the rows.
    pub(crate) fn size_bytes(dataset: &dyn Dataset) -> usize {
        dataset.len().saturating_mul(dataset.layout().row_bytes())
    }

    /// Whether the rows fit and leave enough free memory.
    pub(crate) fn fits(dataset: &dyn Dataset, gpu: &'static Gpu) -> Result<bool> {
        Ok(Self::size_bytes(dataset) as f64 <= gpu.memory_in_use()?.free as f64 * MAX_SHARE)
    }

    /// Copies all rows.
    pub(crate) fn new(dataset: &dyn Dataset, gpu: &'static Gpu) -> Result<Self> {
        let (layout, n) = (dataset.layout(), dataset.len());
        let mut table = Self::zeros(layout, n, gpu.device())?;
        let chunk_rows = (CHUNK_BYTES / layout.row_bytes().max(1)).clamp(1, n.max(1));
        let mut chunk = Self::zeros(layout, chunk_rows, Device::Cpu)?;
        let mut rows = Vec::with_capacity(chunk_rows);
        for start in (0..n).step_by(chunk_rows) {
            rows.clear();
            rows.extend(start..(start + chunk_rows).min(n));
            let part = rows.len();
            dataset.gather(&rows, chunk.rows_mut(0, part)?)?;
            let to = table.rows_mut(start, start + part)?;
            ops::copy(chunk.x.view().rows(0, part)?, to.x)?;
            ops::copy(chunk.targets.view().rows(0, part)?, to.targets)?;
            if let (Some(weights), Some(to)) = (&chunk.weights, to.weights) {
                ops::copy(weights.view().rows(0, part)?, to)?;
            }
        }
        Ok(table)
    }

    fn zeros(layout: &RowLayout, n_rows: usize, device: Device) -> Result<Self, KernelError> {
        let zeros = |dims: &[usize], dtype| Tensor::zeros_for(MemoryUse::Data, dims, dtype, device);
        Ok(DeviceTable {
            x: zeros(&[n_rows, layout.n_features()], layout.dtype)?,
            targets: zeros(&layout.targets.dims(n_rows), layout.targets.dtype())?,
            weights: match layout.has_weights {
                true => Some(zeros(&[n_rows], DType::F32)?),
                false => None,
            },
        })
    }

    fn rows_mut(&mut self, start: usize, end: usize) -> Result<BatchMut<'_>, KernelError> {
        Ok(BatchMut {
            x: self.x.view_mut().rows(start, end)?,
            targets: self.targets.view_mut().rows(start, end)?,
            weights: match &mut self.weights {
                Some(weights) => Some(weights.view_mut().rows(start, end)?),
                None => None,
            },
        })
    }

    /// Gathers the rows `indices` into `out`, with features as normalized f32.
    pub(crate) fn gather(
        &self,
        indices: TensorRef<'_>,
        normalizer: Option<ops::RowNormalizer<'_>>,
        out: BatchMut<'_>,
    ) -> Result<(), KernelError> {
        ops::load_rows(self.x.view(), Some(indices), normalizer, out.x)?;
        gather_rows(self.targets.view(), indices, out.targets)?;
        match (&self.weights, out.weights) {
            (Some(weights), Some(out)) => gather_rows(weights.view(), indices, out),
            _ => Ok(()),
        }
    }
}

/// [`ops::gather_rows`] that also accepts vectors, whose rows are single elements.
fn gather_rows(from: TensorRef<'_>, indices: TensorRef<'_>, to: TensorMut<'_>) -> Result<(), KernelError> {
    let (n_from, n_to) = (from.shape().dims()[0], indices.numel());
    let width = from.numel() / n_from.max(1);
    ops::gather_rows(from.reshape(&[n_from, width])?, indices, to.reshape(&[n_to, width])?)
}
