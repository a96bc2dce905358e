//! Exchange with other libraries by DLPack, the protocol of NumPy, PyTorch, JAX and CuPy (feature `dlpack`).
//!
//! [`Tensor::into_dlpack`] gives memory away, without a copy; [`Tensor::from_dlpack`] copies it. The crate `dlpark` has the structs of the
//! protocol, and with its feature `pyo3` the capsules of Python; `into_raw` and `from_raw` of its types pass pointers.
//!
//! ```
//! use ddp_kernels::{DType, Tensor};
//!
//! let lent = Tensor::arange(6, DType::F32, "cpu")?.into_shape(&[2, 3])?.into_dlpack()?;
//! assert_eq!(lent.validate().unwrap().shape(), [2, 3]);
//! // SAFETY: its memory is that of the tensor above.
//! let copy = unsafe { Tensor::from_dlpack(&lent) }?;
//! assert_eq!(copy.row(1)?.to_vec::<f32>()?, [3.0, 4.0, 5.0]);
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```
//!
//! Memory of GPUs is passed by its address, which the tests try on virtual GPUs only.
//!
//! Source: <https://dmlc.github.io/dlpack/latest/>.

use dlpark::allocation::dynamic::Allocation;
use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType, DLManagedTensorVersioned};
use dlpark::versioned::Dlpack;
use dlpark::{Managed, ManagedTensorBase};

use crate::cuda::{CudaSlice, Gpu};
use crate::{DType, Device, KernelError, Result, Shape, Tensor, TensorRef};

impl DType {
    fn dlpack(self) -> DLDataType {
        match self {
            DType::F32 => DLDataType::F32,
            DType::F64 => DLDataType::F64,
            DType::BF16 => DLDataType::BF16,
            DType::F16 => DLDataType::F16,
            DType::I64 => DLDataType::I64,
            DType::I32 => DLDataType::I32,
            DType::U8 => DLDataType::U8,
            DType::Bool => DLDataType::BOOL,
        }
    }
}

/// A tensor that another library frees.
struct Lent(Tensor);

impl Drop for Lent {
    fn drop(&mut self) {
        // The receiver's work on the device may still use the memory, which the next tensor gets. After an error there is no such work.
        let _ = self.0.device().synchronize();
    }
}

impl Tensor {
    /// Gives the memory away, without a copy unless it is shared with other tensors; the receiver may write it, and frees it. Waits for all
    /// work on the device, and so does freeing it.
    ///
    /// # Errors
    /// Same as [`Tensor::try_clone`] and [`Device::synchronize`].
    ///
    /// Source: `torch.utils.dlpack.to_dlpack`.
    pub fn into_dlpack(mut self) -> Result<Dlpack> {
        let (shape, dtype, device) = (self.shape(), self.dtype(), self.device());
        let (address, dl_device) = match device {
            Device::Cpu => {
                (self.view_mut().into_bytes("into_dlpack", "self")?.as_mut_ptr().cast(), DLDevice::CPU)
            }
            Device::Cuda(index) => {
                let address = self.view_mut().into_cuda()?.as_ref().ptr();
                (address as *mut std::ffi::c_void, DLDevice::cuda(index as i32))
            }
        };
        device.synchronize()?;
        let n = shape.dims().len();
        let strides = (0..n).map(|axis| shape.dims()[axis + 1..].iter().product::<usize>());
        let allocation = Allocation::<DLManagedTensorVersioned>::allocate(2 * n);
        let lent = allocation.and_then(|allocation| allocation.initialize(Box::new(Lent(self)), n));
        let mut lent = lent.expect("a tensor has at most four dimensions");
        for (slot, number) in lent.extra_mut().iter_mut().zip(shape.dims().iter().copied().chain(strides)) {
            *slot = number as i64;
        }
        let (dims, strides) = lent.extra_mut().split_at_mut(n);
        let (dims, strides) = (dims.as_mut_ptr(), strides.as_mut_ptr());
        lent.set_data(address).set_device(dl_device).set_dtype(dtype.dlpack());
        (lent.tensor_mut().shape, lent.tensor_mut().strides) = (dims, strides);
        // SAFETY: the tensor in the box owns the memory at `address` alone and lives until the deleter runs, as do the `2 n` numbers of
        // shape and strides; they describe that memory, which may be written.
        Ok(unsafe { lent.finish() })
    }

    /// Copies a tensor of another library, to the device that it is on.
    ///
    /// # Safety
    /// The memory that the tensor describes can be read, and on a GPU the work that writes it is complete.
    ///
    /// # Errors
    /// [`KernelError::Dlpack`] for a layout, dtype or device that tensors do not have; else as [`Tensor::zeros`].
    ///
    /// Source: `torch.from_dlpack`, which shares the memory.
    pub unsafe fn from_dlpack(lent: &Managed<impl ManagedTensorBase>) -> Result<Self> {
        let refused = |problem: String| KernelError::Dlpack { problem };
        let lent = lent.validate().map_err(|error| refused(error.to_string()))?;
        if !lent.is_compact().map_err(|error| refused(error.to_string()))? {
            return Err(refused(format!(
                "the strides {:?} are not those of contiguous rows",
                lent.strides().unwrap_or_default()
            )));
        }
        let DLDataType { code, bits, lanes } = lent.dtype();
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.dlpack().matches(lent.dtype()));
        let dtype = dtype.ok_or_else(|| {
            refused(format!("no tensor holds elements of type {}, {bits} bits, {lanes} lanes", code.0))
        })?;
        // Any byte but 0 is true there; here only 1 is.
        let stored = if dtype == DType::Bool { DType::U8 } else { dtype };
        let dims: Vec<usize> = lent.shape().iter().map(|&n| n as usize).collect();
        let shape = Shape::new(&dims)?;
        let DLDevice { device_type, device_id } = lent.device();
        match device_type {
            DLDeviceType::CUDA if shape.numel() == 0 => {
                let gpu = Gpu::get(u32::try_from(device_id).unwrap_or(u32::MAX))?;
                Tensor::empty(&dims, dtype, gpu.device())
            }
            _ if shape.numel() == 0 => Tensor::empty(&dims, dtype, Device::Cpu),
            DLDeviceType::CPU => {
                // SAFETY: the caller's guarantee.
                let bytes = unsafe { lent.cpu_bytes() }.map_err(|error| refused(error.to_string()))?;
                TensorRef::from_bytes(bytes, stored, shape).to_dtype(dtype)
            }
            DLDeviceType::CUDA => {
                let gpu = Gpu::get(u32::try_from(device_id).unwrap_or(u32::MAX))?;
                // SAFETY: the caller's guarantee.
                let address =
                    unsafe { lent.offset_bytes_ptr() }.map_err(|error| refused(error.to_string()))?;
                // SAFETY: as above; `validate` has compared shape and dtype, and the copy is complete before this returns.
                let elements = unsafe { CudaSlice::from_raw(gpu, address as u64, shape.numel(), stored) };
                let copy = TensorRef::from_cuda(elements, shape).to_dtype(dtype)?;
                gpu.synchronize()?;
                Ok(copy)
            }
            _ => Err(refused(format!("no tensor lives on a device of type {}", device_type.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::devices;
    use crate::tensor;

    #[test]
    fn tensors_of_every_dtype_go_there_and_back() {
        for device in devices() {
            for dtype in DType::ALL {
                let x = Tensor::arange(6, dtype, device).unwrap().into_shape(&[1, 2, 3]).unwrap();
                let lent = x.clone().into_dlpack().unwrap();
                // SAFETY: the memory of the tensor that it was made of.
                let back = unsafe { Tensor::from_dlpack(&lent) }.unwrap();
                assert_eq!((back.dims(), back.dtype(), back.device()), (x.dims(), dtype, device));
                assert!(back.eq(&x).unwrap().all().unwrap().item::<bool>().unwrap(), "{dtype} on {device}");
            }
            let scalar = tensor![7.].sum(None).unwrap().to(device).unwrap().into_dlpack().unwrap();
            // SAFETY: as above.
            let back = unsafe { Tensor::from_dlpack(&scalar) }.unwrap();
            assert_eq!((back.dims(), back.item::<f32>().unwrap()), (&[][..], 7.0));
        }
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        for device in devices() {
            let bytes = tensor![0, 1, 2, 255].to_dtype(DType::U8).unwrap().to(device).unwrap();
            let lent = bytes.into_dlpack().unwrap();
            // SAFETY: the pointer is that of `lent`, which nobody else uses, and the field is of plain numbers.
            unsafe { &mut *lent.as_ptr() }.dl_tensor.dtype = DType::Bool.dlpack();
            // SAFETY: the memory is that of the tensor, of as many bytes.
            let bools = unsafe { Tensor::from_dlpack(&lent) }.unwrap();
            assert_eq!((bools.dtype(), bools.sum(None).unwrap().item::<i64>().unwrap()), (DType::Bool, 3));
            let bools = bools.to("cpu").unwrap();
            assert_eq!(bools.view().as_bytes("test", "x").unwrap(), [0, 1, 1, 1], "{device}");
        }
    }

    #[test]
    fn memory_is_given_away_without_a_copy_and_freed_by_the_receiver() {
        const N: usize = 1 << 26;
        let x = Tensor::zeros(&[N], DType::U8, "cpu").unwrap();
        let address = x.view().as_bytes("test", "x").unwrap().as_ptr();
        let lent = x.into_dlpack().unwrap();
        assert_eq!(lent.validate().unwrap().data_ptr().cast(), address);
        assert!(!lent.flags().contains(dlpark::DlpackFlags::READ_ONLY));
        let before = crate::memory::allocated(Device::Cpu).unwrap();
        drop(lent);
        // Other tests allocate at the same time, but not as much.
        assert!(crate::memory::allocated(Device::Cpu).unwrap() < before - N / 2);
        // A receiver that writes is not seen by another tensor.
        let x = tensor![1., 2.];
        let lent = x.clone().into_dlpack().unwrap();
        // SAFETY: nobody else uses the memory that was copied for the receiver.
        unsafe { lent.validate().unwrap().data_ptr().cast_mut().cast::<f32>().write(9.0) };
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn layouts_that_no_tensor_has_are_refused_with_the_call_that_mends_them() {
        let refused = |change: fn(&mut dlpark::ffi::DLTensor)| {
            let lent = tensor![[1., 2.], [3., 4.]].into_dlpack().unwrap();
            // SAFETY: the pointer is that of `lent`, which nobody else uses, and the fields are plain numbers.
            change(&mut unsafe { &mut *lent.as_ptr() }.dl_tensor);
            // SAFETY: the memory is that of the tensor, whatever was changed makes it a smaller part or is refused before it is read.
            crate::hint::with_hint(&unsafe { Tensor::from_dlpack(&lent) }.unwrap_err())
        };
        // SAFETY: two strides were allocated.
        let message = refused(|x| unsafe { std::slice::from_raw_parts_mut(x.strides, 2) }.swap(0, 1));
        assert!(message.contains("[1, 2]") && message.contains("x.contiguous()"), "{message}");
        let message = refused(|x| x.dtype = DLDataType::C64);
        assert!(message.contains("type 5, 64 bits"), "{message}");
        let message = refused(|x| x.device = DLDevice::metal(0));
        assert!(message.contains("device of type 8"), "{message}");
    }
}
