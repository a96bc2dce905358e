//! Checks shared by all operations, with one wording.

use super::dtype::DType;
use super::error::{KernelError, Operand, Result};
use super::shape::Shape;

/// The float dtypes that operations compute on.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::BF16, DType::F16];
/// The names of [`FLOATS`] in error messages.
pub(crate) const FLOATS_NAMES: &str = "f32, f64, bf16 and f16";

/// Checks that all operands are on one device and have one dtype.
#[inline]
pub(crate) fn same_kind(op: &'static str, operands: &[Operand]) -> Result<()> {
    same_device(op, operands)?;
    same_dtype(op, operands)
}

/// Checks that all operands have one dtype.
#[inline]
pub(crate) fn same_dtype(op: &'static str, operands: &[Operand]) -> Result<()> {
    let a = operands[0];
    match operands.iter().find(|b| b.dtype != a.dtype) {
        Some(&b) => Err(KernelError::DTypeMismatch { op, a: a.into(), b: b.into() }),
        None => Ok(()),
    }
}

/// Checks that the dtype of `operand` is in `allowed`, which messages call `takes`.
pub(crate) fn dtype(
    op: &'static str,
    operand: Operand,
    allowed: &[DType],
    takes: &'static str,
) -> Result<()> {
    if allowed.contains(&operand.dtype) {
        Ok(())
    } else {
        Err(KernelError::DTypeUnsupported { op, operand: operand.into(), takes })
    }
}

/// Checks that all operands are on one device.
#[inline]
pub(crate) fn same_device(op: &'static str, operands: &[Operand]) -> Result<()> {
    let a = operands[0];
    match operands.iter().find(|b| b.device != a.device) {
        Some(&b) => Err(KernelError::DeviceMismatch { op, a: a.into(), b: b.into() }),
        None => Ok(()),
    }
}

/// Checks the shape of `operand`.
#[inline]
pub(crate) fn shape(op: &'static str, operand: Operand, expected: Shape) -> Result<()> {
    if operand.shape == expected {
        Ok(())
    } else {
        Err(KernelError::Shape { op, operand: operand.into(), expected })
    }
}

/// Checks that `operand` is a matrix and returns its rows and columns.
#[inline]
pub(crate) fn matrix(op: &'static str, operand: Operand) -> Result<(usize, usize)> {
    let (rows, cols) = operand.shape.rows_cols();
    shape(op, operand, Shape::matrix(rows, cols))?;
    Ok((rows, cols))
}

/// Checks that row weights are `[n_rows]` f32 on the device of `beside`.
pub(crate) fn row_weights(
    op: &'static str,
    weights: Option<Operand>,
    n_rows: usize,
    beside: Operand,
) -> Result<()> {
    let Some(weights) = weights else { return Ok(()) };
    same_device(op, &[beside, weights])?;
    dtype(op, weights, &[DType::F32], "f32")?;
    shape(op, weights, Shape::vector(n_rows))
}

/// Checks that the output is on the device of the inputs and of their dtype, or f32 for bf16 and f16.
pub(crate) fn output_kind(op: &'static str, input: Operand, output: Operand) -> Result<()> {
    same_device(op, &[input, output])?;
    let is_wider = narrows(output.dtype, input.dtype);
    if is_wider { Ok(()) } else { same_dtype(op, &[input, output]) }
}

/// Checks that a gradient is on the device of its operand and of its dtype; the gradient of f32 can be bf16 or f16, the format of
/// later matmuls.
pub(crate) fn gradient_kind(op: &'static str, x: Operand, d_x: Operand) -> Result<()> {
    same_device(op, &[x, d_x])?;
    let is_narrower = narrows(x.dtype, d_x.dtype);
    if is_narrower { Ok(()) } else { same_dtype(op, &[x, d_x]) }
}

/// Whether this is a 16-bit float format, whose sums and statistics are in f32.
pub(crate) fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// Whether an operation may narrow `from` to `to`: f32 to a 16-bit format.
pub(crate) fn narrows(from: DType, to: DType) -> bool {
    from == DType::F32 && is_short(to)
}

/// Runs `$body` with `$t` as the float type of `$operand`.
macro_rules! float_dispatch {
    ($op:expr, $operand:expr, $t:ident => $body:expr) => {
        match $operand.dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => Err($crate::KernelError::DTypeUnsupported {
                op: $op,
                operand: $operand.into(),
                takes: "f32 and f64",
            }),
        }
    };
}
pub(crate) use float_dispatch;

/// Runs `$body` with `$t` as the float type of `$operand`, bf16 and f16 included.
macro_rules! stored_dispatch {
    ($op:expr, $operand:expr, $t:ident => $body:expr) => {
        match $operand.dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $t = half::f16;
                $body
            }
            _ => Err($crate::KernelError::DTypeUnsupported {
                op: $op,
                operand: $operand.into(),
                takes: $crate::base::check::FLOATS_NAMES,
            }),
        }
    };
}
pub(crate) use stored_dispatch;

/// Runs `$body` with `$t` as the 16-bit float type of `$operand`, or, in the form `f32:`, also f32.
macro_rules! short_dispatch {
    (f32: $op:expr, $operand:expr, $t:ident => $body:expr) => {
        match $operand.dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            _ => $crate::base::check::short_dispatch!($op, $operand, $t => $body),
        }
    };
    ($op:expr, $operand:expr, $t:ident => $body:expr) => {
        match $operand.dtype {
            $crate::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $t = half::f16;
                $body
            }
            _ => {
                return Err($crate::KernelError::DTypeUnsupported {
                    op: $op,
                    operand: $operand.into(),
                    takes: "bf16 and f16",
                })
            }
        }
    };
}
pub(crate) use short_dispatch;

/// Runs `$body` with `$t` as the float type of the operand `$x` and `$d` as the float type of its gradient `$d_x`, a pair that
/// [`gradient_kind`] allows.
macro_rules! gradient_dispatch {
    ($op:expr, $x:expr, $d_x:expr, $t:ident, $d:ident => $body:expr) => {
        match ($x.dtype, $d_x.dtype) {
            ($crate::DType::F32, $crate::DType::BF16) => {
                type $t = f32;
                type $d = half::bf16;
                $body
            }
            ($crate::DType::F32, $crate::DType::F16) => {
                type $t = f32;
                type $d = half::f16;
                $body
            }
            _ => $crate::base::check::stored_dispatch!($op, $x, $t => {
                type $d = $t;
                $body
            }),
        }
    };
}
pub(crate) use gradient_dispatch;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::device::Device;

    fn operand(name: &'static str, device: Device, dtype: DType) -> Operand {
        Operand { name, shape: Shape::matrix(2, 3), dtype, device }
    }

    #[test]
    fn another_device_is_named_with_the_way_out() {
        let a = operand("x", Device::Cuda(0), DType::F32);
        let b = operand("weight", Device::Cpu, DType::F32);
        let message = crate::hint::with_hint(&same_kind("linear_forward", &[a, b]).unwrap_err());
        assert_eq!(
            message,
            "linear_forward: x [2, 3] f32 on cuda:0 and weight [2, 3] f32 on cpu are on different devices; nothing \
             is moved implicitly\nhint: move one of them first: weight.to(\"cuda:0\")"
        );
        assert!(same_kind("op", &[a, operand("b", Device::Cuda(1), DType::F32)]).is_err());
        assert!(same_kind("op", &[a, operand("b", Device::Cuda(0), DType::F32)]).is_ok());
    }

    #[test]
    fn another_dtype_or_shape_is_named() {
        let a = operand("a", Device::Cpu, DType::F32);
        let message =
            same_kind("addmm", &[a, operand("b", Device::Cpu, DType::F64)]).unwrap_err().to_string();
        assert!(
            message.contains("a [2, 3] f32 on cpu") && message.contains("b [2, 3] f64 on cpu"),
            "{message}"
        );
        let message = shape("addmm", a, Shape::matrix(3, 2)).unwrap_err().to_string();
        assert_eq!(message, "addmm: a [2, 3] f32 on cpu should be [3, 2]");
    }
}
