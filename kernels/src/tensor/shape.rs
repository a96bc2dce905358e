//! Other shapes of the same elements, and other orders of dimensions.

use std::ops::{Bound, RangeBounds};

use crate::base::check;
use crate::ops::{Walk, broadcast_shape, permute, read_strided, shapes_differ, strided_copy};
use crate::{Axes, Axis, KernelError, Result, Shape, Tensor, TensorRef};

impl Tensor {
    /// The same elements under another shape. It shares the memory where [`Tensor`] says so; [`Tensor::into_shape`] always does.
    ///
    /// # Errors
    /// [`KernelError::ElementCount`]; as [`Tensor::zeros`].
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        self.share()?.into_shape(dims)
    }
}

readable! {
    /// The same elements with another dimension of length 1, which becomes axis `axis`.
    ///
    /// ```
    /// use ddp_kernels::tensor;
    /// let x = tensor![1., 2., 3.];
    /// assert_eq!((x.unsqueeze(0)?.dims(), x.unsqueeze(-1)?.dims()), (&[1, 3][..], &[3, 1][..]));
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Axis`]; [`KernelError::BadShape`] for more than four dimensions; as [`Tensor::reshape`].
    ///
    /// Source: `torch.unsqueeze`.
    pub fn unsqueeze(&self, axis: impl Into<Axis>) -> Result<Self> {
        let mut dims = self.dims().to_vec();
        dims.insert(axis.into().index_among("unsqueeze", self.view().operand("a"), dims.len() + 1)?, 1);
        self.reshape(&dims)
    }

    /// The same elements without these dimensions, as far as their length is 1; without all such dimensions for `None`.
    ///
    /// # Errors
    /// [`KernelError::Axis`]; as [`Tensor::reshape`].
    ///
    /// Source: `torch.squeeze`.
    pub fn squeeze(&self, axes: impl Into<Axes>) -> Result<Self> {
        let mask = axes.into().mask("squeeze", self.view().operand("a"))?;
        let kept = self.dims().iter().zip(mask).filter(|&(&n, is_named)| n != 1 || !is_named);
        let dims: Vec<usize> = kept.map(|(&n, _)| n).collect();
        self.reshape(&dims)
    }

    /// The same elements with all dimensions joined to one. A tensor without dimensions becomes `[1]`.
    ///
    /// # Errors
    /// Same as [`Tensor::reshape`].
    ///
    /// Source: `torch.flatten`.
    pub fn flatten(&self) -> Result<Self> {
        self.reshape(&[self.numel()])
    }

    /// The same elements with the dimensions of this range joined to one: all but the first for `1..`. A tensor without dimensions becomes
    /// `[1]`.
    ///
    /// ```
    /// use ddp_kernels::{DType, Tensor};
    /// let x = Tensor::zeros(&[2, 3, 4], DType::F32, "cpu")?;
    /// assert_eq!((x.flatten()?.dims(), x.flatten_range(1..)?.dims()), (&[24][..], &[2, 12][..]));
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Axis`]; as [`Tensor::reshape`].
    ///
    /// Source: `torch.flatten`, whose `end_dim` is included.
    pub fn flatten_range(&self, axes: impl RangeBounds<isize>) -> Result<Self> {
        let dims = self.view().flat_dims(axes)?;
        self.reshape(&dims)
    }

    /// A copy with the dimensions in another order: dimension `k` of the result is dimension `axes[k]`.
    ///
    /// ```
    /// use ddp_kernels::{DType, Device, Tensor};
    /// let x = Tensor::arange(6, DType::I64, Device::Cpu)?.into_shape(&[1, 2, 3])?;
    /// let y = x.permute([2, 0, 1])?;
    /// assert_eq!((y.dims(), y.to_vec::<i64>()?), (&[3, 1, 2][..], vec![0, 3, 1, 4, 2, 5]));
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Axis`] for an axis that is not there or is given twice; [`KernelError::ElementCount`] unless all are given; as
    /// [`Tensor::zeros`].
    ///
    /// Source: `torch.permute`, which returns a view.
    pub fn permute(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().permuted("permute", &axes.into())
    }

    /// A copy with two dimensions swapped.
    ///
    /// # Errors
    /// [`KernelError::Axis`]; as [`Tensor::zeros`].
    ///
    /// Source: `torch.transpose`, which returns a view.
    pub fn transpose(&self, axis: impl Into<Axis>, other: impl Into<Axis>) -> Result<Tensor> {
        self.view().transposed("transpose", axis.into(), other.into())
    }

    /// The transposed matrix, a copy: tensors are always contiguous.
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless there are two dimensions; as [`Tensor::zeros`].
    pub fn t(&self) -> Result<Tensor> {
        check::matrix("t", self.view().operand("a"))?;
        self.view().transposed("t", 0.into(), 1.into())
    }

    /// A copy of shape `dims` in which dimensions of length 1, and missing ones in front, are repeated.
    ///
    /// Elementwise operations broadcast without it.
    ///
    /// # Errors
    /// [`KernelError::ShapeMismatch`] if the shape does not broadcast to `dims`; as [`Tensor::zeros`].
    ///
    /// Source: `torch.Tensor.expand`, which returns a view.
    pub fn expand(&self, dims: &[usize]) -> Result<Tensor> {
        self.view().expanded(dims)
    }
}

impl TensorRef<'_> {
    fn flat_dims(self, axes: impl RangeBounds<isize>) -> Result<Vec<usize>> {
        const OP: &str = "flatten";
        let (operand, n) = (self.operand("a"), self.dims().len());
        if n == 0 {
            return Ok(vec![1]);
        }
        let index = |axis: isize| Axis::from(axis).index(OP, operand);
        let start = match axes.start_bound() {
            Bound::Included(&axis) => index(axis)?,
            Bound::Excluded(&axis) => index(axis)? + 1,
            Bound::Unbounded => 0,
        };
        let last = match axes.end_bound() {
            Bound::Included(&axis) => index(axis)?,
            // The axis at the end itself may be one past the last.
            Bound::Excluded(&axis) if axis == n as isize => n - 1,
            Bound::Excluded(&axis) => index(axis)?.saturating_sub(1),
            Bound::Unbounded => n - 1,
        };
        let own = self.dims();
        if start > last {
            return Ok(own.to_vec());
        }
        let joined = own[start..=last].iter().product();
        Ok([&own[..start], &[joined], &own[last + 1..]].concat())
    }

    pub(super) fn permuted(self, op: &'static str, axes: &Axes) -> Result<Tensor> {
        let (operand, own) = (self.operand("a"), self.dims());
        axes.mask(op, operand)?;
        let axes = axes.indices(op, operand)?;
        if axes.len() != own.len() {
            return Err(KernelError::ElementCount { op, got: axes.len(), shape: Shape::vector(own.len()) });
        }
        let dims: Vec<usize> = axes.iter().map(|&axis| own[axis]).collect();
        let mut out = Tensor::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        permute(self, own, &axes, out.new_view_mut())?;
        Ok(out)
    }

    pub(super) fn transposed(self, op: &'static str, axis: Axis, other: Axis) -> Result<Tensor> {
        let (operand, own) = (self.operand("a"), self.dims());
        let (a, b) = (axis.index(op, operand)?, other.index(op, operand)?);
        let mut order: Vec<usize> = (0..own.len()).collect();
        order.swap(a, b);
        let n = own.len();
        if n < 2 || a.abs_diff(b) != 1 || a.max(b) != n - 1 {
            return self.permuted(op, &order.as_slice().into());
        }
        // Of the last two, block by block.
        let (outer, rows, columns) = (own[..n - 2].iter().product(), own[n - 2], own[n - 1]);
        let mut dims = own.to_vec();
        dims.swap(n - 2, n - 1);
        let mut out = Tensor::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        let walk = Walk {
            dims: [outer, columns, rows],
            from: [rows * columns, 1, columns],
            to: [rows * columns, rows, 1],
        };
        strided_copy(op, self, None, out.new_view_mut(), walk)?;
        Ok(out)
    }

    pub(super) fn expanded(self, dims: &[usize]) -> Result<Tensor> {
        const OP: &str = "expand";
        let (shape, operand) = (Shape::new(dims)?, self.operand("a"));
        if broadcast_shape(self.shape(), shape) != Some(shape) {
            let wanted = crate::Operand { name: "dims", shape, ..operand };
            return Err(shapes_differ(OP, wanted, operand));
        }
        let mut out = Tensor::for_result(self.memory_use(), shape, self.dtype(), self.device())?;
        let (own, mut strides, mut stride) = (self.dims(), vec![0; dims.len()], 1);
        for (i, &n) in own.iter().enumerate().rev() {
            strides[dims.len() - own.len() + i] = if n == 1 { 0 } else { stride };
            stride *= n;
        }
        read_strided(OP, self, dims, &strides, out.new_view_mut())?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use crate::hint::with_hint;
    use crate::ops::testing::devices;
    use crate::{DType, Tensor, tensor};

    #[test]
    fn dimensions_of_one_come_and_go_and_others_are_joined() {
        for device in devices() {
            let x = Tensor::arange(24, DType::I64, device).unwrap().into_shape(&[2, 1, 3, 4]).unwrap();
            let dims = |x: crate::Result<Tensor>| x.unwrap().dims().to_vec();
            let small = x.squeeze(1).unwrap();
            assert_eq!(small.to_vec::<i64>().unwrap(), (0..24).collect::<Vec<_>>());
            assert_eq!(
                (small.dims(), dims(x.squeeze(None)), dims(x.squeeze(0))),
                (&[2, 3, 4][..], vec![2, 3, 4], vec![2, 1, 3, 4])
            );
            assert_eq!(dims(x.squeeze([-3, 0])), [2, 3, 4]);
            for (axis, want) in [(0, [1, 2, 3, 4]), (3, [2, 3, 4, 1]), (-1, [2, 3, 4, 1]), (-4, [1, 2, 3, 4])]
            {
                assert_eq!(dims(small.unsqueeze(axis)), want, "{axis}");
            }
            assert_eq!(
                (dims(x.flatten()), dims(x.flatten_range(1..)), dims(x.flatten_range(..-1))),
                (vec![24], vec![2, 12], vec![6, 4])
            );
            assert_eq!(
                (dims(x.flatten_range(0..=1)), dims(x.flatten_range(2..3)), dims(x.flatten_range(-2..))),
                (vec![2, 3, 4], vec![2, 1, 3, 4], vec![2, 1, 12])
            );
            assert_eq!(dims(x.sum(None).unwrap().flatten()), [1]);
            // Of views too, without a copy.
            let row = small.row(1).unwrap();
            assert_eq!(
                row.unsqueeze(0).unwrap().squeeze(0).unwrap().flatten().unwrap().to_vec::<i64>().unwrap()[0],
                12
            );
        }
    }

    #[test]
    fn dimensions_in_any_order() {
        for device in devices() {
            let x = Tensor::arange(24, DType::I32, device).unwrap().into_shape(&[2, 3, 4]).unwrap();
            for [a, b] in [[0, 1], [1, 2], [2, 0], [0, 0], [-1, -2], [-3, 2]] {
                let y = x.transpose(a, b).unwrap();
                let [i, j] = [a, b].map(|axis: i32| axis.rem_euclid(3) as usize);
                let mut order = [0, 1, 2];
                order.swap(i, j);
                let want = x.permute(order).unwrap();
                assert_eq!(y.dims(), want.dims());
                assert_eq!(
                    y.to_vec::<i32>().unwrap(),
                    want.to_vec::<i32>().unwrap(),
                    "{a} and {b} on {device}"
                );
            }
            let y = x.permute([-1, 0, 1]).unwrap();
            assert_eq!((y.dims(), &y.to_vec::<i32>().unwrap()[..4]), (&[4, 2, 3][..], &[0, 4, 8, 12][..]));
        }
        let x = tensor![[1, 2], [3, 4]];
        let message = |x: crate::Result<Tensor>| with_hint(&x.unwrap_err());
        assert_eq!(
            message(x.permute([0, 2])),
            "permute: a [2, 2] i64 on cpu has no axis 2\nhint: axes are 0 to 1, or -2 to -1 from the end, each once"
        );
        assert!(
            message(x.permute([1, -1]))
                .starts_with("permute: a [2, 2] i64 on cpu is given twice the axis -1")
        );
        assert!(message(x.permute([1])).starts_with("permute: 1 elements cannot fill the shape [2]"));
        assert!(message(x.transpose(0, -3)).contains("has no axis -3"));
        assert!(message(x.sum(None).unwrap().transpose(0, 0)).contains("None stands for all"));
        assert!(message(x.unsqueeze(4)).contains("axes are 0 to 2"));
    }

    #[test]
    fn dimensions_of_one_are_repeated() {
        for device in devices() {
            let x = tensor![[1., 2., 3.]].to(device).unwrap();
            let y = x.expand(&[2, 2, 3]).unwrap();
            assert_eq!((y.dims(), y.to_vec::<f32>().unwrap()), (&[2, 2, 3][..], [1.0, 2.0, 3.0].repeat(4)));
            let column = x.t().unwrap().expand(&[3, 2]).unwrap();
            assert_eq!(column.to_vec::<f32>().unwrap(), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
            let flags = tensor![true].to(device).unwrap().expand(&[2, 1, 2]).unwrap();
            assert_eq!(flags.to_vec::<bool>().unwrap(), [true; 4]);
            for own in [[2, 1, 3, 1], [1, 4, 1, 5], [2, 4, 1, 1]] {
                let n: usize = own.iter().product();
                let x = Tensor::arange(n, DType::I32, device).unwrap().into_shape(&own).unwrap();
                let sum = &x + Tensor::zeros(&[2, 4, 3, 5], DType::I32, device).unwrap();
                let expanded = x.expand(&[2, 4, 3, 5]).unwrap();
                assert_eq!(
                    expanded.to_vec::<i32>().unwrap(),
                    sum.to_vec::<i32>().unwrap(),
                    "{own:?} on {device}"
                );
            }
            assert_eq!(x.expand(&[0, 3]).unwrap().dims(), [0, 3]);
            let message = with_hint(&x.expand(&[2, 4]).unwrap_err());
            assert!(
                message.starts_with("expand: dims [2, 4] f32") && message.contains("a [1, 3] f32"),
                "{message}"
            );
            assert!(x.expand(&[3]).is_err());
        }
    }
}
