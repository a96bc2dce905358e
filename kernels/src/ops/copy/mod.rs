//! Copies elements as they are, also from one device to another.

use cudarc::driver::{result, sys};

use super::check;
use crate::cuda::{Gpu, check_driver, peer};
use crate::{CpuSliceMut, DType, Device, Result, TensorMut, TensorRef};

const OP: &str = "copy";

/// `to = from`.
///
/// - one shape and dtype, any two devices
/// - on one GPU and between two it is asynchronous, in the order of the compute streams; between host and GPU it waits until
///   it is done
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
    match to.into_cpu(OP)? {
        CpuSliceMut::F32(to) => to.copy_from_slice(from.as_slice(OP, "from")?),
        CpuSliceMut::F64(to) => to.copy_from_slice(from.as_slice(OP, "from")?),
        CpuSliceMut::I64(to) => to.copy_from_slice(from.as_slice(OP, "from")?),
        CpuSliceMut::BF16(to) => to.copy_from_slice(from.as_slice(OP, "from")?),
    }
    Ok(())
}

/// The bytes of a view of host memory.
fn bytes_of<'a>(view: TensorRef<'a>) -> Result<&'a [u8]> {
    debug_assert_eq!(view.device(), Device::Cpu);
    Ok(match view.dtype() {
        DType::F32 => bytemuck::cast_slice(view.as_slice::<f32>(OP, "from")?),
        DType::F64 => bytemuck::cast_slice(view.as_slice::<f64>(OP, "from")?),
        DType::I64 => bytemuck::cast_slice(view.as_slice::<i64>(OP, "from")?),
        DType::BF16 => bytemuck::cast_slice(view.as_slice::<half::bf16>(OP, "from")?),
    })
}

fn upload(gpu: &'static Gpu, from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    let (bytes, to) = (bytes_of(from)?, to.into_cuda()?);
    if bytes.is_empty() {
        return Ok(());
    }
    gpu.bind()?;
    // SAFETY: both sides hold that many bytes; the host's is borrowed until the copy is done.
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
    let to = match to.into_cpu(OP)? {
        CpuSliceMut::F32(to) => to.as_mut_ptr().cast(),
        CpuSliceMut::F64(to) => to.as_mut_ptr().cast(),
        CpuSliceMut::I64(to) => to.as_mut_ptr().cast(),
        CpuSliceMut::BF16(to) => to.as_mut_ptr().cast(),
    };
    // SAFETY: both sides hold that many bytes, by shape and dtype; the host's is borrowed until the copy is done.
    let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from.ptr(), from.len_bytes(), gpu.compute().raw()) };
    check_driver(gpu.index(), "cuMemcpyDtoHAsync", copied.result())?;
    gpu.compute().synchronize()
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{devices, tensor};
    use crate::{DType, KernelError, Tensor};

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

    #[test]
    fn nothing_is_cast() {
        let source = Tensor::zeros(&[2], DType::F32, devices()[0]).unwrap();
        let mut target = Tensor::zeros(&[2], DType::F64, devices()[0]).unwrap();
        let error = super::copy(source.view(), target.view_mut()).unwrap_err();
        assert!(matches!(error, KernelError::DTypeMismatch { .. }));
    }
}
