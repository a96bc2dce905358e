//! Borrowed elements in device memory.

use std::marker::PhantomData;

use cudarc::driver::sys::CUdeviceptr;

use super::gpu::Gpu;
use crate::DType;

/// Elements in device memory, shared.
#[derive(Debug, Clone, Copy)]
pub struct CudaSlice<'a> {
    gpu: &'static Gpu,
    ptr: CUdeviceptr,
    len: usize,
    dtype: DType,
    borrowed: PhantomData<&'a ()>,
}

/// Elements in device memory, exclusive.
#[derive(Debug)]
pub struct CudaSliceMut<'a> {
    shared: CudaSlice<'a>,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a> CudaSlice<'a> {
    /// # Safety
    /// `ptr` points to `len` elements of `dtype` on `gpu`, which stay valid for `'a`.
    pub unsafe fn from_raw(gpu: &'static Gpu, ptr: CUdeviceptr, len: usize, dtype: DType) -> Self {
        CudaSlice { gpu, ptr, len, dtype, borrowed: PhantomData }
    }

    /// The device.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Address of the first element.
    pub fn ptr(&self) -> CUdeviceptr {
        self.ptr
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of all elements.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len * self.dtype.size_bytes()
    }

    /// Elements `start..end`, a range that the caller has checked.
    pub(crate) fn range(self, start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= self.len);
        CudaSlice { ptr: self.ptr + (start * self.dtype.size_bytes()) as u64, len: end - start, ..self }
    }
}

impl<'a> CudaSliceMut<'a> {
    /// # Safety
    /// Same as [`CudaSlice::from_raw`], and nothing else uses the elements for `'a`.
    pub unsafe fn from_raw(gpu: &'static Gpu, ptr: CUdeviceptr, len: usize, dtype: DType) -> Self {
        // SAFETY: the caller's guarantees.
        CudaSliceMut { shared: unsafe { CudaSlice::from_raw(gpu, ptr, len, dtype) }, borrowed: PhantomData }
    }

    /// A shared view of the same elements.
    pub fn as_ref(&self) -> CudaSlice<'_> {
        self.shared
    }

    /// The same view with a shorter lifetime.
    pub(crate) fn reborrow(&mut self) -> CudaSliceMut<'_> {
        CudaSliceMut { shared: self.shared, borrowed: PhantomData }
    }

    pub(crate) fn range(self, start: usize, end: usize) -> Self {
        CudaSliceMut { shared: self.shared.range(start, end), borrowed: PhantomData }
    }

    pub(crate) fn split_at(self, mid: usize) -> (Self, Self) {
        let len = self.shared.len;
        let part = |start, end| CudaSliceMut { shared: self.shared.range(start, end), borrowed: PhantomData };
        (part(0, mid), part(mid, len))
    }

    /// The device.
    pub fn gpu(&self) -> &'static Gpu {
        self.shared.gpu
    }

    /// Address of the first element.
    pub fn ptr(&self) -> CUdeviceptr {
        self.shared.ptr
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.shared.dtype
    }

    /// Bytes of all elements.
    pub(crate) fn len_bytes(&self) -> usize {
        self.shared.len_bytes()
    }
}
