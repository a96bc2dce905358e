//! Device memory that another process maps.

use cudarc::driver::{result, sys};

use super::view::{TensorMut, TensorRef};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, check_driver};
use crate::{DType, KernelError, Result, Shape};

/// Device memory that another process of this host can map, allocated by `cuMemAlloc` outside the pool.
#[derive(Debug)]
pub struct SharedBuffer {
    gpu: &'static Gpu,
    ptr: sys::CUdeviceptr,
    bytes: usize,
}

impl SharedBuffer {
    /// Allocates `bytes` zero bytes. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub fn zeroed(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        // SAFETY: the context is current.
        let ptr = match unsafe { result::malloc_sync(bytes.max(1)) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let in_use = gpu.memory_in_use().ok().map(Box::new);
                return Err(KernelError::OutOfMemory { device: gpu.device(), bytes, in_use });
            }
            other => check_driver(gpu.index(), "cuMemAlloc", other)?,
        };
        let buffer = SharedBuffer { gpu, ptr, bytes };
        // SAFETY: the memory belongs to this buffer and has at least that length.
        let set = unsafe { result::memset_d8_async(ptr, 0, bytes.max(1), gpu.compute().raw()) };
        check_driver(gpu.index(), "cuMemsetD8Async", set)?;
        gpu.compute().synchronize()?;
        Ok(buffer)
    }

    /// The device of the memory.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Address on the device.
    pub fn ptr(&self) -> sys::CUdeviceptr {
        self.ptr
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Views the start of the buffer as a tensor of this shape.
    ///
    /// # Errors
    /// [`KernelError::BadShape`]; [`KernelError::OutOfRange`] (in bytes) if the tensor is larger than the buffer.
    pub fn view(&self, dims: &[usize], dtype: DType) -> Result<TensorRef<'_>> {
        let shape = self.fitting(dims, dtype)?;
        // SAFETY: the elements lie within the buffer, which is borrowed as long as the view; freeing waits for the device.
        let slice = unsafe { CudaSlice::from_raw(self.gpu, self.ptr, shape.numel(), dtype) };
        Ok(TensorRef::from_cuda(slice, shape))
    }

    /// Same as [`SharedBuffer::view`], for writing.
    ///
    /// # Errors
    /// Same as [`SharedBuffer::view`].
    pub fn view_mut(&mut self, dims: &[usize], dtype: DType) -> Result<TensorMut<'_>> {
        let shape = self.fitting(dims, dtype)?;
        // SAFETY: as in `view`, and `&mut self` makes the access exclusive within this process; another one only reads its mapping,
        // at times that both have agreed on.
        let slice = unsafe { CudaSliceMut::from_raw(self.gpu, self.ptr, shape.numel(), dtype) };
        Ok(TensorMut::from_cuda(slice, shape))
    }

    /// Checks that the buffer holds a tensor of this shape.
    fn fitting(&self, dims: &[usize], dtype: DType) -> Result<Shape> {
        let shape = Shape::new(dims)?;
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        if bytes > self.bytes {
            return Err(KernelError::OutOfRange {
                op: "view (bytes)",
                start: 0,
                end: bytes,
                len: self.bytes,
            });
        }
        Ok(shape)
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated in `zeroed`, freed once; the call waits for the device.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}
