//! A range of the flat buffers of weights, borrowed by an update.

use std::ops::Range;

use ddp_kernels::{KernelError, TensorMut};

/// Weights of a range of the flat buffers, writable.
#[derive(Debug)]
pub struct WeightsMut<'a> {
    /// Master weights, `[n]` f32.
    pub master: TensorMut<'a>,
    /// Copies of the master weights in the format of activations, `[n]`, if it isn't f32.
    pub compute: Option<TensorMut<'a>>,
}

impl<'a> WeightsMut<'a> {
    /// The elements of `range`, relative to the start of these weights.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond their end.
    pub fn range(self, range: &Range<usize>) -> Result<WeightsMut<'a>, KernelError> {
        Ok(WeightsMut {
            master: self.master.range(range.start, range.end)?,
            compute: self.compute.map(|compute| compute.range(range.start, range.end)).transpose()?,
        })
    }

    /// The first `mid` elements, and the others.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond their end.
    pub fn split_at(self, mid: usize) -> Result<(WeightsMut<'a>, WeightsMut<'a>), KernelError> {
        let (master, master_after) = self.master.split_at(mid)?;
        let (compute, compute_after) = match self.compute {
            Some(compute) => {
                let (compute, after) = compute.split_at(mid)?;
                (Some(compute), Some(after))
            }
            None => (None, None),
        };
        let after = WeightsMut { master: master_after, compute: compute_after };
        Ok((WeightsMut { master, compute }, after))
    }

    /// The same weights with a shorter borrow.
    pub fn reborrow(&mut self) -> WeightsMut<'_> {
        WeightsMut { master: self.master.reborrow(), compute: self.compute.as_mut().map(TensorMut::reborrow) }
    }
}
