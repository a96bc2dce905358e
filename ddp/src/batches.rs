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
    /// `[N]` f32, none negative.
    weights: Option<Tensor>,
}

/// Features and targets of one micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// `[B, features]`.
    pub x: TensorRef<'a>,
    /// `[B]` or `[B, K]`.
    pub targets: TensorRef<'a>,
    /// `[B]` f32, where rows have weights.
    pub weights: Option<TensorRef<'a>>,
}

/// Room for the rows of a [`Batch`].
#[derive(Debug)]
pub struct BatchMut<'a> {
    /// `[B, features]`.
    pub x: TensorMut<'a>,
    /// `[B]` or `[B, K]`.
    pub targets: TensorMut<'a>,
    /// `[B]` f32, where rows have weights.
    pub weights: Option<TensorMut<'a>>,
}

impl Batch<'_> {
    /// Copies the rows to `to`, which has weights where these rows have them.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for another number of rows.
    pub fn copy_to(&self, to: BatchMut<'_>) -> Result<(), KernelError> {
        ops::copy(self.x, to.x)?;
        ops::copy(self.targets, to.targets)?;
        match (self.weights, to.weights) {
            (Some(weights), Some(to)) => ops::copy(weights, to),
            _ => Ok(()),
        }
    }
}

/// Where rows that are not side by side are gathered.
#[derive(Debug)]
pub struct BatchBuffers {
    x: Tensor,
    targets: Tensor,
    weights: Option<Tensor>,
    indices: Vec<i64>,
}

impl BatchBuffers {
    /// Scratch for indices.
    pub(crate) fn indices(&mut self) -> &mut Vec<i64> {
        &mut self.indices
    }
}

impl Table {
    /// Copies a dataset to `device`: the host's memory, unless all of it shall stay on a GPU. `weights` are those of the rows,
    /// finite and not negative; 1 where there are none.
    ///
    /// # Errors
    /// As making tensors there.
    pub fn new(dataset: &Dataset, weights: Option<&[f32]>, device: Device) -> Result<Self, KernelError> {
        let n = dataset.n_rows;
        Ok(Table {
            x: Tensor::from_slice(&dataset.features, &[n, dataset.n_features], device)?,
            targets: match &dataset.targets {
                Targets::Classes { labels, .. } => Tensor::from_slice(labels, &[n], device)?,
                Targets::Values { values, n_targets, .. } => {
                    Tensor::from_slice(values, &[n, *n_targets], device)?
                }
            },
            weights: weights.map(|weights| Tensor::from_slice(weights, &[n], device)).transpose()?,
        })
    }

    /// Rows that are there already: `x` `[N, features]`, `targets` `[N]` or `[N, K]`, `weights` `[N]` f32.
    pub fn from_tensors(x: Tensor, targets: Tensor, weights: Option<Tensor>) -> Self {
        Table { x, targets, weights }
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
            weights: self.weights.as_ref().map(|w| w.view().rows(rows.start, rows.end)).transpose()?,
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
        let BatchBuffers { x, targets, weights, indices } = buffers;
        let rows = BatchMut {
            x: x.view_mut().rows(0, n)?,
            targets: targets.view_mut().rows(0, n)?,
            weights: weights.as_mut().map(|w| w.view_mut().rows(0, n)).transpose()?,
        };
        self.gather(order, positions, indices, rows)?;
        Ok(Batch {
            x: x.view().rows(0, n)?,
            targets: targets.view().rows(0, n)?,
            weights: weights.as_ref().map(|w| w.view().rows(0, n)).transpose()?,
        })
    }

    /// Writes the rows at `positions` of `order` to `to`, in host memory; `indices` is scratch.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for another number of rows.
    pub fn gather(
        &self,
        order: &KeyedPermutation,
        positions: Range<usize>,
        indices: &mut Vec<i64>,
        to: BatchMut<'_>,
    ) -> Result<(), KernelError> {
        if order.is_identity() {
            return self.rows(positions)?.copy_to(to);
        }
        indices.clear();
        indices.extend(positions.map(|position| order.index(position) as i64));
        gather(self.x.view(), indices, to.x)?;
        gather(self.targets.view(), indices, to.targets)?;
        match (&self.weights, to.weights) {
            (Some(weights), Some(to)) => gather(weights.view(), indices, to),
            _ => Ok(()),
        }
    }

    /// What a row looks like.
    pub fn row_shape(&self) -> RowShape {
        let targets = self.targets.shape();
        RowShape {
            n_features: self.x.shape().rows_cols().1,
            n_targets: targets.dims().get(1).copied(),
            target_dtype: self.targets.dtype(),
            has_weights: self.weights.is_some(),
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
            weights: self.weights.as_ref().map(like).transpose()?,
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
