//! Device memory of tensors that another library allocated, such as a library for collectives.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

use cudarc::driver::{result, sys};

use super::Gpu;
use super::memory::Pinned;

/// Memory that no tensor or other owner uses any more.
#[derive(Debug)]
pub(super) enum Unused {
    /// An allocation of the pool.
    OfPool(sys::CUdeviceptr),
    /// Returned to the other library when dropped.
    Foreign(ForeignMemory),
    /// Host memory that kernels wrote to, none of which is still running.
    Host(Pinned),
}

impl Unused {
    /// Frees it after all work enqueued on the compute stream. A failure cannot be reported.
    pub(super) fn free(self, gpu: &Gpu) {
        match self {
            Unused::OfPool(ptr) if gpu.bind().is_ok() => {
                // SAFETY: the memory is the pool's, and its owner gives it up here, once.
                let _ = unsafe { result::free_async(ptr, gpu.compute().raw()) };
            }
            Unused::OfPool(_) => {}
            Unused::Foreign(memory) => drop(memory),
            Unused::Host(memory) => drop(memory),
        }
    }
}

/// Device memory that another library allocated, for one tensor: [`Tensor::zeros_in`](crate::Tensor::zeros_in).
pub struct ForeignMemory {
    gpu: &'static Gpu,
    ptr: sys::CUdeviceptr,
    bytes: usize,
    /// Bytes that the other library takes from the device for it.
    held: usize,
    /// Taken when it is dropped.
    release: Option<Box<dyn FnOnce() + Send + Sync>>,
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
        ForeignMemory { gpu, ptr, bytes, held: bytes, release: Some(Box::new(release)) }
    }

    /// Accounts for `bytes`, those that the other library takes from the device for it; initially its length.
    #[must_use]
    pub fn holding(mut self, bytes: usize) -> Self {
        self.held = bytes;
        self
    }

    /// Bytes that it is accounted for with.
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
}

// A panic leaves nothing half-done: only `drop` changes the value.
impl UnwindSafe for ForeignMemory {}
impl RefUnwindSafe for ForeignMemory {}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignMemory({} bytes at {:#x} on {})", self.bytes, self.ptr, self.gpu.device())
    }
}
