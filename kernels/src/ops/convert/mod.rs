//! Conversion between any two dtypes.

use half::{bf16, f16};

use super::{cast, copy};
use crate::base::check;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Element, Result, TensorMut, TensorRef};

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
#[doc(hidden)]
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
        Some(gpu) => convert_cuda(gpu, from.cuda()?, &mut to.into_cuda()?),
        None => convert_cpu(OP, from, to),
    }
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Through f64 or i64, split over the threads.
///
/// `to = from`; at most one of them of a float dtype.
fn convert_cpu(op: &'static str, from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    macro_rules! integers {
        ($t:ty) => {
            from_integers(op, from.as_slice::<$t>(op, "from")?, to)
        };
    }
    macro_rules! floats {
        ($t:ty) => {
            from_floats(op, from.as_slice::<$t>(op, "from")?, to)
        };
    }
    match from.dtype() {
        DType::F32 => floats!(f32),
        DType::F64 => floats!(f64),
        DType::BF16 => floats!(bf16),
        DType::F16 => floats!(f16),
        DType::I64 => integers!(i64),
        DType::I32 => integers!(i32),
        DType::U8 => integers!(u8),
        DType::Bool => from_integers(op, from.as_bytes(op, "from")?, to),
    }
}

fn from_floats<A: Element>(op: &'static str, from: &[A], to: TensorMut<'_>) -> Result<()> {
    match to.dtype() {
        DType::I64 => each(from, to.into_slice::<i64>(op, "to")?, |x| x.to_f64() as i64),
        DType::I32 => each(from, to.into_slice::<i32>(op, "to")?, |x| x.to_f64() as i32),
        DType::U8 => each(from, to.into_slice::<u8>(op, "to")?, |x| x.to_f64() as u8),
        // Floats are the business of `cast`.
        _ => each(from, to.into_bytes(op, "to")?, |x| u8::from(x.to_f64() != 0.0)),
    }
    Ok(())
}

fn from_integers<A: Element + Into<i64>>(op: &'static str, from: &[A], to: TensorMut<'_>) -> Result<()> {
    match to.dtype() {
        DType::F32 => each(from, to.into_slice::<f32>(op, "to")?, |x| x.to_f64() as f32),
        DType::F64 => each(from, to.into_slice::<f64>(op, "to")?, |x| x.to_f64()),
        DType::BF16 => {
            each(from, to.into_slice::<bf16>(op, "to")?, |x| <bf16 as Element>::from_f64(x.to_f64()))
        }
        DType::F16 => each(from, to.into_slice::<f16>(op, "to")?, |x| <f16 as Element>::from_f64(x.to_f64())),
        DType::I64 => each(from, to.into_slice::<i64>(op, "to")?, |x| x.into()),
        DType::I32 => each(from, to.into_slice::<i32>(op, "to")?, |x| x.into() as i32),
        DType::U8 => each(from, to.into_slice::<u8>(op, "to")?, |x| x.into() as u8),
        DType::Bool => each(from, to.into_bytes(op, "to")?, |x| u8::from(x.into() != 0)),
    }
    Ok(())
}

fn each<A: Element, B: Element>(from: &[A], to: &mut [B], f: impl Fn(A) -> B + Sync) {
    let to = SharedMut::new(to);
    for_parts(from.len(), MIN_PART, 64, |part| {
        // SAFETY: the part lies within `to`, as long as `from`, and is this thread's alone.
        let to = unsafe { to.slice(part.clone()) };
        for (to, &from) in to.iter_mut().zip(&from[part]) {
            *to = f(from);
        }
    });
}

pub(crate) static SOURCE: Source = Source::new("convert", include_str!("kernel.cu"));

/// One kernel per dtype of the result.
///
/// `to = from` on this device; equal lengths, at most one of them of a float dtype.
fn convert_cuda(gpu: &'static Gpu, from: CudaSlice<'_>, to: &mut CudaSliceMut<'_>) -> Result<()> {
    let n = to.len();
    if n == 0 {
        return Ok(());
    }
    let kind = match from.dtype() {
        DType::F32 => 0,
        DType::F64 => 1,
        DType::BF16 => 2,
        DType::F16 => 3,
        DType::I64 => 4,
        DType::I32 => 5,
        DType::U8 => 6,
        DType::Bool => 7,
    };
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("convert", to.dtype()))?.for_elements(n, 4);
    // SAFETY: convert(int kind, const void* from, T* to, size_t n); both hold n elements, `from` of the dtype `kind`.
    unsafe { launch.arg(kind).read(from).write(to).arg(n).run() }
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
