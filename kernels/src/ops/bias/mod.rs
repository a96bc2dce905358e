//! Row-wise bias: added to every row, its gradient the sum over the rows.

mod cpu;

use super::check;
use crate::{Result, Shape, TensorMut, TensorRef};

/// `y[n, c] += bias[c]` in place.
///
/// - `bias`: `[C]`; `y`: `[N, C]`
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
pub fn bias_forward(bias: TensorRef<'_>, y: TensorMut<'_>) -> Result<()> {
    const OP: &str = "bias_forward";
    let (bias_op, y_op) = (bias.operand("bias"), y.operand("y"));
    check::same_kind(OP, &[bias_op, y_op])?;
    let (_, cols) = y.shape().rows_cols();
    check::shape(OP, bias_op, Shape::vector(cols))?;
    check::float_dispatch!(OP, y_op, T => {
        cpu::forward::<T>(bias.as_slice(OP, "bias")?, y.into_slice(OP, "y")?);
        Ok(())
    })
}

/// `d_bias[c] = Σ_n d_y[n, c]`, or `+=` if `accumulate`.
///
/// - `d_y`: `[N, C]`; `d_bias`: `[C]`
///
/// # Errors
/// As [`bias_forward`].
pub fn bias_backward(d_y: TensorRef<'_>, d_bias: TensorMut<'_>, accumulate: bool) -> Result<()> {
    const OP: &str = "bias_backward";
    let (d_y_op, d_bias_op) = (d_y.operand("d_y"), d_bias.operand("d_bias"));
    check::same_kind(OP, &[d_y_op, d_bias_op])?;
    let (_, cols) = d_y.shape().rows_cols();
    check::shape(OP, d_bias_op, Shape::vector(cols))?;
    check::float_dispatch!(OP, d_y_op, T => {
        cpu::backward::<T>(d_y.as_slice(OP, "d_y")?, d_bias.into_slice(OP, "d_bias")?, accumulate);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_gradient, dot, random};

    #[test]
    fn gradient_matches_central_differences() {
        let (rows, cols) = (4, 19);
        let (bias, d_y) = (random::<f64>(cols, 1), random::<f64>(rows * cols, 2));
        let mut d_bias = vec![f64::NAN; cols];
        let view = TensorMut::from_slice(&mut d_bias, &[cols]).unwrap();
        bias_backward(TensorRef::from_slice(&d_y, &[rows, cols]).unwrap(), view, false).unwrap();
        assert_gradient(&bias, &d_bias, |bias| {
            let mut y = vec![0.0; rows * cols];
            let view = TensorMut::from_slice(&mut y, &[rows, cols]).unwrap();
            bias_forward(TensorRef::from_slice(bias, &[cols]).unwrap(), view).unwrap();
            dot(&y, &d_y)
        });
    }
}
