//! Page-locked host memory.

use cudarc::driver::{result, sys};

use super::call::check_driver;
use super::context::Context;
use crate::{Device, KernelError, Result};

/// Page-locked host memory, which the device reads and writes directly: copies from and to it are asynchronous.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Context,
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: the memory has one owner.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates `bytes` zero bytes.
    pub(crate) fn zeroed(context: Context, bytes: usize) -> Result<Self> {
        // Not write-combined: the host gathers small pieces into it, and reads results from it.
        Self::with_flags(context, bytes, 0)
    }

    /// Allocates `bytes` zero bytes that kernels access too, and returns their address on the device.
    pub(crate) fn mapped(context: Context, bytes: usize) -> Result<(Self, sys::CUdeviceptr)> {
        let host = Self::with_flags(context, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP)?;
        let mut ptr = 0;
        // SAFETY: the memory is page-locked and mapped; the context is current.
        let got = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut ptr, host.ptr.cast(), 0) };
        check_driver(context.index(), "cuMemHostGetDevicePointer", got.result())?;
        Ok((host, ptr))
    }

    fn with_flags(context: Context, bytes: usize, flags: u32) -> Result<Self> {
        context.bind()?;
        // SAFETY: the context is current.
        let ptr = unsafe { result::malloc_host(bytes.max(1), flags) };
        let ptr = match ptr {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                return Err(KernelError::OutOfMemory { device: Device::Cpu, bytes, in_use: None });
            }
            other => check_driver(context.index(), "cuMemHostAlloc", other)?.cast::<u8>(),
        };
        // SAFETY: the memory belongs to `self` and has that length.
        unsafe { std::ptr::write_bytes(ptr, 0, bytes.max(1)) };
        Ok(Pinned { context, ptr, bytes })
    }

    pub(crate) fn as_slice<T: bytemuck::Pod>(&self) -> &[T] {
        // SAFETY: the driver aligns to a page; the memory holds zeroed plain data and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.bytes / size_of::<T>()) }
    }

    pub(crate) fn as_mut_slice<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.bytes / size_of::<T>()) }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `zeroed`, freed once; users of the memory wait for their copies first.
            let _ = unsafe { result::free_host(self.ptr.cast()) };
        }
    }
}
