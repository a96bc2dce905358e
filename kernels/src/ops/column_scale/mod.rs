//! Multiplies each column by its own factor.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::{Element, Result, Shape, TensorMut, TensorRef};

/// `y[n,c] = x[n,c] · scale[c]`
///
/// - `x`, `y`: `[N, C]` of one float dtype; `scale`: `[C]` of the same, or f32 if it is bf16 or f16
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: the scaling layer of arXiv:2407.04491.
pub fn column_scale_forward(x: TensorRef<'_>, scale: TensorRef<'_>, y: TensorMut<'_>) -> Result<()> {
    const OP: &str = "column_scale_forward";
    let x_op = x.operand("x");
    let (_, cols) = check::matrix(OP, x_op)?;
    check::same_kind(OP, &[x_op, y.operand("y")])?;
    check::shape(OP, y.operand("y"), x.shape())?;
    check::output_kind(OP, x_op, scale.operand("scale"))?;
    check::shape(OP, scale.operand("scale"), Shape::vector(cols))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return cuda::forward(gpu, x.cuda()?, scale.cuda()?, &mut y.into_cuda()?);
    }
    check::stored_dispatch!(OP, x_op, T => {
        cpu::forward::<T>(x.as_slice(OP, "x")?, scale.as_slice(OP, "scale")?, y.into_slice(OP, "y")?);
        Ok(())
    })
}

/// Writes the gradients of [`column_scale_forward`]: `d_scale[c] = Σ_n d[n,c]·x[n,c]` of the incoming `d` (`+=` if `accumulate`), then
/// `d[n,c] *= scale[c]`.
///
/// Asynchronous as [`column_scale_forward`], in two launches.
///
/// # Errors
/// Same as [`column_scale_forward`].
pub fn column_scale_backward(
    x: TensorRef<'_>,
    scale: TensorRef<'_>,
    d: TensorMut<'_>,
    d_scale: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "column_scale_backward";
    let x_op = x.operand("x");
    let (_, cols) = check::matrix(OP, x_op)?;
    check::same_kind(OP, &[x_op, d.operand("d")])?;
    check::shape(OP, d.operand("d"), x.shape())?;
    for operand in [scale.operand("scale"), d_scale.operand("d_scale")] {
        check::output_kind(OP, x_op, operand)?;
        check::shape(OP, operand, Shape::vector(cols))?;
    }
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let (mut d, mut d_scale) = (d.into_cuda()?, d_scale.into_cuda()?);
        return cuda::backward(gpu, x.cuda()?, scale.cuda()?, &mut d, &mut d_scale, accumulate);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let d_scale = d_scale.into_slice(OP, "d_scale")?;
        if !accumulate {
            d_scale.fill(Element::ZERO);
        }
        let d = d.into_slice(OP, "d")?;
        cpu::backward::<T>(x.as_slice(OP, "x")?, scale.as_slice(OP, "scale")?, d, d_scale);
        Ok(())
    })
}
