//! Reductions, softmax and log-softmax.

use crate::base::check;
use crate::ops::{ReduceOp, reduce};
use crate::{DType, KernelError, Result, Shape, Tensor};

impl Tensor {
    fn reduce(&self, op: ReduceOp, axis: Option<usize>) -> Result<Self> {
        let dims: Vec<usize> = match axis {
            None => Vec::new(),
            Some(axis) => {
                let others = self.dims().iter().enumerate().filter(|(i, _)| *i != axis);
                others.map(|(_, &n)| n).collect()
            }
        };
        let shape = Shape::new(&dims)?;
        let dtype = op.result_dtype(self.dtype());
        let mut out = Self::for_result(self.memory_use(), shape, dtype, self.device())?;
        reduce(op, self.view(), axis, out.view_mut())?;
        Ok(out)
    }

    /// The sum of all elements (`None`), a tensor without dimensions, or along an axis, which the result lacks.
    ///
    /// Sums of floats are in f64 and rounded once; the order depends on the shape only, not on the number of threads. The sum of
    /// integers and of bool is i64, as in PyTorch.
    ///
    /// ```
    /// use ddp_kernels::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], Device::Cpu)?;
    /// assert_eq!(x.sum(None)?.item::<f32>()?, 10.0);
    /// assert_eq!(x.sum(0)?.to_vec::<f32>()?, [4.0, 6.0]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for an axis that is not there; as [`Tensor::zeros`].
    pub fn sum(&self, axis: impl Into<Option<usize>>) -> Result<Self> {
        self.reduce(ReduceOp::Sum, axis.into())
    }

    /// The mean of all elements, or along an axis; of floats.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`]; [`KernelError::DTypeUnsupported`] for integers.
    pub fn mean(&self, axis: impl Into<Option<usize>>) -> Result<Self> {
        self.reduce(ReduceOp::Mean, axis.into())
    }

    /// The largest element, or along an axis; NaN if there is one. Unlike PyTorch's, it returns no indices: [`Tensor::argmax`] does.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`]; [`KernelError::EmptyReduction`].
    pub fn max(&self, axis: impl Into<Option<usize>>) -> Result<Self> {
        self.reduce(ReduceOp::Max, axis.into())
    }

    /// The smallest element, or along an axis; NaN if there is one.
    ///
    /// # Errors
    /// Same as [`Tensor::max`].
    pub fn min(&self, axis: impl Into<Option<usize>>) -> Result<Self> {
        self.reduce(ReduceOp::Min, axis.into())
    }

    /// The index of the first of the largest elements, in row-major order or along an axis, as i64; NaN counts as the largest.
    ///
    /// # Errors
    /// Same as [`Tensor::max`].
    pub fn argmax(&self, axis: impl Into<Option<usize>>) -> Result<Self> {
        self.reduce(ReduceOp::ArgMax, axis.into())
    }

    /// The Euclidean norm of all elements, or along an axis; of floats.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    pub fn norm(&self, axis: impl Into<Option<usize>>) -> Result<Self> {
        self.reduce(ReduceOp::Norm, axis.into())
    }

    /// `e^a / sum(e^a)` along an axis; 16-bit floats are computed in f32.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    pub fn softmax(&self, axis: usize) -> Result<Self> {
        self.normalized("softmax", axis, |_, exponentials, sums| exponentials.div(sums))
    }

    /// `a - log(sum(e^a))` along an axis; 16-bit floats are computed in f32.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    pub fn log_softmax(&self, axis: usize) -> Result<Self> {
        self.normalized("log_softmax", axis, |shifted, _, sums| shifted.sub(&sums.log()?))
    }

    /// `f` of the elements less the largest along the axis, their exponentials, and the sums of those; in f32 or f64.
    fn normalized(
        &self,
        op: &'static str,
        axis: usize,
        f: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        check::dtype(op, self.view().operand("a"), check::FLOATS, check::FLOATS_NAMES)?;
        if axis >= self.dims().len() {
            return Err(KernelError::OutOfRange { op, start: axis, end: axis + 1, len: self.dims().len() });
        }
        if self.numel() == 0 {
            return self.try_clone();
        }
        if check::is_short(self.dtype()) {
            return self.to_dtype(DType::F32)?.normalized(op, axis, f)?.to_dtype(self.dtype());
        }
        // As [outer, len, inner]: the reduced axis in the middle, where a result of the reduction is repeated only by its own
        // operand's broadcasting if it is last or first; else the tensor is rotated.
        let dims = self.dims().to_vec();
        let (outer, inner): (usize, usize) =
            (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
        let rows = self.view().reshape(&[outer, dims[axis], inner])?.to_tensor()?;
        if outer > 1 && inner > 1 {
            let swapped = rows.swap_last()?.normalized(op, 2, f)?;
            return swapped.swap_last()?.into_shape(&dims);
        }
        let kept = [outer, 1, inner];
        let shifted = rows.sub(&rows.max(1)?.into_shape(&kept)?)?;
        let exponentials = shifted.exp()?;
        let sums = exponentials.sum(1)?.into_shape(&kept)?;
        f(&shifted, &exponentials, &sums)?.into_shape(&dims)
    }
}
