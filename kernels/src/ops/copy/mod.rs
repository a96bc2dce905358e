//! Copies elements unchanged, also between devices.

use cudarc::driver::{result, sys};

use crate::base::check;
use crate::cpu::copy::gather;
use crate::cuda::{Gpu, check_driver, peer};
use crate::{Result, TensorMut, TensorRef};

const OP: &str = "copy";

/// `to = from`.
///
/// - one shape and dtype, any two devices
/// - on one GPU and between two: asynchronous, ordered on the compute streams; between host and GPU: synchronous; within host
///   memory: a long copy uses all threads and streaming stores
///
/// # Errors
/// [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`], [`crate::KernelError::Cuda`].
///
/// Source: `torch.Tensor.copy_` between tensors of one dtype.
pub fn copy(from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    check::same_dtype(OP, &[from.operand("from"), to.operand("to")])?;
    check::shape(OP, to.operand("to"), from.shape())?;
    match (from.gpu(), to.gpu()) {
        (Some(_), Some(_)) => peer::copy(from.cuda()?, to.into_cuda()?).map(|_| ()),
        (None, Some(gpu)) => upload(gpu, from, to),
        (Some(gpu), None) => download(gpu, from, to),
        (None, None) => within_host(from, to),
    }
}

fn within_host(from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    gather(to.into_bytes(OP, "to")?, &[from.as_bytes(OP, "from")?]);
    Ok(())
}

fn upload(gpu: &'static Gpu, from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    let (bytes, to) = (from.as_bytes(OP, "from")?, to.into_cuda()?);
    if bytes.is_empty() {
        return Ok(());
    }
    gpu.bind()?;
    // SAFETY: both sides hold that many bytes; host memory is borrowed until the copy is done.
    let copied = unsafe { result::memcpy_htod_async(to.ptr(), bytes, gpu.compute().raw()) };
    check_driver(gpu.index(), "cuMemcpyHtoDAsync", copied)?;
    gpu.compute().synchronize()
}

fn download(gpu: &'static Gpu, from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    let from = from.cuda()?;
    if from.is_empty() {
        return Ok(());
    }
    gpu.bind()?;
    let to = to.into_bytes(OP, "to")?.as_mut_ptr().cast();
    // SAFETY: both sides hold that many bytes, by shape and dtype; host memory is borrowed until the copy is done.
    let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from.ptr(), from.len_bytes(), gpu.compute().raw()) };
    check_driver(gpu.index(), "cuMemcpyDtoHAsync", copied.result())?;
    gpu.compute().synchronize()
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{devices, tensor};
    use crate::{DType, Element, KernelError, Tensor};

    #[test]
    fn copies_between_all_devices_that_are_there() {
        let values: Vec<f32> = (0..1000).map(|i| i as f32 * 0.5).collect();
        let all = devices();
        for &from in &all {
            for &to in &all {
                let source = tensor(&values, &[10, 100], from);
                let mut target = Tensor::zeros(&[3, 100], DType::F32, to).unwrap();
                super::copy(source.view().rows(4, 7).unwrap(), target.view_mut()).unwrap();
                assert_eq!(target.to_vec::<f32>().unwrap(), values[400..700], "{from} to {to}");
                assert_eq!(source.to(to).unwrap().to_vec::<f32>().unwrap(), values, "{from} to {to}");
            }
        }
    }

    /// Elements of each type, also at odd addresses.
    #[test]
    fn all_types_are_copied_as_they_are() {
        fn check<T: Element>() {
            let values: Vec<T> = (0..77).map(|i| T::from_f64(f64::from(i))).collect();
            for from in devices() {
                for to in devices() {
                    let mut target = Tensor::zeros(&[9, 11], T::DTYPE, to).unwrap();
                    let source = tensor(&values, &[7, 11], from);
                    super::copy(source.view(), target.view_mut().rows(1, 8).unwrap()).unwrap();
                    let got = target.to_vec::<T>().unwrap();
                    assert!(got[11..88] == values && got[..11] == [T::ZERO; 11], "{} {from} {to}", T::DTYPE);
                    assert_eq!(source.to(to).unwrap().to_vec::<T>().unwrap(), values);
                }
            }
        }
        check::<f32>();
        check::<f64>();
        check::<i64>();
        check::<half::bf16>();
        check::<u8>();
        check::<half::f16>();
    }

    #[test]
    fn nothing_is_cast() {
        let source = Tensor::zeros(&[2], DType::F32, devices()[0]).unwrap();
        let mut target = Tensor::zeros(&[2], DType::F64, devices()[0]).unwrap();
        let error = super::copy(source.view(), target.view_mut()).unwrap_err();
        assert!(matches!(error, KernelError::DTypeMismatch { .. }));
    }
}
