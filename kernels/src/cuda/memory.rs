//! Device memory from a stream-ordered caching pool, memory that another library allocated, and scratch memory of reductions.
//!
//! Memory of tensors comes from a pool of the driver (`cuMemPool`) with an unlimited release threshold, so freed memory is
//! kept for the next tensor until [`Gpu::empty_cache`]. Allocating and freeing are ordered on the compute stream and do not
//! wait. Memory that collectives use may come from another library ([`ForeignMemory`]). Without a pool
//! ([`GpuFeature::MemoryPool`]) each tensor is an allocation by itself.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::blas::WORKSPACE_BYTES;
use super::driver::check_driver;
use super::feature::GpuFeature;
use super::gpu::{Gpu, StreamKind};
use super::graphs::{Release, Unused};
use crate::base::memory_use::{MemoryInUse, MemoryUse};
use crate::{KernelError, Result};

impl Gpu {
    /// Bytes that tensors of this device hold.
    pub fn memory_allocated(&self) -> usize {
        self.pool.account().bytes.iter().sum()
    }

    /// Peak of [`Gpu::memory_allocated`] since the start or [`Gpu::reset_peak_memory`].
    pub fn memory_peak(&self) -> usize {
        self.pool.account().peak
    }

    /// Resets the peak to the current use.
    pub fn reset_peak_memory(&self) {
        let mut account = self.pool.account();
        account.peak = account.bytes.iter().sum();
    }

    /// Bytes that the pool has reserved on the device, in use or cached, plus the bytes of tensors in memory of another library.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn memory_reserved(&self) -> Result<usize> {
        self.bind()?;
        let foreign = self.pool.account().foreign;
        let Ok(pool) = self.pool.raw() else { return Ok(foreign) };
        let mut bytes = 0u64;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        // SAFETY: the attribute is a 64-bit number.
        let got = unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()) };
        check_driver(self.index(), "cuMemPoolGetAttribute", got)?;
        Ok(bytes as usize + foreign)
    }

    /// Releases cached memory of the pool to the device, for other processes. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn empty_cache(&self) -> Result<()> {
        self.synchronize()?;
        let Ok(pool) = self.pool.raw() else { return Ok(()) };
        // SAFETY: the pool lives as long as the process.
        let trimmed = unsafe { result::mem_pool::trim_to(pool, 0) };
        check_driver(self.index(), "cuMemPoolTrimTo", trimmed)
    }

    /// Memory in use, by kind.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn memory_in_use(&self) -> Result<MemoryInUse> {
        self.bind()?;
        let (free, total) = check_driver(self.index(), "cuMemGetInfo", result::mem_get_info())?;
        Ok(MemoryInUse { bytes: self.pool.account().bytes, free, total })
    }
}

/// Memory of the pool, freed in the order of the compute stream, or of another library, to which it is returned.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    gpu: &'static Gpu,
    ptr: sys::CUdeviceptr,
    bytes: usize,
    kind: MemoryUse,
    /// Set if another library allocated it.
    foreign: Option<ForeignMemory>,
    /// Whether it is an allocation by itself.
    is_single: bool,
    /// Number of captures begun when it was allocated.
    n_captures: u64,
}

impl DeviceBuffer {
    /// Allocates `bytes` uninitialized bytes.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] with the memory in use; [`KernelError::Cuda`].
    pub(crate) fn new(gpu: &'static Gpu, bytes: usize, kind: MemoryUse) -> Result<Self> {
        gpu.bind()?;
        let n_captures = gpu.graphs.n_begun();
        if bytes == 0 {
            return Ok(DeviceBuffer {
                gpu,
                ptr: 0,
                bytes,
                kind,
                foreign: None,
                is_single: false,
                n_captures,
            });
        }
        let is_single = !gpu.uses(GpuFeature::MemoryPool);
        let (call, ptr) = match gpu.pool.raw() {
            Ok(pool) if !is_single => {
                // SAFETY: pool and stream live as long as the process.
                let ptr = unsafe { result::mem_pool::alloc_async(pool, bytes, gpu.compute().raw()) };
                ("cuMemAllocFromPoolAsync", ptr)
            }
            // SAFETY: the context is current.
            _ => ("cuMemAlloc", unsafe { result::malloc_sync(bytes) }),
        };
        let ptr = match ptr {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let in_use = gpu.memory_in_use().ok().map(Box::new);
                return Err(KernelError::OutOfMemory { device: gpu.device(), bytes, in_use });
            }
            other => check_driver(gpu.index(), call, other)?,
        };
        let mut account = gpu.pool.account();
        account.add(kind, bytes);
        account.foreign += if is_single { bytes } else { 0 };
        Ok(DeviceBuffer { gpu, ptr, bytes, kind, foreign: None, is_single, n_captures })
    }

    /// Takes `bytes` of `memory`, as many as it has or fewer, and fills them with zeros.
    ///
    /// # Errors
    /// [`KernelError::Cuda`]; [`KernelError::OutOfRange`] (in bytes).
    pub(crate) fn zeroed_in(memory: ForeignMemory, bytes: usize, kind: MemoryUse) -> Result<Self> {
        let (gpu, ptr, len) = (memory.gpu(), memory.ptr(), memory.len_bytes());
        if bytes > len {
            return Err(KernelError::OutOfRange { op: "zeroed_in (bytes)", start: 0, end: bytes, len });
        }
        let n_captures = gpu.graphs.n_begun();
        let mut account = gpu.pool.account();
        account.add(kind, memory.held_bytes());
        account.foreign += memory.held_bytes();
        drop(account);
        let foreign = Some(memory);
        let buffer = DeviceBuffer { gpu, ptr, bytes, kind, foreign, is_single: false, n_captures };
        buffer.fill_with_zeros()?;
        Ok(buffer)
    }

    /// Allocates `bytes` zero bytes.
    ///
    /// # Errors
    /// Same as [`DeviceBuffer::new`].
    pub(crate) fn zeroed(gpu: &'static Gpu, bytes: usize, kind: MemoryUse) -> Result<Self> {
        let buffer = Self::new(gpu, bytes, kind)?;
        buffer.fill_with_zeros()?;
        Ok(buffer)
    }

    fn fill_with_zeros(&self) -> Result<()> {
        let DeviceBuffer { gpu, ptr, bytes, .. } = *self;
        if bytes == 0 {
            return Ok(());
        }
        gpu.bind()?;
        // SAFETY: the memory is this buffer's and of that length.
        let set = unsafe { result::memset_d8_async(ptr, 0, bytes, gpu.compute().raw()) };
        check_driver(gpu.index(), "cuMemsetD8Async", set)
    }

    pub(crate) fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    pub(crate) fn ptr(&self) -> sys::CUdeviceptr {
        self.ptr
    }

    pub(crate) fn kind(&self) -> MemoryUse {
        self.kind
    }

    /// Keeps the memory as long as the process, and returns its address.
    pub(super) fn leak(self) -> sys::CUdeviceptr {
        std::mem::ManuallyDrop::new(self).ptr
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let (memory, pooled, foreign) = match self.foreign.take() {
            None if self.bytes == 0 => return,
            None if self.is_single => (Unused::Single(self.ptr), 0, self.bytes),
            None => (Unused::OfPool(self.ptr), self.bytes, 0),
            Some(memory) => {
                let held = memory.held_bytes();
                (Unused::Foreign(memory.into_release()), 0, held)
            }
        };
        let mut account = self.gpu.pool.account();
        account.bytes[self.kind as usize] -= pooled + foreign;
        account.foreign -= foreign;
        drop(account);
        // A graph that may be replayed may use the address: then the memory stays allocated until no graph is left.
        self.gpu.graphs.free_or_keep(self.gpu.compute(), memory, self.n_captures);
    }
}

/// Number of per-block partial sums in [`Gpu::scratch`].
pub(crate) const PARTIAL_SUMS: usize = 1 << 16;
/// Bytes of [`Gpu::chunk_sums`]: two sums in f32 for each of 4,096 columns from 256 blocks.
pub(crate) const CHUNK_SUM_BYTES: usize = 8 << 20;
/// Number of per-block partial sums in the scratch memory of the communication stream.
pub(crate) const COMMUNICATION_PARTIAL_SUMS: usize = 512;
/// Counters and partial sums, for the compute stream and then for the communication stream.
const COUNTED_BYTES: usize = 2 * 256 + (PARTIAL_SUMS + COMMUNICATION_PARTIAL_SUMS) * 8;
/// Words of [`Gpu::gate_words`].
pub(super) const GATE_WORDS: usize = 3;
/// Scratch memory of reductions: that, then [`Gpu::chunk_sums`], then [`Gpu::gate_words`].
const SCRATCH_BYTES: usize = COUNTED_BYTES + CHUNK_SUM_BYTES + GATE_WORDS * 8;
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
        let start = self.scratch_memory()?;
        let counter = match kind {
            StreamKind::Communication => start + 256 + PARTIAL_SUMS as u64 * 8,
            StreamKind::Compute | StreamKind::Copy => start,
        };
        Ok(Scratch { counter, partials: counter + 256 })
    }

    /// [`CHUNK_SUM_BYTES`] of no meaning, in which a launch on the compute stream leaves sums for the next one. No other thread has
    /// them until they are dropped.
    ///
    /// # Errors
    /// Same as [`Gpu::scratch`].
    pub(crate) fn chunk_sums(&'static self) -> Result<ChunkSums> {
        let ptr = self.scratch_memory()? + COUNTED_BYTES as u64;
        let guard = self.chunk_sums.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(ChunkSums { ptr, _guard: guard })
    }

    /// The words of the gate of updates, which start as zeros: whether it is closed, the step of the last update that passed, and of the
    /// first one that did not.
    ///
    /// # Errors
    /// Same as [`Gpu::scratch`].
    pub(super) fn gate_words(&'static self) -> Result<sys::CUdeviceptr> {
        Ok(self.scratch_memory()? + (COUNTED_BYTES + CHUNK_SUM_BYTES) as u64)
    }

    fn scratch_memory(&'static self) -> Result<sys::CUdeviceptr> {
        if let Some(start) = self.scratch.get() {
            return Ok(*start);
        }
        let made = DeviceBuffer::zeroed(self, SCRATCH_BYTES, MemoryUse::Workspace)?;
        // Zeroed on the compute stream, but used on another one, too.
        self.compute().synchronize()?;
        Ok(*self.scratch.get_or_init(|| made.leak()))
    }
}

/// [`Gpu::chunk_sums`].
#[derive(Debug)]
pub(crate) struct ChunkSums {
    pub(crate) ptr: sys::CUdeviceptr,
    _guard: MutexGuard<'static, ()>,
}

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
