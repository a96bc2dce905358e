//! Batches of rows, the input of a step.
//!
//! ```
//! use ddp::data::Batch;
//! use ddp::prelude::*;
//!
//! let x = Tensor::randn(&[4, 3], DType::F32, Device::Cpu, 1)?;
//! let y = x.sum(1)?;
//! let batch = Batch { x: x.view(), targets: y.view(), weights: None };
//! let last = batch.rows(2, 4)?;
//! assert_eq!((batch.n_rows(), last.n_rows()), (4, 2));
//! assert_eq!(last.x.to_vec::<f32>()?, x.to_vec::<f32>()?[6..]);
//! # Ok::<(), KernelError>(())
//! ```

use ddp_kernels::{KernelError, TensorMut, TensorRef, ops};

/// Features, targets and weights of consecutive rows on one device.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// `[B, features]`.
    pub x: TensorRef<'a>,
    /// `[B]` i64 class indices, or `[B, K]` f32 values.
    pub targets: TensorRef<'a>,
    /// `[B]` f32, if rows have weights.
    pub weights: Option<TensorRef<'a>>,
}

/// Memory for the rows of a [`Batch`].
#[derive(Debug)]
pub struct BatchMut<'a> {
    /// `[B, features]`.
    pub x: TensorMut<'a>,
    /// `[B]` or `[B, K]`.
    pub targets: TensorMut<'a>,
    /// `[B]` f32, if rows have weights.
    pub weights: Option<TensorMut<'a>>,
}

impl<'a> Batch<'a> {
    /// Rows `start..end`.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond the last row.
    pub fn rows(&self, start: usize, end: usize) -> Result<Batch<'a>, KernelError> {
        Ok(Batch {
            x: self.x.rows(start, end)?,
            targets: self.targets.rows(start, end)?,
            weights: self.weights.map(|weights| weights.rows(start, end)).transpose()?,
        })
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.x.shape().dims()[0]
    }

    /// Copies the rows to `to`, which has weights if these rows have them.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for a different number of rows.
    pub fn copy_to(&self, to: BatchMut<'_>) -> Result<(), KernelError> {
        ops::copy(self.x, to.x)?;
        ops::copy(self.targets, to.targets)?;
        match (self.weights, to.weights) {
            (Some(weights), Some(to)) => ops::copy(weights, to),
            _ => Ok(()),
        }
    }
}

impl BatchMut<'_> {
    /// The same memory for a shorter time: for rows that another [`Dataset`](crate::data::Dataset) writes first.
    pub fn reborrow(&mut self) -> BatchMut<'_> {
        BatchMut {
            x: self.x.reborrow(),
            targets: self.targets.reborrow(),
            weights: self.weights.as_mut().map(TensorMut::reborrow),
        }
    }
}
