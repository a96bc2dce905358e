//! Copies elements unchanged, also between devices, and concatenates tensors.

use cudarc::driver::{result, sys};

use crate::base::check;
use crate::cpu::copy::gather;
use crate::cuda::{Gpu, check_driver, peer};
use crate::{KernelError, Result, TensorMut, TensorRef};

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

const CAT_OP: &str = "cat";

/// Writes the elements of `parts`, each in row-major order, to `to`, concatenated.
///
/// - one dtype, any devices; `to` has any shape with as many elements
/// - within host memory: one copy by all threads, with streaming stores if it is long; else as [`copy()`], part by part
///
/// # Errors
/// [`KernelError::DTypeMismatch`]; [`KernelError::ElementCount`] if `to` has a different number of elements;
/// [`KernelError::Cuda`].
///
/// Source: `torch.cat` of flattened tensors, with `out`.
#[doc(hidden)]
pub fn cat(parts: &[TensorRef<'_>], to: TensorMut<'_>) -> Result<()> {
    for part in parts {
        check::same_dtype(CAT_OP, &[to.operand("to"), part.operand("part")])?;
    }
    let n_elements = parts.iter().map(TensorRef::numel).sum();
    if n_elements != to.numel() {
        return Err(KernelError::ElementCount { op: CAT_OP, got: n_elements, shape: to.shape() });
    }
    if to.gpu().is_none() && parts.iter().all(|part| part.gpu().is_none()) {
        let parts: Vec<&[u8]> =
            parts.iter().map(|part| part.as_bytes(CAT_OP, "part")).collect::<Result<_>>()?;
        gather(to.into_bytes(CAT_OP, "to")?, &parts);
        return Ok(());
    }
    let (mut to, mut start) = (to.reshape(&[n_elements])?, 0);
    for part in parts {
        let end = start + part.numel();
        copy(part.reshape(&[part.numel()])?, to.reborrow().range(start, end)?)?;
        start = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{devices, tensor};
    use crate::{DType, Element, KernelError, Tensor, TensorRef};

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

    #[test]
    fn parts_of_any_device_follow_each_other() {
        let values: Vec<f32> = (0..60).map(|i| i as f32).collect();
        for from in devices() {
            for to in devices() {
                let source = tensor(&values, &[6, 10], from);
                let rows = |start, end| source.view().rows(start, end).unwrap();
                let host = TensorRef::from_slice(&[0.5f32, 0.25], &[2]).unwrap();
                let mut target = Tensor::ones(&[4, 8], DType::F32, to).unwrap();
                super::cat(&[rows(4, 5), rows(1, 1), host, rows(1, 3)], target.view_mut()).unwrap();
                let want: Vec<f32> = [&values[40..50], &[0.5, 0.25], &values[10..30]].concat();
                assert_eq!(target.to_vec::<f32>().unwrap(), want, "{from} to {to}");
                super::cat(&[], Tensor::zeros(&[0], DType::F32, to).unwrap().view_mut()).unwrap();
            }
        }
    }

    #[test]
    fn another_number_or_type_of_elements_is_refused() {
        for device in devices() {
            let part = Tensor::zeros(&[2], DType::F32, device).unwrap();
            let refused = |n: usize, dtype: DType| {
                let mut to = Tensor::zeros(&[n], dtype, device).unwrap();
                super::cat(&[part.view(), part.view()], to.view_mut()).unwrap_err()
            };
            assert!(matches!(refused(3, DType::F32), KernelError::ElementCount { got: 4, .. }));
            assert!(matches!(refused(5, DType::F32), KernelError::ElementCount { got: 4, .. }));
            assert!(matches!(refused(4, DType::F64), KernelError::DTypeMismatch { .. }));
        }
    }
}
