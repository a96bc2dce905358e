//! Slices along an axis, and joining.

use std::ops::Range;

use crate::base::check;
use crate::ops::{Walk, strided_copy};
use crate::{AsView, Axis, KernelError, Result, Shape, Tensor, TensorRef};

readable! {
    /// Elements `start..start + len` along `axis`, a copy. Without a copy, along the first axis: [`TensorRef::rows`].
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`]; [`KernelError::Axis`]; as [`Tensor::zeros`].
    ///
    /// Source: `torch.narrow`, which returns a view.
    pub fn narrow(&self, axis: impl Into<Axis>, start: usize, len: usize) -> Result<Tensor> {
        self.view().narrowed("narrow", axis.into(), start, len)
    }

    /// Parts along `axis`, copies: of one size, of which the last may be shorter, or of these sizes, which are all elements.
    ///
    /// ```
    /// use ddp_kernels::tensor;
    /// let x = tensor![[1, 2, 3, 4, 5]];
    /// let dims = |parts: Vec<ddp_kernels::Tensor>| parts.iter().map(|part| part.dims()[1]).collect::<Vec<_>>();
    /// assert_eq!(dims(x.split(2, 1)?), [2, 2, 1]);
    /// assert_eq!(dims(x.split([1, 4], 1)?), [1, 4]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Axis`]; [`KernelError::OutOfRange`] for a size of 0, and for sizes that are not all elements; as [`Tensor::zeros`].
    ///
    /// Source: `torch.split`.
    pub fn split(&self, sizes: impl Into<PartSizes>, axis: impl Into<Axis>) -> Result<Vec<Tensor>> {
        self.view().parts("split", &sizes.into(), axis.into())
    }

    /// At most `n` parts along `axis`, all of one length but the last, which may be shorter; copies.
    ///
    /// ```
    /// use ddp_kernels::{Tensor, tensor};
    /// let halves = tensor![[1, 2, 3, 4]].chunk(2, 1)?;
    /// assert_eq!(halves[1].to_vec::<i64>()?, [3, 4]);
    /// assert_eq!(Tensor::cat(&halves, 1)?.dims(), [1, 4]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Tensor::split`].
    ///
    /// Source: `torch.chunk`.
    pub fn chunk(&self, n: usize, axis: impl Into<Axis>) -> Result<Vec<Tensor>> {
        const OP: &str = "chunk";
        let axis = axis.into();
        let (_, len, _) = self.view().around(OP, axis)?;
        let size = if n == 0 { 0 } else { len.div_ceil(n).max(1) };
        self.view().parts(OP, &size.into(), axis)
    }

    /// Element `index` of the first axis: a view of that row, without its dimension.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`].
    pub fn row(&self, index: usize) -> Result<TensorRef<'_>> {
        let dims = self.dims().get(1..).unwrap_or_default();
        self.view().rows(index, index.saturating_add(1))?.reshape(dims)
    }
}

/// The sizes of parts: all the same, or each its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartSizes {
    /// All but the last, which has what is left.
    Same(usize),
    /// Together all elements.
    Each(Vec<usize>),
}

impl PartSizes {
    /// The parts of `n` elements.
    ///
    /// # Errors
    /// The number of elements of the parts, if they are not all elements; 0 for a size of 0.
    pub fn ranges(&self, n: usize) -> std::result::Result<Vec<Range<usize>>, usize> {
        match self {
            PartSizes::Same(0) => Err(0),
            // Of nothing one empty part, as in PyTorch.
            PartSizes::Same(size) => {
                Ok((0..n.div_ceil(*size).max(1)).map(|i| i * size..n.min((i + 1) * size)).collect())
            }
            PartSizes::Each(sizes) => {
                let mut end = 0;
                let parts = sizes.iter().map(|size| {
                    let start = end;
                    end += size;
                    start..end
                });
                let parts = parts.collect();
                if end == n { Ok(parts) } else { Err(end) }
            }
        }
    }
}

impl From<usize> for PartSizes {
    fn from(size: usize) -> Self {
        PartSizes::Same(size)
    }
}

impl From<&[usize]> for PartSizes {
    fn from(sizes: &[usize]) -> Self {
        PartSizes::Each(sizes.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for PartSizes {
    fn from(sizes: [usize; N]) -> Self {
        PartSizes::Each(sizes.to_vec())
    }
}

impl<const N: usize> From<&[usize; N]> for PartSizes {
    fn from(sizes: &[usize; N]) -> Self {
        PartSizes::Each(sizes.to_vec())
    }
}

impl TensorRef<'_> {
    pub(super) fn narrowed(self, op: &'static str, axis: Axis, start: usize, len: usize) -> Result<Tensor> {
        let (outer, n, inner) = self.around(op, axis)?;
        let end = start.saturating_add(len);
        if end > n {
            return Err(KernelError::OutOfRange { op, start, end, len: n });
        }
        let mut dims = self.dims().to_vec();
        dims[axis.index(op, self.operand("a"))?] = len;
        let mut out = Tensor::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        if out.numel() > 0 {
            let from = self.range(start * inner, self.numel())?;
            let walk =
                Walk { dims: [1, outer, len * inner], from: [0, n * inner, 1], to: [0, len * inner, 1] };
            strided_copy(op, from, None, out.new_view_mut(), walk)?;
        }
        Ok(out)
    }

    fn parts(self, op: &'static str, sizes: &PartSizes, axis: Axis) -> Result<Vec<Tensor>> {
        let (_, n, _) = self.around(op, axis)?;
        let parts = sizes.ranges(n).map_err(|end| KernelError::OutOfRange { op, start: 0, end, len: n })?;
        parts.into_iter().map(|part| self.narrowed(op, axis, part.start, part.len())).collect()
    }

    /// The number of elements before, along and after `axis`.
    pub(super) fn around(self, op: &'static str, axis: Axis) -> Result<(usize, usize, usize)> {
        let (dims, axis) = (self.dims(), axis.index(op, self.operand("a"))?);
        Ok((dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()))
    }
}

impl Tensor {
    /// Tensors joined along `axis`; their other dimensions are equal.
    ///
    /// # Errors
    /// [`KernelError::ShapeMismatch`], [`KernelError::DeviceMismatch`] or [`KernelError::DTypeMismatch`], which name the first tensor
    /// and the one that differs; [`KernelError::ElementCount`] for no tensor; [`KernelError::Axis`].
    ///
    /// Source: `torch.cat`.
    pub fn cat(parts: &[impl AsView], axis: impl Into<Axis>) -> Result<Self> {
        const OP: &str = "cat";
        let parts: Vec<TensorRef<'_>> = parts.iter().map(AsView::as_view).collect();
        let Some(first) = parts.first() else {
            return Err(KernelError::ElementCount { op: OP, got: 0, shape: Shape::new(&[])? });
        };
        let a_op = first.operand("parts[0]");
        let axis = axis.into().index(OP, a_op)?;
        let (outer, _, inner) = first.around(OP, axis.into())?;
        let mut dims = first.dims().to_vec();
        dims[axis] = 0;
        for part in &parts {
            let operand = part.operand("part");
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
        for part in &parts {
            let len = part.dims()[axis] * inner;
            if outer * len > 0 {
                let walk = Walk { dims: [1, outer, len], from: [0, len, 1], to: [0, total * inner, 1] };
                let to = out.new_view_mut().range(start, n_elements)?;
                strided_copy(OP, *part, None, to, walk)?;
            }
            start += len;
        }
        Ok(out)
    }

    /// Tensors of one shape joined along a new axis, which becomes axis `axis`.
    ///
    /// # Errors
    /// Same as [`Tensor::cat`].
    ///
    /// Source: `torch.stack`.
    pub fn stack(parts: &[impl AsView], axis: impl Into<Axis>) -> Result<Self> {
        const OP: &str = "stack";
        let parts: Vec<TensorRef<'_>> = parts.iter().map(AsView::as_view).collect();
        let Some(first) = parts.first() else {
            return Err(KernelError::ElementCount { op: OP, got: 0, shape: Shape::new(&[])? });
        };
        let (a_op, dims) = (first.operand("parts[0]"), first.dims());
        let axis = axis.into().index_among(OP, a_op, dims.len() + 1)?;
        if let Some(other) = parts.iter().find(|part| part.dims() != dims) {
            return Err(crate::ops::shapes_differ(OP, a_op, other.operand("part")));
        }
        // Joined as [outer, n * inner], which is the result's order.
        let outer: usize = dims[..axis].iter().product();
        let inner = dims[axis..].iter().product();
        let flat: Vec<_> = parts.iter().map(|part| part.reshape(&[outer, inner])).collect::<Result<_>>()?;
        let mut stacked = dims.to_vec();
        stacked.insert(axis, parts.len());
        Self::cat(&flat, 1)?.into_shape(&stacked)
    }
}
