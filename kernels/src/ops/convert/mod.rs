//! Conversion between any two dtypes.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use super::{cast, copy};

use crate::base::check;
use crate::{Result, TensorMut, TensorRef};

/// `to = from`, converted.
///
/// - `from`, `to`: one shape and device, any dtypes
/// - between floats as [`cast()`]; floats to integers truncated toward zero, out of range to the nearest integer of the dtype, NaN
///   to 0; integers to integers wrap; integers to floats by way of f64; to bool: whether the value is not 0
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::Shape`].
///
/// Source: `torch.Tensor.to` with a dtype, which leaves floats out of range undefined.
pub fn convert(from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    const OP: &str = "to_dtype";
    if from.dtype() == to.dtype() {
        return copy(from, to);
    }
    if from.dtype().is_float() && to.dtype().is_float() {
        return cast(from, to);
    }
    check::same_device(OP, &[from.operand("from"), to.operand("to")])?;
    check::shape(OP, to.operand("to"), from.shape())?;
    match from.gpu() {
        Some(gpu) => cuda::convert(gpu, from.cuda()?, &mut to.into_cuda()?),
        None => cpu::convert(OP, from, to),
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::devices;
    use crate::{DType, Tensor};

    #[test]
    fn each_pair_of_dtypes_keeps_what_both_hold() {
        for device in devices() {
            for from in DType::ALL {
                for to in DType::ALL {
                    let x = Tensor::arange(7, from, device).unwrap();
                    let got = x.to_dtype(to).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                    let is_bool = [from, to].contains(&DType::Bool);
                    let want: Vec<f64> =
                        (0..7).map(|i| f64::from(if is_bool { i.min(1) } else { i })).collect();
                    assert_eq!(got, want, "{from} to {to} on {device}");
                }
            }
        }
    }

    #[test]
    fn values_out_of_range_saturate_or_wrap() {
        for device in devices() {
            let x = Tensor::from_slice(&[1e30f32, -1e30, f32::NAN, -2.9, 300.5, 0.0], &[6], device).unwrap();
            let to = |dtype| x.to_dtype(dtype).unwrap();
            assert_eq!(to(DType::I64).to_vec::<i64>().unwrap(), [i64::MAX, i64::MIN, 0, -2, 300, 0]);
            assert_eq!(to(DType::I32).to_vec::<i32>().unwrap(), [i32::MAX, i32::MIN, 0, -2, 300, 0]);
            assert_eq!(to(DType::U8).to_vec::<u8>().unwrap(), [255, 0, 0, 0, 255, 0]);
            assert_eq!(to(DType::Bool).to_vec::<bool>().unwrap(), [true, true, true, true, true, false]);
            let wide = Tensor::from_slice(&[-1i64, 256 + 7, 1 << 40, i64::MAX], &[4], device).unwrap();
            assert_eq!(wide.to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), [255, 7, 0, 255]);
            assert_eq!(wide.to_dtype(DType::I32).unwrap().to_vec::<i32>().unwrap(), [-1, 263, 0, -1]);
        }
    }
}
