//! Scratch memory of reductions over several blocks.

use cudarc::driver::sys;

use super::blas::WORKSPACE_BYTES;
use super::gpu::{Gpu, StreamKind};
use super::memory::DeviceBuffer;
use crate::Result;
use crate::base::memory_use::MemoryUse;

/// Number of per-block partial sums in [`Gpu::scratch`].
pub(crate) const PARTIAL_SUMS: usize = 1 << 14;
/// Number of per-block partial sums in the scratch memory of the communication stream.
pub(crate) const COMMUNICATION_PARTIAL_SUMS: usize = 512;
/// Scratch memory of reductions: counters and partial sums, for the compute stream and then for the communication stream.
const SCRATCH_BYTES: usize = 2 * 256 + (PARTIAL_SUMS + COMMUNICATION_PARTIAL_SUMS) * 8;
/// Bytes of [`MemoryUse::Workspace`] in every program: scratch of matmuls and reductions.
pub const FIXED_WORKSPACE_BYTES: usize = WORKSPACE_BYTES + SCRATCH_BYTES;

/// Addresses of [`Gpu::scratch`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    /// 64 u32 that are 0 between kernels.
    pub(crate) counter: sys::CUdeviceptr,
    /// [`PARTIAL_SUMS`] f64.
    pub(crate) partials: sys::CUdeviceptr,
}

impl Gpu {
    /// Scratch memory of reductions over several blocks: 64 zero u32, which every kernel leaves zero, then [`PARTIAL_SUMS`] f64
    /// of no meaning between kernels. Kernels on the compute stream share it; those on the communication stream share another one,
    /// with [`COMMUNICATION_PARTIAL_SUMS`].
    ///
    /// # Errors
    /// [`crate::KernelError::OutOfMemory`] in the first call, which must not be inside a capture.
    pub(crate) fn scratch(&'static self) -> Result<Scratch> {
        self.scratch_on(StreamKind::Compute)
    }

    /// [`Gpu::scratch`] of a stream: the compute stream or the communication stream.
    pub(crate) fn scratch_on(&'static self, kind: StreamKind) -> Result<Scratch> {
        let start = match self.scratch.get() {
            Some(start) => *start,
            None => {
                let made = DeviceBuffer::zeroed(self, SCRATCH_BYTES, MemoryUse::Workspace)?;
                // Zeroed on the compute stream, but used on another one, too.
                self.compute().synchronize()?;
                *self.scratch.get_or_init(|| made.leak())
            }
        };
        let counter = match kind {
            StreamKind::Communication => start + 256 + PARTIAL_SUMS as u64 * 8,
            StreamKind::Compute | StreamKind::Copy => start,
        };
        Ok(Scratch { counter, partials: counter + 256 })
    }
}
