//! Rows in memory, and the batches that are taken from them.

use std::ops::Range;

use ddp_kernels::{Device, KernelError, Tensor, TensorMut, TensorRef, ops};

use crate::data::{Dataset, Targets};
use crate::sampler::KeyedPermutation;
use crate::trainer::RowShape;

/// All rows of a dataset on one device.
#[derive(Debug)]
pub struct Table {
    /// `[N, features]` f32.
    x: Tensor,
    /// `[N]` i64 class indices, or `[N, K]` f32 values.
    targets: Tensor,
}

/// Features and targets of one micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// `[B, features]`.
    pub x: TensorRef<'a>,
    /// `[B]` or `[B, K]`.
    pub targets: TensorRef<'a>,
}

/// Where rows that are not side by side are gathered.
#[derive(Debug)]
pub struct BatchBuffers {
    x: Tensor,
    targets: Tensor,
    indices: Vec<i64>,
}

impl BatchBuffers {
    /// Scratch for indices.
    pub(crate) fn indices(&mut self) -> &mut Vec<i64> {
        &mut self.indices
    }
}

impl Table {
    /// Copies a dataset to `device`: the host's memory, unless all of it shall stay on a GPU.
    ///
    /// # Errors
    /// As making tensors there.
    pub fn new(dataset: &Dataset, device: Device) -> Result<Self, KernelError> {
        let n = dataset.n_rows;
        Ok(Table {
            x: Tensor::from_slice(&dataset.features, &[n, dataset.n_features], device)?,
            targets: match &dataset.targets {
                Targets::Classes { labels, .. } => Tensor::from_slice(labels, &[n], device)?,
                Targets::Values { values, n_targets, .. } => {
                    Tensor::from_slice(values, &[n, *n_targets], device)?
                }
            },
        })
    }

    /// Rows that are there already: `x` `[N, features]`, `targets` `[N]` or `[N, K]`.
    pub fn from_tensors(x: Tensor, targets: Tensor) -> Self {
        Table { x, targets }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.x.shape().dims()[0]
    }

    /// Rows `rows` in their own order; nothing is copied.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond the last row.
    pub fn rows(&self, rows: Range<usize>) -> Result<Batch<'_>, KernelError> {
        Ok(Batch {
            x: self.x.view().rows(rows.start, rows.end)?,
            targets: self.targets.view().rows(rows.start, rows.end)?,
        })
    }

    /// The rows at `positions` of `order`; gathered into `buffers`, unless the order is the rows' own.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more positions than the buffers hold.
    pub fn batch<'a>(
        &'a self,
        order: &KeyedPermutation,
        positions: Range<usize>,
        buffers: &'a mut BatchBuffers,
    ) -> Result<Batch<'a>, KernelError> {
        if order.is_identity() {
            return self.rows(positions);
        }
        let n = positions.len();
        let BatchBuffers { x, targets, indices } = buffers;
        let (x_rows, target_rows) = (x.view_mut().rows(0, n)?, targets.view_mut().rows(0, n)?);
        self.gather(order, positions, indices, x_rows, target_rows)?;
        Ok(Batch { x: x.view().rows(0, n)?, targets: targets.view().rows(0, n)? })
    }

    /// Writes the rows at `positions` of `order` to `x` and `targets`, in host memory; `indices` is scratch.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for another number of rows.
    pub fn gather(
        &self,
        order: &KeyedPermutation,
        positions: Range<usize>,
        indices: &mut Vec<i64>,
        x: TensorMut<'_>,
        targets: TensorMut<'_>,
    ) -> Result<(), KernelError> {
        if order.is_identity() {
            let rows = self.rows(positions)?;
            ops::copy(rows.x, x)?;
            return ops::copy(rows.targets, targets);
        }
        indices.clear();
        indices.extend(positions.map(|position| order.index(position) as i64));
        gather(self.x.view(), indices, x)?;
        gather(self.targets.view(), indices, targets)
    }

    /// What a row looks like.
    pub fn row_shape(&self) -> RowShape {
        let targets = self.targets.shape();
        RowShape {
            n_features: self.x.shape().rows_cols().1,
            n_targets: targets.dims().get(1).copied(),
            target_dtype: self.targets.dtype(),
        }
    }

    /// Where the rows are.
    pub fn device(&self) -> Device {
        self.x.device()
    }

    /// Buffers for batches of up to `max_rows` rows of this table.
    ///
    /// # Errors
    /// As making tensors on the table's device.
    pub fn buffers(&self, max_rows: usize) -> Result<BatchBuffers, KernelError> {
        let like = |tensor: &Tensor| {
            let mut dims = tensor.shape().dims().to_vec();
            dims[0] = max_rows;
            tensor.new_zeros(&dims)
        };
        Ok(BatchBuffers {
            x: like(&self.x)?,
            targets: like(&self.targets)?,
            indices: Vec::with_capacity(max_rows),
        })
    }
}

/// [`ops::gather_rows`] also for vectors, whose rows are single elements.
fn gather(from: TensorRef<'_>, indices: &[i64], to: TensorMut<'_>) -> Result<(), KernelError> {
    let as_matrix = |rows: usize, numel: usize| [rows, numel / rows.max(1)];
    let (n_from, n_to) = (from.shape().dims()[0], indices.len());
    let from_dims = as_matrix(n_from, from.numel());
    let to_dims = [n_to, from_dims[1]];
    let indices = TensorRef::from_slice(indices, &[n_to])?;
    ops::gather_rows(from.reshape(&from_dims)?, indices, to.reshape(&to_dims)?)
}
