//! Elementwise addition, for residual connections.

use super::check;
use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::{Result, TensorMut, TensorRef};

/// `y += x`.
///
/// - `x`, `y`: one shape, f32 or f64
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
pub fn add_assign(y: TensorMut<'_>, x: TensorRef<'_>) -> Result<()> {
    const OP: &str = "add_assign";
    let (x_op, y_op) = (x.operand("x"), y.operand("y"));
    check::same_kind(OP, &[y_op, x_op])?;
    check::shape(OP, x_op, y.shape())?;
    check::float_dispatch!(OP, y_op, T => {
        add::<T>(y.into_slice(OP, "y")?, x.as_slice(OP, "x")?);
        Ok(())
    })
}

fn add<T: Float>(y: &mut [T], x: &[T]) {
    vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y += x;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_equal_shapes_only() {
        let (mut y, x) = ([1.0f32, 2.0], [0.5f32, -1.0]);
        add_assign(TensorMut::from_slice(&mut y, &[2]).unwrap(), TensorRef::from_slice(&x, &[2]).unwrap())
            .unwrap();
        assert_eq!(y, [1.5, 1.0]);
        let x = TensorRef::from_slice(&x, &[1, 2]).unwrap();
        assert!(add_assign(TensorMut::from_slice(&mut y, &[2]).unwrap(), x).is_err());
    }
}
