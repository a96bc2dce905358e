//! All rows on the GPU: batches are gathered there.

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, KernelError, MemoryUse, PinnedTensor, Tensor, TensorMut, TensorRef, ops};

use crate::data::datasets::batch::BatchMut;
use crate::data::error::Result;
use crate::data::{Dataset, RowLayout};

/// Bytes of rows per copy.
const CHUNK_BYTES: usize = 16 << 20;
/// Largest share of the GPU's free memory that rows take with `data.placement = "auto"`.
const MAX_SHARE: f64 = 0.5;

/// The rows of a dataset on a GPU, in their stored format.
#[derive(Debug)]
pub struct DeviceTable {
    x: Tensor,
    targets: Tensor,
    weights: Option<Tensor>,
    /// Whether they were copied without page-locked memory.
    is_from_pageable: bool,
}

impl DeviceTable {
    /// Bytes of GPU memory for the rows.
    pub fn size_bytes(dataset: &dyn Dataset) -> usize {
        dataset.len().saturating_mul(dataset.layout().row_bytes())
    }

    /// Whether the rows fit and leave enough free memory.
    pub fn fits(dataset: &dyn Dataset, gpu: &'static Gpu) -> Result<bool> {
        Ok(Self::fits_in(dataset, gpu.memory_in_use()?.free))
    }

    /// Whether the rows fit into `free_bytes` and leave enough of them.
    pub fn fits_in(dataset: &dyn Dataset, free_bytes: usize) -> bool {
        Self::size_bytes(dataset) as f64 <= free_bytes as f64 * MAX_SHARE
    }

    /// Copies all rows, through two page-locked buffers in turn: one is filled while the other is copied. Where the host has no
    /// page-locked memory left, through one buffer of plain memory, which is slower.
    pub(crate) fn new(dataset: &dyn Dataset, gpu: &'static Gpu) -> Result<Self> {
        Self::by_chunks(dataset, gpu, CHUNK_BYTES)
    }

    fn by_chunks(dataset: &dyn Dataset, gpu: &'static Gpu, chunk_bytes: usize) -> Result<Self> {
        let (layout, n) = (dataset.layout(), dataset.len());
        let mut table = Self::zeros(layout, n, gpu.device())?;
        let chunk_rows = (chunk_bytes / layout.row_bytes().max(1)).clamp(1, n.max(1));
        let n_buffers = n.div_ceil(chunk_rows).min(2);
        let pinned: Result<Vec<_>, _> =
            (0..n_buffers).map(|_| Chunk::new(layout, chunk_rows, Some(gpu))).collect();
        let mut buffers = match pinned {
            Err(KernelError::OutOfMemory { .. }) => {
                table.is_from_pageable = true;
                vec![Chunk::new(layout, chunk_rows, None)?]
            }
            pinned => pinned?,
        };
        let n_buffers = buffers.len();
        let mut rows = Vec::with_capacity(chunk_rows);
        for (index, start) in (0..n).step_by(chunk_rows).enumerate() {
            rows.clear();
            rows.extend(start..(start + chunk_rows).min(n));
            let chunk = &mut buffers[index % n_buffers];
            chunk.wait_sent()?;
            dataset.gather(&rows, chunk.rows_mut(rows.len())?)?;
            chunk.send(table.rows_mut(start, start + rows.len())?)?;
        }
        // The buffers wait for their copies before they are freed.
        Ok(table)
    }

    fn zeros(layout: &RowLayout, n_rows: usize, device: Device) -> Result<Self, KernelError> {
        let zeros = |dims: &[usize], dtype| Tensor::zeros_for(MemoryUse::Data, dims, dtype, device);
        Ok(DeviceTable {
            x: zeros(&[n_rows, layout.n_features()], layout.dtype)?,
            targets: zeros(&layout.targets.dims(n_rows), layout.targets.dtype())?,
            weights: if layout.has_weights { Some(zeros(&[n_rows], DType::F32)?) } else { None },
            is_from_pageable: false,
        })
    }

    /// Whether the rows were copied without page-locked memory, of which the host had none left.
    pub(crate) fn is_from_pageable(&self) -> bool {
        self.is_from_pageable
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

    /// Gathers the rows `indices` into `out`, with normalized features.
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

/// Host memory for some rows, on their way to the table.
struct Chunk {
    x: Staged,
    targets: Staged,
    weights: Option<Staged>,
}

/// Host memory for some values of rows.
enum Staged {
    /// Page-locked, copied while the next chunk is filled.
    Pinned(PinnedTensor),
    /// Plain, copied before the call returns.
    Pageable(Tensor),
}

impl Staged {
    /// Page-locked memory for copies to `gpu`, or plain memory.
    fn new(gpu: Option<&'static Gpu>, dims: &[usize], dtype: DType) -> Result<Self, KernelError> {
        let Some(gpu) = gpu else { return Ok(Staged::Pageable(Tensor::zeros(dims, dtype, Device::Cpu)?)) };
        let mut pinned = PinnedTensor::new(gpu, dims, dtype)?;
        pinned.set_timed(false);
        Ok(Staged::Pinned(pinned))
    }

    fn wait_sent(&self) -> Result<(), KernelError> {
        match self {
            Staged::Pinned(pinned) => pinned.wait_sent(),
            Staged::Pageable(_) => Ok(()),
        }
    }

    /// The first `n_rows` rows, to be filled.
    fn rows_mut(&mut self, n_rows: usize) -> Result<TensorMut<'_>, KernelError> {
        match self {
            Staged::Pinned(pinned) => pinned.host()?.rows(0, n_rows),
            Staged::Pageable(tensor) => tensor.view_mut().rows(0, n_rows),
        }
    }

    /// Copies as many rows as `to` holds.
    fn send(&mut self, to: TensorMut<'_>) -> Result<(), KernelError> {
        match self {
            Staged::Pinned(pinned) => pinned.copy_to(to),
            Staged::Pageable(tensor) => {
                let n_rows = to.shape().dims()[0];
                ops::copy(tensor.view().rows(0, n_rows)?, to)
            }
        }
    }
}

impl Chunk {
    fn new(layout: &RowLayout, n_rows: usize, gpu: Option<&'static Gpu>) -> Result<Self, KernelError> {
        Ok(Chunk {
            x: Staged::new(gpu, &[n_rows, layout.n_features()], layout.dtype)?,
            targets: Staged::new(gpu, &layout.targets.dims(n_rows), layout.targets.dtype())?,
            weights: layout.has_weights.then(|| Staged::new(gpu, &[n_rows], DType::F32)).transpose()?,
        })
    }

    /// Blocks until the last copy is done.
    fn wait_sent(&self) -> Result<(), KernelError> {
        let Chunk { x, targets, weights } = self;
        [x, targets].into_iter().chain(weights).try_for_each(Staged::wait_sent)
    }

    fn rows_mut(&mut self, n_rows: usize) -> Result<BatchMut<'_>, KernelError> {
        Ok(BatchMut {
            x: self.x.rows_mut(n_rows)?,
            targets: self.targets.rows_mut(n_rows)?,
            weights: self.weights.as_mut().map(|weights| weights.rows_mut(n_rows)).transpose()?,
        })
    }

    /// Copies as many rows as `to` holds.
    fn send(&mut self, to: BatchMut<'_>) -> Result<(), KernelError> {
        self.x.send(to.x)?;
        self.targets.send(to.targets)?;
        match (&mut self.weights, to.weights) {
            (Some(weights), Some(to)) => weights.send(to),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::testing::{gathered, numbered};

    #[test]
    #[allow(clippy::print_stdout)]
    fn a_table_holds_all_rows_whatever_the_chunks() {
        let required = std::env::var("REQUIRE_GPUS").ok().map_or(0, |n| n.parse::<usize>().unwrap());
        assert!(Gpu::count() >= required.min(1));
        if Gpu::count() == 0 {
            println!("skipped: needs a GPU");
            return;
        }
        let gpu = Gpu::get(0).unwrap();
        for n_rows in [1, 2, 3, 7, 100] {
            let dataset = numbered(n_rows);
            let row_bytes = dataset.layout().row_bytes();
            let (features, labels, _) = gathered(&*dataset, &(0..n_rows).collect::<Vec<_>>());
            for chunk_rows in [1, 2, 3, 64, 1000] {
                let table = DeviceTable::by_chunks(&*dataset, gpu, chunk_rows * row_bytes).unwrap();
                assert_eq!(table.x.to_vec::<f32>().unwrap(), features, "{n_rows} rows by {chunk_rows}");
                let got: Vec<f32> =
                    table.targets.to_vec::<i64>().unwrap().into_iter().map(|l| l as f32).collect();
                assert_eq!(got, labels, "{n_rows} rows by {chunk_rows}");
            }
        }
    }
}
