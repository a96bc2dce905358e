//! Device memory of tensors that another library allocated, such as a library for collectives.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

use cudarc::driver::sys;

use super::gpu::Gpu;
use super::unused::Release;

/// Device memory that another library allocated, for one tensor: [`Tensor::zeros_in`](crate::Tensor::zeros_in).
pub struct ForeignMemory {
    gpu: &'static Gpu,
    ptr: sys::CUdeviceptr,
    bytes: usize,
    /// Bytes that the other library takes from the device for it.
    held: usize,
    release: Release,
}

impl ForeignMemory {
    /// Describes `bytes` at `ptr`. `release` returns them: called once no tensor and no graph uses them, from any thread; work
    /// enqueued on the compute stream may still.
    ///
    /// # Safety
    /// The memory is on `gpu`, aligned to 256 bytes and accessed by nothing else until `release` is called.
    pub unsafe fn new(
        gpu: &'static Gpu,
        ptr: sys::CUdeviceptr,
        bytes: usize,
        release: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        ForeignMemory { gpu, ptr, bytes, held: bytes, release: Release::new(release) }
    }

    /// Sets the bytes that are accounted for, which the other library takes from the device; initially the length.
    #[must_use]
    pub fn holding(mut self, bytes: usize) -> Self {
        self.held = bytes;
        self
    }

    /// Bytes that are accounted for.
    pub fn held_bytes(&self) -> usize {
        self.held
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

    /// Gives the memory up: it is returned once the result is dropped.
    pub(super) fn into_release(self) -> Release {
        self.release
    }
}

// A panic leaves nothing half-done: only dropping changes the value.
impl UnwindSafe for ForeignMemory {}
impl RefUnwindSafe for ForeignMemory {}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignMemory({} bytes at {:#x} on {})", self.bytes, self.ptr, self.gpu.device())
    }
}
