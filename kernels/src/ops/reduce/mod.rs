//! Reductions of all elements, or along one axis.

pub(super) mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::{DType, KernelError, Result, Shape, TensorMut, TensorRef};

crate::named_enum! {
    /// A reduction.
    pub enum ReduceOp {
        /// The sum; 0 for zero elements. Integers and bool are summed as i64.
        Sum = "sum",
        /// The mean, of floats; NaN for zero elements.
        Mean = "mean",
        /// The largest; NaN if there is one.
        Max = "max",
        /// The smallest; NaN if there is one.
        Min = "min",
        /// The index of the first of the largest, as i64; NaN counts as the largest.
        ArgMax = "argmax",
        /// The Euclidean norm, of floats.
        Norm = "norm",
    }
}

impl ReduceOp {
    /// The dtype of the result.
    pub fn result_dtype(self, dtype: DType) -> DType {
        match self {
            ReduceOp::ArgMax => DType::I64,
            ReduceOp::Sum if !dtype.is_float() => DType::I64,
            _ => dtype,
        }
    }
}

/// A tensor as `[outer, len, inner]`, reduced along `len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    outer: usize,
    len: usize,
    inner: usize,
}

/// `out = op(x)` over all elements, or along `axis`.
///
/// - `x`: any shape; `out`: one element per element of `x`'s shape without `axis`, of [`ReduceOp::result_dtype`]
/// - sums of floats are in f64, rounded once; a sum's order depends on the shape only, never on the number of threads
///
/// Allocates memory for the results of parts of a sum. Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DTypeUnsupported`] for a mean or norm of integers; [`KernelError::OutOfRange`] for an axis that is not there;
/// [`KernelError::EmptyReduction`] for the largest or smallest of nothing; [`KernelError::DeviceMismatch`],
/// [`KernelError::ElementCount`].
///
/// Source: PyTorch's functions of these names.
pub fn reduce(op: ReduceOp, x: TensorRef<'_>, axis: Option<usize>, out: TensorMut<'_>) -> Result<()> {
    reduce_by(op, x, axis, out, false)
}

/// [`reduce()`] that allocates nothing and can be captured: on a GPU, one block or one thread computes each result, however long the
/// axis is.
///
/// # Errors
/// Same as [`reduce()`].
#[doc(hidden)]
pub fn reduce_whole(op: ReduceOp, x: TensorRef<'_>, axis: Option<usize>, out: TensorMut<'_>) -> Result<()> {
    reduce_by(op, x, axis, out, true)
}

fn reduce_by(
    op: ReduceOp,
    x: TensorRef<'_>,
    axis: Option<usize>,
    out: TensorMut<'_>,
    is_whole: bool,
) -> Result<()> {
    let name = op.name();
    let (x_op, out_op) = (x.operand("a"), out.operand("out"));
    check::same_device(name, &[x_op, out_op])?;
    if matches!(op, ReduceOp::Mean | ReduceOp::Norm) {
        check::dtype(name, x_op, check::FLOATS, check::FLOATS_NAMES)?;
    }
    check::dtype(name, out_op, &[op.result_dtype(x_op.dtype)], op.result_dtype(x_op.dtype).name())?;
    let layout = layout(name, x.shape(), axis)?;
    if out.numel() != layout.outer * layout.inner {
        return Err(KernelError::ElementCount {
            op: name,
            got: layout.outer * layout.inner,
            shape: out.shape(),
        });
    }
    let needs_one = matches!(op, ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax);
    if needs_one && layout.len == 0 && out.numel() > 0 {
        return Err(KernelError::EmptyReduction { op: name, operand: x_op.into() });
    }
    match out.gpu() {
        Some(gpu) if is_whole => cuda::reduce_whole(gpu, op, x, layout, &mut out.into_cuda()?),
        Some(gpu) => cuda::reduce(gpu, op, x, layout, &mut out.into_cuda()?),
        None => cpu::reduce(op, x, layout, out),
    }
}

fn layout(op: &'static str, shape: Shape, axis: Option<usize>) -> Result<Layout> {
    let dims = shape.dims();
    let Some(axis) = axis else { return Ok(Layout { outer: 1, len: shape.numel(), inner: 1 }) };
    if axis >= dims.len() {
        return Err(KernelError::OutOfRange { op, start: axis, end: axis + 1, len: dims.len() });
    }
    Ok(Layout {
        outer: dims[..axis].iter().product(),
        len: dims[axis],
        inner: dims[axis + 1..].iter().product(),
    })
}
