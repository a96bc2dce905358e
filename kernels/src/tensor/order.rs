//! Sorting, and the largest elements.

use crate::ops::argsort;
use crate::{Axis, DType, KernelError, Result, Tensor, TensorRef};

readable! {
    /// The elements in order along an axis, and the index of each along it, as i64. Equal elements keep their order; NaN is larger than
    /// all numbers.
    ///
    /// ```
    /// use ddp_kernels::tensor;
    /// let (values, indices) = tensor![3., 1., 2.].sort(0)?;
    /// assert_eq!((values.to_vec::<f32>()?, indices.to_vec::<i64>()?), (vec![1.0, 2.0, 3.0], vec![1, 2, 0]));
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Axis`]; as [`Tensor::zeros`].
    ///
    /// Source: `torch.sort` with `stable=True`.
    pub fn sort(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        self.view().ordered("sort", axis.into(), false, None)
    }

    /// [`Tensor::sort`] with the largest elements first.
    ///
    /// # Errors
    /// Same as [`Tensor::sort`].
    pub fn sort_descending(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        self.view().ordered("sort", axis.into(), true, None)
    }

    /// The indices of [`Tensor::sort`].
    ///
    /// # Errors
    /// Same as [`Tensor::sort`].
    pub fn argsort(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        Ok(self.view().ordered("argsort", axis.into(), false, None)?.1)
    }

    /// The `k` largest elements along the last axis, the largest first, and their indices, as [`Tensor::sort`]. Of equal elements the
    /// first ones are taken.
    ///
    /// # Errors
    /// Same as [`Tensor::sort`]; [`KernelError::OutOfRange`] for fewer than `k` elements.
    ///
    /// Source: `torch.topk`, which takes any of equal elements.
    pub fn topk(&self, k: usize) -> Result<(Tensor, Tensor)> {
        self.topk_along(k, -1)
    }

    /// [`Tensor::topk`] along another axis.
    ///
    /// # Errors
    /// Same as [`Tensor::topk`].
    pub fn topk_along(&self, k: usize, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        self.view().ordered("topk", axis.into(), true, Some(k))
    }
}

impl TensorRef<'_> {
    /// The first `k` elements along an axis in order, and their indices.
    fn ordered(
        self,
        op: &'static str,
        axis: Axis,
        descending: bool,
        k: Option<usize>,
    ) -> Result<(Tensor, Tensor)> {
        let (_, n, inner) = self.around(op, axis)?;
        let k = k.unwrap_or(n);
        if k > n {
            return Err(KernelError::OutOfRange { op, start: 0, end: k, len: n });
        }
        if inner > 1 {
            let last = Axis::from(-1);
            let rows = self.transposed(op, axis, last)?;
            let (values, indices) = rows.view().ordered(op, last, descending, Some(k))?;
            let back = |x: Tensor| x.view().transposed(op, axis, last);
            return Ok((back(values)?, back(indices)?));
        }
        let mut indices = Tensor::for_result(self.memory_use(), self.shape(), DType::I64, self.device())?;
        argsort(self, n, descending, indices.new_view_mut())?;
        let indices = indices.view().narrowed(op, axis, 0, k)?;
        Ok((self.gathered(op, axis, indices.view())?, indices))
    }
}
