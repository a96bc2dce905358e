//! One device of the process: its context, its three streams, and its caches.
//!
//! Operations run on the compute stream, collectives on the communication stream, copies from pinned memory on the copy stream;
//! events order them. Copies to pinned memory follow the work that they read, on the compute stream. Memory is freed in the
//! order of the compute stream, so a user of another stream makes the compute stream wait first.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{result, sys};

use super::blas::Blas;
use super::call::check_driver;
use super::driver::driver;
use super::graph::Graphs;
use super::info::GpuInfo;
use super::memory::{DeviceBuffer, Memory, MemoryUse};
use super::module::Modules;
use super::stream::Stream;
use crate::{Device, KernelError, Result};

/// The streams of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// All operations of [`crate::ops`].
    Compute,
    /// Collectives.
    Communication,
    /// Copies from and to pinned host memory.
    Copy,
}

/// An open GPU. There is one per device, and it lives as long as the process.
///
/// Operations are enqueued on the compute stream, in order; users of another stream order the two by events and make the
/// compute stream wait before memory is freed.
pub struct Gpu {
    index: u32,
    context: sys::CUcontext,
    info: GpuInfo,
    compute: Stream,
    communication: Stream,
    copy: Stream,
    pub(super) memory: Memory,
    pub(super) modules: Modules,
    pub(super) blas: OnceLock<Blas>,
    is_deterministic: AtomicBool,
    /// Whether new matmuls choose their algorithm by time.
    pub(super) is_choosing: AtomicBool,
    pub(super) graphs: Graphs,
    scratch: OnceLock<DeviceBuffer>,
}

// SAFETY: driver functions may be called with these handles from any thread on which the context is current, which `bind`
// ensures; everything else is Sync by itself.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({}, {})", self.index, self.info.name)
    }
}

/// Number of per-block partial sums in [`Gpu::scratch`].
pub(crate) const PARTIAL_SUMS: usize = 1 << 14;
/// Number of per-block partial sums in the scratch memory of the communication stream.
pub(crate) const COMMUNICATION_PARTIAL_SUMS: usize = 512;
/// Scratch memory of reductions: counters and partial sums, for the compute stream and then for the communication stream.
const SCRATCH_BYTES: usize = 2 * 256 + (PARTIAL_SUMS + COMMUNICATION_PARTIAL_SUMS) * 8;
/// Bytes of [`super::MemoryUse::Workspace`] in every program: scratch of matmuls and reductions.
pub const FIXED_WORKSPACE_BYTES: usize = super::blas::WORKSPACE_BYTES + SCRATCH_BYTES;

/// Addresses of [`Gpu::scratch`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    /// 64 u32 that are 0 between kernels.
    pub(crate) counter: sys::CUdeviceptr,
    /// [`PARTIAL_SUMS`] f64.
    pub(crate) partials: sys::CUdeviceptr,
}

thread_local! {
    /// The device whose context this crate made current on this thread.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Gpu {
    /// Returns the device of this index among the visible ones. The first call creates its context (about 0.2 s).
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] if there is no driver or no such device; [`KernelError::Cuda`] if it does not start.
    pub fn get(index: u32) -> Result<&'static Gpu> {
        static GPUS: OnceLock<Vec<OnceLock<Result<Gpu>>>> = OnceLock::new();
        let unavailable = |reason: String, hint: String| KernelError::DeviceUnavailable {
            device: Device::Cuda(index),
            reason,
            hint,
        };
        let driver = driver().map_err(|why| unavailable(why.reason.clone(), why.hint.clone()))?;
        let gpus = GPUS.get_or_init(|| (0..driver.n_devices).map(|_| OnceLock::new()).collect());
        let Some(gpu) = gpus.get(index as usize) else {
            let n = driver.n_devices;
            let (are, s) = if n == 1 { ("is", "") } else { ("are", "s") };
            return Err(unavailable(
                format!("there {are} {n} GPU{s} here, numbered from 0"),
                format!(
                    "cuda:0 to cuda:{}; CUDA_VISIBLE_DEVICES selects the ones that a process sees",
                    n - 1
                ),
            ));
        };
        gpu.get_or_init(|| Gpu::open(index)).as_ref().map_err(Clone::clone)
    }

    /// Number of devices; 0 without a driver.
    pub fn count() -> usize {
        driver().map_or(0, |driver| driver.n_devices as usize)
    }

    fn open(index: u32) -> Result<Gpu> {
        let check = |call, result| check_driver(index, call, result);
        let device = check_driver(index, "cuDeviceGet", result::device::get(index as i32))?;
        let info = GpuInfo::of(index)?;
        // SAFETY: the device exists; the context is never released, as the `Gpu` is never dropped.
        let context =
            check_driver(index, "cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: it was just retained.
        check("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })?;
        CURRENT.set(Some(index));
        let (least, most) =
            check_driver(index, "cuCtxGetStreamPriorityRange", result::stream::get_priority_range())?;
        Ok(Gpu {
            index,
            context,
            info,
            compute: Stream::new(index, least)?,
            // A late exchange delays all peers.
            communication: Stream::new(index, most)?,
            copy: Stream::new(index, least)?,
            memory: Memory::new(index)?,
            modules: Modules::default(),
            blas: OnceLock::new(),
            is_deterministic: AtomicBool::new(false),
            is_choosing: AtomicBool::new(false),
            graphs: Graphs::default(),
            scratch: OnceLock::new(),
        })
    }

    /// Makes the context current on the calling thread.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn bind(&self) -> Result<()> {
        if CURRENT.get() == Some(self.index) {
            return Ok(());
        }
        // SAFETY: the context is alive as long as the process.
        let set = unsafe { result::ctx::set_current(self.context) };
        check_driver(self.index, "cuCtxSetCurrent", set)?;
        CURRENT.set(Some(self.index));
        Ok(())
    }

    /// Index among the devices of the process.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// This GPU as a [`Device`].
    pub fn device(&self) -> Device {
        Device::Cuda(self.index)
    }

    /// Sets whether matmuls use only algorithms that give the same bits in every run: none that accumulate parts of a sum in
    /// place (split-k and stream-k "in place"), which makes some shapes slower. Applies to matmuls enqueued from now on; captured
    /// graphs keep their algorithms. All kernels of this crate sum in a fixed order anyway.
    pub fn set_deterministic(&self, is_deterministic: bool) {
        self.is_deterministic.store(is_deterministic, Ordering::Relaxed);
    }

    /// The setting of [`Gpu::set_deterministic`]; initially false.
    pub fn is_deterministic(&self) -> bool {
        self.is_deterministic.load(Ordering::Relaxed)
    }

    /// Its description.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// The driver's context.
    pub fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// The stream of this kind.
    pub fn stream(&self, kind: StreamKind) -> &Stream {
        match kind {
            StreamKind::Compute => &self.compute,
            StreamKind::Communication => &self.communication,
            StreamKind::Copy => &self.copy,
        }
    }

    /// The stream of all operations.
    pub fn compute(&self) -> &Stream {
        &self.compute
    }

    /// Scratch memory of reductions over several blocks: 64 zero u32, which every kernel leaves zero, then [`PARTIAL_SUMS`] f64
    /// of no meaning between kernels. Kernels on the compute stream share it; those on the communication stream share another one,
    /// with [`COMMUNICATION_PARTIAL_SUMS`].
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] in the first call, which must not be inside a capture.
    pub(crate) fn scratch(&'static self) -> Result<Scratch> {
        self.scratch_on(StreamKind::Compute)
    }

    /// [`Gpu::scratch`] of a stream: the compute stream or the communication stream.
    pub(crate) fn scratch_on(&'static self, kind: StreamKind) -> Result<Scratch> {
        let buffer = match self.scratch.get() {
            Some(buffer) => buffer,
            None => {
                let made = DeviceBuffer::zeroed(self, SCRATCH_BYTES, MemoryUse::Workspace)?;
                // Zeroed on the compute stream, but used on another one, too.
                self.compute.synchronize()?;
                self.scratch.get_or_init(|| made)
            }
        };
        let counter = match kind {
            StreamKind::Communication => buffer.ptr() + 256 + PARTIAL_SUMS as u64 * 8,
            StreamKind::Compute | StreamKind::Copy => buffer.ptr(),
        };
        Ok(Scratch { counter, partials: counter + 256 })
    }

    /// Blocks until all work enqueued on this device is complete: operations, copies and collectives.
    ///
    /// Operations are asynchronous: without this call, a clock measures only the time to enqueue them.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for failed earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        check_driver(self.index, "cuCtxSynchronize", result::ctx::synchronize())
    }
}
