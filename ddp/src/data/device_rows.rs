//! Rows of a step on a GPU: copied from pinned memory, or gathered from rows that are on the GPU.
//!
//! Memory of a GPU that the rows of a step take:
//!
//! ```
//! use ddp::data::device_rows::DeviceShape;
//! use ddp::data::{RowLayout, TargetLayout, numbered_columns};
//!
//! let layout = RowLayout::new(numbered_columns(64), TargetLayout::Classes { n_classes: 10 });
//! // Features in f32, and the class in i64; rows that are gathered have a number too.
//! assert_eq!(DeviceShape::sent(&layout, false).size_bytes(32), 32 * (64 * 4 + 8));
//! assert_eq!(DeviceShape::gathered(&layout).size_bytes(32), 32 * (64 * 4 + 8 + 8));
//! ```

use std::ops::Range;

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, KernelError, MemoryUse, PinnedTensor, Tensor, TensorMut, TensorRef, Upload, ops};

use crate::data::datasets::batch::{Batch, BatchMut};
use crate::data::{DeviceNormalizer, RowLayout, TargetLayout};

/// Layout of rows that are sent to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceShape {
    n_features: usize,
    /// Number format of the features that are sent.
    dtype: DType,
    /// Targets of a row; `None` for a class index.
    n_targets: Option<usize>,
    has_weights: bool,
    way: Way,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In the model's format.
    Sent,
    /// To be converted or normalized on the GPU.
    Converted,
    /// Row numbers; the rows are gathered on the GPU.
    Gathered,
}

impl DeviceShape {
    /// Rows of `layout` in the model's format, or converted on the GPU if `converts`.
    pub fn sent(layout: &RowLayout, converts: bool) -> Self {
        let n_targets = match &layout.targets {
            TargetLayout::Classes { .. } => None,
            TargetLayout::Values { .. } | TargetLayout::Heads { .. } => Some(layout.targets.n_values()),
        };
        let way = if converts { Way::Converted } else { Way::Sent };
        let (n_features, dtype, has_weights) = (layout.n_features(), layout.dtype, layout.has_weights);
        DeviceShape { n_features, dtype, n_targets, has_weights, way }
    }

    /// Rows of `layout` that are gathered on the GPU.
    pub fn gathered(layout: &RowLayout) -> Self {
        DeviceShape { dtype: DType::F32, way: Way::Gathered, ..Self::sent(layout, false) }
    }
}

impl DeviceShape {
    /// The same, but rows that are gathered are written in `format`, f32 or that of the model's activations.
    pub fn gathered_in(self, format: DType) -> Self {
        match self.way {
            Way::Gathered => DeviceShape { dtype: format, ..self },
            Way::Sent | Way::Converted => self,
        }
    }

    /// The same, but rows that are sent and not converted there are in `format`, f32 or that of the model's activations.
    pub fn sent_in(self, format: DType) -> Self {
        match self.way {
            Way::Sent => DeviceShape { dtype: format, ..self },
            Way::Gathered | Way::Converted => self,
        }
    }

    /// Bytes of GPU memory of a [`DeviceRows`] with this number of rows.
    pub fn size_bytes(&self, n_rows: usize) -> usize {
        let x = self.n_features * self.dtype.size_bytes();
        let floats = if self.way == Way::Converted { self.n_features * DType::F32.size_bytes() } else { 0 };
        let targets = self.n_targets.map_or(DType::I64.size_bytes(), |n| n * DType::F32.size_bytes());
        let weights = if self.has_weights { DType::F32.size_bytes() } else { 0 };
        let indices = if self.way == Way::Gathered { DType::I64.size_bytes() } else { 0 };
        n_rows.max(1) * (x + floats + targets + weights + indices)
    }
}

const GATHERED: &str = "allocated for rows that are gathered";

/// Rows in pinned memory, from which they are sent.
#[derive(Debug)]
pub(crate) struct PinnedRows<'a> {
    pub(crate) x: &'a mut PinnedTensor,
    pub(crate) targets: &'a mut PinnedTensor,
    pub(crate) weights: Option<&'a mut PinnedTensor>,
}

/// Features, targets and weights of a limited number of rows.
#[derive(Debug)]
pub struct DeviceRows {
    shape: DeviceShape,
    /// Features in the format in which they are sent.
    x: Upload,
    /// Features in the model's format, if it differs.
    floats: Option<Tensor>,
    targets: Upload,
    /// `Some` if rows have weights.
    weights: Option<Upload>,
    /// Row numbers, if rows are gathered on the GPU.
    indices: Option<Upload>,
    /// Whether the last numbers were copied from the host.
    numbers_were_sent: bool,
}

impl DeviceRows {
    /// Allocates memory for `n_rows` rows.
    ///
    /// # Errors
    /// Out of memory, or the device is unavailable.
    pub fn new(gpu: &'static Gpu, n_rows: usize, shape: DeviceShape) -> Result<Self, KernelError> {
        let n_rows = n_rows.max(1);
        let dims = [n_rows, shape.n_features];
        let upload = |dims: &[usize], dtype| Upload::without_host(gpu, dims, dtype);
        let optional = |wanted: bool, dtype| wanted.then(|| upload(&[n_rows], dtype)).transpose();
        let floats = || Tensor::zeros_for(MemoryUse::Data, &dims, DType::F32, gpu.device());
        Ok(DeviceRows {
            shape,
            x: upload(&dims, shape.dtype)?,
            floats: (shape.way == Way::Converted).then(floats).transpose()?,
            targets: match shape.n_targets {
                None => upload(&[n_rows], DType::I64)?,
                Some(n_targets) => upload(&[n_rows, n_targets], DType::F32)?,
            },
            weights: optional(shape.has_weights, DType::F32)?,
            indices: optional(shape.way == Way::Gathered, DType::I64)?,
            numbers_were_sent: false,
        })
    }

    /// Whether `n_rows` such rows fit.
    pub fn holds(&self, n_rows: usize, shape: DeviceShape) -> bool {
        n_rows <= self.x.device().shape().dims()[0] && shape == self.shape
    }

    /// Enqueues the copy of the first `n_rows` rows, which may be timed, and their conversion.
    pub(crate) fn send(
        &mut self,
        n_rows: usize,
        rows: PinnedRows<'_>,
        is_timed: bool,
        normalizer: Option<&DeviceNormalizer>,
    ) -> Result<(), KernelError> {
        let PinnedRows { x, targets, weights } = rows;
        let pairs = [(&mut self.x, x), (&mut self.targets, targets)];
        for (upload, from) in pairs.into_iter().chain(self.weights.as_mut().zip(weights)) {
            let shape = upload.device().shape();
            from.set_timed(is_timed);
            upload.send_from(from, n_rows * (shape.numel() / shape.dims()[0]))?;
        }
        match &mut self.floats {
            Some(floats) if n_rows > 0 => {
                let (x, floats) =
                    (self.x.device().view().rows(0, n_rows)?, floats.view_mut().rows(0, n_rows)?);
                ops::load_rows(x, None, normalizer.map(DeviceNormalizer::view), floats)
            }
            _ => Ok(()),
        }
    }

    /// Memory for the numbers of `n_rows` rows, for work on the compute stream that computes them.
    pub(crate) fn numbers_mut(&mut self, n_rows: usize) -> Result<TensorMut<'_>, KernelError> {
        let DeviceRows { indices, numbers_were_sent, .. } = self;
        *numbers_were_sent = false;
        indices.as_mut().expect(GATHERED).device_mut().range(0, n_rows)
    }

    /// Sends the numbers of `n_rows` rows.
    pub(crate) fn send_numbers(
        &mut self,
        n_rows: usize,
        numbers: &mut PinnedTensor,
    ) -> Result<(), KernelError> {
        self.numbers_were_sent = true;
        self.indices.as_mut().expect(GATHERED).send_from(numbers, n_rows)
    }

    /// Enqueues `gather` of the `n_rows` rows that were numbered last.
    pub(crate) fn gather(
        &mut self,
        n_rows: usize,
        gather: impl FnOnce(TensorRef<'_>, BatchMut<'_>) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let DeviceRows { x, targets, weights, indices, .. } = self;
        let indices = indices.as_ref().expect(GATHERED);
        let out = BatchMut {
            x: x.device_mut().rows(0, n_rows)?,
            targets: targets.device_mut().rows(0, n_rows)?,
            weights: match weights {
                Some(weights) => Some(weights.device_mut().rows(0, n_rows)?),
                None => None,
            },
        };
        if n_rows == 0 { Ok(()) } else { gather(indices.device().view().rows(0, n_rows)?, out) }
    }

    /// Copies rows on the GPU that are in the model's format.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for rows of a different layout.
    pub fn copy(&mut self, batch: Batch<'_>) -> Result<(), KernelError> {
        let n = batch.n_rows();
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
        let x = self.floats.as_ref().unwrap_or(self.x.device());
        Ok(Batch {
            x: x.view().rows(rows.start, rows.end)?,
            targets: self.targets.device().view().rows(rows.start, rows.end)?,
            weights: match &self.weights {
                Some(weights) => Some(weights.device().view().rows(rows.start, rows.end)?),
                None => None,
            },
        })
    }

    /// Marks the work that reads the rows as enqueued: the next copy from the host waits for it.
    pub fn consumed(&mut self) -> Result<(), KernelError> {
        let DeviceRows { shape, x, targets, weights, indices, numbers_were_sent, .. } = self;
        if shape.way == Way::Gathered {
            // All other work on gathered rows is on the compute stream, in order.
            let sent = indices.as_mut().filter(|_| *numbers_were_sent);
            return sent.map_or(Ok(()), Upload::consumed);
        }
        [x, targets].into_iter().chain(weights).try_for_each(Upload::consumed)
    }
}
