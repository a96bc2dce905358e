//! Elementwise addition, for residual connections.

use crate::base::check;
use crate::cpu::Stored;
use crate::cpu::simd::vectorize;
use crate::cuda::launch::{Launch, Source, float_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{Result, TensorMut, TensorRef};

/// `y += x`.
///
/// - `x`, `y`: one shape and float dtype; bf16 and f16 are added in f32 and rounded
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
pub fn add_assign(y: TensorMut<'_>, x: TensorRef<'_>) -> Result<()> {
    const OP: &str = "add_assign";
    let (x_op, y_op) = (x.operand("x"), y.operand("y"));
    check::same_kind(OP, &[y_op, x_op])?;
    check::shape(OP, x_op, y.shape())?;
    if let Some(gpu) = y.gpu() {
        check::dtype(OP, y_op, check::FLOATS, check::FLOATS_NAMES)?;
        return add_cuda(gpu, &mut y.into_cuda()?, x.cuda()?);
    }
    check::stored_dispatch!(OP, y_op, T => {
        add_cpu::<T>(y.into_slice(OP, "y")?, x.as_slice(OP, "x")?);
        Ok(())
    })
}

/// One pass, vectorized.
fn add_cpu<T: Stored>(y: &mut [T], x: &[T]) {
    vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = T::store(y.load() + x.load());
            }
        },
    );
}

pub(crate) static SOURCE: Source = Source::new("add", include_str!("kernel.cu")).after_others();

/// Elementwise, 16 bytes per access.
///
/// `y += x`; equal lengths and float dtypes, on this device.
fn add_cuda(gpu: &'static Gpu, y: &mut CudaSliceMut<'_>, x: CudaSlice<'_>) -> Result<()> {
    let n = y.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = float_kernel!("add_assign"; y.dtype());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 16 / y.dtype().size_bytes());
    // SAFETY: add_assign(const T* x, T* y, size_t n); both hold n elements.
    unsafe { launch.read(x).write(y).arg(n).run() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{devices, random, rounded, tensor};
    use crate::{DType, Device, Element, KernelError, Tensor};

    /// `y + x` from element `start` on, since a GPU's wide accesses need addresses that are multiples of 16.
    fn sum<T: Element>(y: &[T], x: &[T], start: usize, device: Device) -> Vec<T> {
        let (mut y, x) = (tensor(y, &[y.len()], device), tensor(x, &[x.len()], device));
        let n = y.numel();
        add_assign(y.view_mut().range(start, n).unwrap(), x.view().range(start, n).unwrap()).unwrap();
        y.to_vec().unwrap()
    }

    #[test]
    fn adds_equal_shapes_only() {
        for device in devices() {
            let (mut y, x) = (tensor(&[1.0f32, 2.0], &[2], device), tensor(&[0.5f32, -1.0], &[2], device));
            add_assign(y.view_mut(), x.view()).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [1.5, 1.0]);
            assert!(add_assign(y.view_mut(), x.view().reshape(&[1, 2]).unwrap()).is_err());
        }
    }

    /// Integers are rejected on every device.
    #[test]
    fn whole_numbers_are_refused() {
        for device in devices() {
            for dtype in [DType::U8, DType::I64] {
                let (mut y, x) =
                    (Tensor::ones(&[4], dtype, device).unwrap(), Tensor::ones(&[4], dtype, device).unwrap());
                let error = add_assign(y.view_mut(), x.view()).unwrap_err();
                assert!(matches!(error, KernelError::DTypeUnsupported { .. }), "{error}");
                assert!(error.to_string().contains(&dtype.to_string()), "{error}");
            }
        }
    }

    /// One rounding of one sum: the devices have to agree to the bit.
    #[test]
    fn every_device_and_alignment_gives_the_same_bits() {
        fn check<T: Element>(want: impl Fn(T, T) -> T) {
            let (y, x) = (random::<T>(10_007, 1), random::<T>(10_007, 2));
            for device in devices() {
                for start in [0, 3] {
                    let want: Vec<T> =
                        (0..y.len()).map(|i| if i < start { y[i] } else { want(y[i], x[i]) }).collect();
                    assert!(sum(&y, &x, start, device) == want, "{device} from {start}");
                }
            }
        }
        check::<f32>(|y, x| y + x);
        check::<f64>(|y, x| y + x);
        check::<half::bf16>(|y, x| rounded::<f32, half::bf16>(&[y.to_f32() + x.to_f32()])[0]);
        check::<half::f16>(|y, x| rounded::<f32, half::f16>(&[y.to_f32() + x.to_f32()])[0]);
    }
}
