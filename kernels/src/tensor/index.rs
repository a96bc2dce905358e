//! Elements by their indices, and their order.

use crate::base::check;
use crate::ops::{Walk, argsort, strided_copy};
use crate::{AsView, Axis, DType, KernelError, Result, Shape, Tensor, TensorRef};

readable! {
    /// Elements `indices` along `axis`; `indices`: `[n]` i64.
    ///
    /// On a GPU it waits for the indices, in order to check them.
    ///
    /// # Errors
    /// [`KernelError::Index`] for an index that is not there;
    /// [`KernelError::Axis`], [`KernelError::DTypeUnsupported`], [`KernelError::DeviceMismatch`], [`KernelError::Shape`].
    ///
    /// Source: `torch.index_select`.
    pub fn index_select(&self, axis: impl Into<Axis>, indices: impl AsView) -> Result<Tensor> {
        self.view().selected(axis.into(), indices.as_view())
    }

    /// Elements at `indices` along `axis`, with all other indices those of the result: for axis 1 of a matrix,
    /// `out[i, j] = a[i, indices[i, j]]`.
    ///
    /// - `indices`: i64, with as many dimensions, along the others at most as long as this tensor; the result has its shape
    ///
    /// On a GPU it waits for the indices, in order to check them.
    ///
    /// ```
    /// use ddp_kernels::tensor;
    /// let (x, columns) = (tensor![[1., 2.], [3., 4.]], tensor![[1], [0]]);
    /// assert_eq!(x.gather(1, &columns)?.to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Tensor::index_select`].
    ///
    /// Source: `torch.gather`.
    pub fn gather(&self, axis: impl Into<Axis>, indices: impl AsView) -> Result<Tensor> {
        const OP: &str = "gather";
        let (axis, indices, operand) = (axis.into(), indices.as_view(), self.view().operand("a"));
        let n = self.dims()[axis.index(OP, operand)?];
        check::dtype(OP, indices.operand("indices"), &[DType::I64], "i64")?;
        check::same_device(OP, &[operand, indices.operand("indices")])?;
        indices.check_within(OP, n)?;
        self.view().gathered(OP, axis, indices)
    }

    /// Rows of zeros with a one at the column that each element names, as i64: `[..., n_classes]`.
    ///
    /// On a GPU it waits for the elements, in order to check them.
    ///
    /// # Errors
    /// [`KernelError::Index`] for an element outside `0..n_classes`; [`KernelError::DTypeUnsupported`] unless they are i64.
    ///
    /// Source: `torch.nn.functional.one_hot`.
    pub fn one_hot(&self, n_classes: usize) -> Result<Tensor> {
        const OP: &str = "one_hot";
        check::dtype(OP, self.view().operand("a"), &[DType::I64], "i64")?;
        self.view().check_within(OP, n_classes)?;
        let classes = Tensor::arange(n_classes, DType::I64, self.device())?;
        self.unsqueeze(-1)?.eq(&classes)?.to_dtype(DType::I64)
    }
}

impl TensorRef<'_> {
    fn selected(self, axis: Axis, indices: TensorRef<'_>) -> Result<Tensor> {
        const OP: &str = "index_select";
        let (outer, n, inner) = self.around(OP, axis)?;
        let index_op = indices.operand("indices");
        check::same_device(OP, &[self.operand("a"), index_op])?;
        check::dtype(OP, index_op, &[DType::I64], "i64")?;
        check::shape(OP, index_op, Shape::vector(indices.numel()))?;
        indices.check_within(OP, n)?;
        let (mut dims, n_indices) = (self.dims().to_vec(), indices.numel());
        dims[axis.index(OP, self.operand("a"))?] = n_indices;
        let mut out = Tensor::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        let walk = Walk {
            dims: [outer, n_indices, inner],
            from: [n * inner, inner, 1],
            to: [n_indices * inner, inner, 1],
        };
        strided_copy(OP, self, Some((indices, n)), out.new_view_mut(), walk)?;
        Ok(out)
    }

    /// [`Tensor::gather`] with indices that are there.
    pub(super) fn gathered(self, op: &'static str, axis: Axis, indices: TensorRef<'_>) -> Result<Tensor> {
        let (operand, index_op) = (self.operand("a"), indices.operand("indices"));
        let (axis, own, dims) = (axis.index(op, operand)?, self.dims(), indices.dims());
        let fits = own.len() == dims.len() && (0..own.len()).all(|i| i == axis || dims[i] <= own[i]);
        if !fits {
            let mut expected = own.to_vec();
            expected[axis] = dims.get(axis).copied().unwrap_or(1);
            return Err(KernelError::Shape {
                op,
                operand: index_op.into(),
                expected: Shape::new(&expected)?,
            });
        }
        // The place of each element among all: its index along `axis`, and its place among elements of index 0.
        let mut stride = own[axis + 1..].iter().product::<usize>();
        let mut places = indices.mul(stride as i64)?;
        stride = 1;
        for (i, (&n, &n_own)) in dims.iter().zip(own).enumerate().rev() {
            if i != axis && n > 1 {
                let mut line = vec![1; dims.len()];
                line[i] = n;
                let along = Tensor::arange(n, DType::I64, self.device())?.mul(stride as i64)?;
                places = places.add(&along.into_shape(&line)?)?;
            }
            stride *= n_own;
        }
        let mut out = Tensor::for_result(self.memory_use(), indices.shape(), self.dtype(), self.device())?;
        let walk = Walk { dims: [1, out.numel(), 1], from: [0, 1, 1], to: [0, 1, 1] };
        strided_copy(op, self, Some((places.view(), self.numel())), out.new_view_mut(), walk)?;
        Ok(out)
    }

    /// Checks that all elements, which are i64, are in `0..n`.
    fn check_within(self, op: &'static str, n: usize) -> Result<()> {
        if self.numel() == 0 {
            return Ok(());
        }
        let extremes = Tensor::stack(&[self.min(None)?, self.max(None)?], 0)?.to_vec::<i64>()?;
        match extremes.into_iter().find(|&index| index < 0 || index as usize >= n) {
            Some(index) => Err(KernelError::Index { op, index, len: n }),
            None => Ok(()),
        }
    }
}

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

    /// The indices of [`Tensor::sort_descending`].
    ///
    /// # Errors
    /// Same as [`Tensor::sort`].
    pub fn argsort_descending(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        Ok(self.view().ordered("argsort_descending", axis.into(), true, None)?.1)
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

#[cfg(test)]
mod tests {
    use crate::ops::testing::devices;
    use crate::{DType, Tensor, tensor};

    #[test]
    fn gathered_elements_are_those_of_the_definition() {
        const DIMS: [usize; 3] = [2, 3, 4];
        for device in devices() {
            for dtype in [DType::F32, DType::I64, DType::BF16, DType::Bool] {
                let x = Tensor::arange(24, DType::I64, device).unwrap().into_shape(&DIMS).unwrap();
                let x = x.to_dtype(dtype).unwrap();
                let values = x.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
                for axis in 0..3 {
                    // Longer along the axis, shorter along others.
                    let mut dims = [2, 2, 3];
                    dims[axis] = 5;
                    let high = DIMS[axis] as i64;
                    let index = Tensor::randint(0, high, &dims, DType::I64, device, axis as u64).unwrap();
                    let got = x.gather(axis, &index).unwrap();
                    assert_eq!((got.dims(), got.dtype()), (&dims[..], dtype));
                    let places = index.to_vec::<i64>().unwrap();
                    let want: Vec<i64> = (0..dims.iter().product())
                        .map(|e: usize| {
                            let mut at = [e / (dims[1] * dims[2]), e / dims[2] % dims[1], e % dims[2]];
                            at[axis] = places[e] as usize;
                            values[(at[0] * DIMS[1] + at[1]) * DIMS[2] + at[2]]
                        })
                        .collect();
                    let got = got.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
                    assert_eq!(got, want, "along {axis} of {dtype} on {device}");
                }
            }
            let x = tensor![[1., 2.], [3., 4.]].to(device).unwrap();
            let index = |x: Tensor| x.to(device).unwrap();
            let message = x.gather(1, index(tensor![[2]])).unwrap_err().to_string();
            assert_eq!(message, "gather: index 2 is outside 0..2");
            let message = x.gather(1, index(tensor![[-1]])).unwrap_err().to_string();
            assert_eq!(message, "gather: index -1 is outside 0..2");
            let message = x.gather(0, index(tensor![0])).unwrap_err().to_string();
            assert_eq!(message, format!("gather: indices [1] i64 on {device} should be [1, 2]"));
            assert!(x.gather(0, index(tensor![[0, 0, 0]])).is_err() && x.gather(0, &x).is_err());
            assert_eq!(
                x.gather(1, index(Tensor::zeros(&[2, 0], DType::I64, "cpu").unwrap())).unwrap().numel(),
                0
            );
        }
    }
}
