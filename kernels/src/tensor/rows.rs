//! Reshaping, slicing, joining and indexing.

use crate::base::check;
use crate::ops::{Walk, strided_copy};
use crate::{DType, KernelError, Result, Shape, Tensor, TensorRef};

impl Tensor {
    /// A copy under another shape with as many elements. [`Tensor::into_shape`] copies nothing, and [`Tensor::view`] can be reshaped.
    ///
    /// # Errors
    /// [`KernelError::ElementCount`]; as [`Tensor::zeros`].
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        self.try_clone()?.into_shape(dims)
    }

    /// A copy with the dimensions in another order: dimension `k` of the result is dimension `axes[k]`.
    ///
    /// ```
    /// use ddp_kernels::{DType, Device, Tensor};
    /// let x = Tensor::arange(6, DType::I64, Device::Cpu)?.into_shape(&[1, 2, 3])?;
    /// let y = x.permute(&[2, 0, 1])?;
    /// assert_eq!((y.dims(), y.to_vec::<i64>()?), (&[3, 1, 2][..], vec![0, 3, 1, 4, 2, 5]));
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// Same as for every function that creates a tensor.
    ///
    /// # Panics
    /// If `axes` is not a permutation of the dimensions.
    ///
    /// Source: `torch.permute`, which returns a view.
    pub fn permute(&self, axes: &[usize]) -> Result<Self> {
        let dims: Vec<usize> = axes.iter().map(|&axis| self.dims()[axis]).collect();
        let mut out = Tensor::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        crate::ops::permute(self.view(), self.dims(), axes, out.view_mut())?;
        Ok(out)
    }

    /// The transposed matrix, a copy: tensors are always contiguous.
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless there are two dimensions; as [`Tensor::zeros`].
    pub fn t(&self) -> Result<Self> {
        check::matrix("t", self.view().operand("a"))?;
        self.swap_last()
    }

    /// The last two of two or three dimensions swapped.
    pub(super) fn swap_last(&self) -> Result<Self> {
        let (mut dims, own) = (self.dims().to_vec(), self.dims());
        let n = own.len();
        let (outer, rows, columns) = (own[..n - 2].iter().product(), own[n - 2], own[n - 1]);
        dims.swap(n - 2, n - 1);
        let mut out = Self::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        let walk = Walk {
            dims: [outer, columns, rows],
            from: [rows * columns, 1, columns],
            to: [rows * columns, rows, 1],
        };
        strided_copy("t", self.view(), None, out.view_mut(), walk)?;
        Ok(out)
    }

    /// Elements `start..start + len` along `axis`, a copy. Without a copy, along the first axis: [`TensorRef::rows`].
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`]; as [`Tensor::zeros`].
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Self> {
        const OP: &str = "narrow";
        let (outer, n, inner) = self.around(OP, axis)?;
        let end = start.saturating_add(len);
        if end > n {
            return Err(KernelError::OutOfRange { op: OP, start, end, len: n });
        }
        let mut dims = self.dims().to_vec();
        dims[axis] = len;
        let mut out = Self::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        if out.numel() > 0 {
            let from = self.view().range(start * inner, self.numel())?;
            let walk =
                Walk { dims: [1, outer, len * inner], from: [0, n * inner, 1], to: [0, len * inner, 1] };
            strided_copy(OP, from, None, out.view_mut(), walk)?;
        }
        Ok(out)
    }

    /// Element `index` of the first axis: a view of that row, without its dimension.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`].
    pub fn row(&self, index: usize) -> Result<TensorRef<'_>> {
        let dims = self.dims().get(1..).unwrap_or_default();
        self.view().rows(index, index.saturating_add(1))?.reshape(dims)
    }

    /// Tensors joined along `axis`; their other dimensions are equal.
    ///
    /// # Errors
    /// [`KernelError::ShapeMismatch`], [`KernelError::DeviceMismatch`] or [`KernelError::DTypeMismatch`], which name the first tensor
    /// and the one that differs; [`KernelError::ElementCount`] for no tensor; [`KernelError::OutOfRange`] for the axis.
    ///
    /// Source: `torch.cat`.
    pub fn cat(parts: &[&Tensor], axis: usize) -> Result<Self> {
        const OP: &str = "cat";
        let Some(first) = parts.first() else {
            return Err(KernelError::ElementCount { op: OP, got: 0, shape: Shape::new(&[])? });
        };
        let a_op = first.view().operand("parts[0]");
        let (outer, _, inner) = first.around(OP, axis)?;
        let mut dims = first.dims().to_vec();
        dims[axis] = 0;
        for part in parts {
            let operand = part.view().operand("part");
            check::same_kind(OP, &[a_op, operand])?;
            let mut own = part.dims().to_vec();
            let n = own.get(axis).copied().unwrap_or(0);
            dims[axis] += n;
            if let Some(own) = own.get_mut(axis) {
                *own = dims[axis];
            }
            if own != dims {
                let (fix, rule) = (
                    "part.reshape(..): all dimensions but that one are equal".to_owned(),
                    "join along this axis",
                );
                return Err(KernelError::ShapeMismatch {
                    op: OP,
                    a: a_op.into(),
                    b: operand.into(),
                    rule,
                    fix: fix.into(),
                });
            }
        }
        let total = dims[axis];
        let mut out =
            Self::for_result(first.memory_use(), Shape::new(&dims)?, first.dtype(), first.device())?;
        let (mut start, n_elements) = (0, out.numel());
        for part in parts {
            let len = part.dims()[axis] * inner;
            if outer * len > 0 {
                let walk = Walk { dims: [1, outer, len], from: [0, len, 1], to: [0, total * inner, 1] };
                let to = out.view_mut().range(start, n_elements)?;
                strided_copy(OP, part.view(), None, to, walk)?;
            }
            start += len;
        }
        Ok(out)
    }

    /// Tensors of one shape joined along a new axis, which comes before axis `axis` of the parts.
    ///
    /// # Errors
    /// Same as [`Tensor::cat`].
    ///
    /// Source: `torch.stack`.
    pub fn stack(parts: &[&Tensor], axis: usize) -> Result<Self> {
        const OP: &str = "stack";
        let dims = parts.first().map_or(&[][..], |first| first.dims());
        if axis > dims.len() {
            return Err(KernelError::OutOfRange { op: OP, start: axis, end: axis + 1, len: dims.len() + 1 });
        }
        if let Some(other) = parts.iter().find(|part| part.dims() != dims) {
            let (a, b) = (parts[0].view().operand("parts[0]"), other.view().operand("part"));
            return Err(crate::ops::shapes_differ(OP, a, b));
        }
        // Joined as [outer, n * inner], which is the result's order.
        let outer: usize = dims[..axis].iter().product();
        let inner = dims[axis..].iter().product();
        let flat: Vec<Tensor> =
            parts.iter().map(|part| part.reshape(&[outer, inner])).collect::<Result<_>>()?;
        let joined = Self::cat(&flat.iter().collect::<Vec<_>>(), 1)?;
        let mut stacked = dims.to_vec();
        stacked.insert(axis, parts.len());
        joined.into_shape(&stacked)
    }

    /// Elements `indices` along `axis`; `indices`: `[n]` i64.
    ///
    /// On a GPU it waits for the indices, in order to check them.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for an index that is not there (a negative one appears as the unsigned number of the same bits);
    /// [`KernelError::DTypeUnsupported`], [`KernelError::DeviceMismatch`], [`KernelError::Shape`].
    ///
    /// Source: `torch.index_select`.
    pub fn index_select(&self, axis: usize, indices: &Tensor) -> Result<Self> {
        const OP: &str = "index_select";
        let (outer, n, inner) = self.around(OP, axis)?;
        let index_op = indices.view().operand("indices");
        check::same_device(OP, &[self.view().operand("a"), index_op])?;
        check::dtype(OP, index_op, &[DType::I64], "i64")?;
        check::shape(OP, index_op, Shape::vector(indices.numel()))?;
        indices.check_within(OP, n)?;
        let mut dims = self.dims().to_vec();
        dims[axis] = indices.numel();
        let mut out = Self::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        let n_indices = indices.numel();
        let walk = Walk {
            dims: [outer, n_indices, inner],
            from: [n * inner, inner, 1],
            to: [n_indices * inner, inner, 1],
        };
        strided_copy(OP, self.view(), Some((indices.view(), n)), out.view_mut(), walk)?;
        Ok(out)
    }

    /// Rows of zeros with a one at the column that each element names, as i64: `[..., n_classes]`.
    ///
    /// On a GPU it waits for the elements, in order to check them.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for an element outside `0..n_classes`; [`KernelError::DTypeUnsupported`] unless they are i64.
    ///
    /// Source: `torch.nn.functional.one_hot`.
    pub fn one_hot(&self, n_classes: usize) -> Result<Self> {
        const OP: &str = "one_hot";
        check::dtype(OP, self.view().operand("a"), &[DType::I64], "i64")?;
        self.check_within(OP, n_classes)?;
        let classes = Self::arange(n_classes, DType::I64, self.device())?;
        let mut dims = self.dims().to_vec();
        dims.push(n_classes);
        let shape = Shape::new(&dims)?;
        let ones = self.reshape(&[self.numel(), 1])?.eq(&classes)?;
        ones.to_dtype(DType::I64)?.into_shape(shape.dims())
    }

    /// Checks that all elements, which are i64, are in `0..n`.
    fn check_within(&self, op: &'static str, n: usize) -> Result<()> {
        if self.numel() == 0 {
            return Ok(());
        }
        let extremes = Self::stack(&[&self.min(None)?, &self.max(None)?], 0)?.to_vec::<i64>()?;
        match extremes.into_iter().find(|&index| index < 0 || index as usize >= n) {
            Some(wrong) => {
                let start = wrong as usize;
                Err(KernelError::OutOfRange { op, start, end: start.saturating_add(1), len: n })
            }
            None => Ok(()),
        }
    }

    /// The number of elements before, along and after `axis`.
    fn around(&self, op: &'static str, axis: usize) -> Result<(usize, usize, usize)> {
        let dims = self.dims();
        if axis >= dims.len() {
            return Err(KernelError::OutOfRange {
                op,
                start: axis,
                end: axis.saturating_add(1),
                len: dims.len(),
            });
        }
        Ok((dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()))
    }
}
