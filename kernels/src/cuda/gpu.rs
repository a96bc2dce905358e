//! One device of the process: its context, its three streams, and what is kept for it.

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

/// Which of a device's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Every operation of [`crate::ops`].
    Compute,
    /// Collectives.
    Communication,
    /// Copies from and to pinned host memory.
    Copy,
}

/// A GPU as this process uses it. There is one for each device, and it lives as long as the process.
///
/// Operations go to the compute stream, one after the other; whoever uses another stream orders the two by events and
/// has the compute stream wait before memory is given back.
pub struct Gpu {
    index: u32,
    device: sys::CUdevice,
    context: sys::CUcontext,
    info: GpuInfo,
    compute: Stream,
    communication: Stream,
    copy: Stream,
    pub(super) memory: Memory,
    pub(super) modules: Modules,
    pub(super) blas: OnceLock<Blas>,
    is_deterministic: AtomicBool,
    pub(super) graphs: Graphs,
    scratch: OnceLock<DeviceBuffer>,
}

// SAFETY: the handles are the driver's, whose functions may be called from any thread once the context is current there,
// which `bind` sees to; everything else is Sync by itself.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({}, {})", self.index, self.info.name)
    }
}

/// Places for the sums of single blocks in [`Gpu::scratch`].
pub(crate) const PARTIAL_SUMS: usize = 1 << 14;
/// Scratch of reductions: counters, and the partial sums.
const SCRATCH_BYTES: usize = 256 + PARTIAL_SUMS * 8;
/// Bytes of [`super::MemoryUse::Workspace`] that a GPU takes whatever runs on it: scratch of the matrix products and of reductions.
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
    /// The device whose context is current on this thread, if this crate made it so.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Gpu {
    /// The device of this index among those that the process sees. The first call makes its context (some 0.2 s).
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] where there is no driver or no such device; [`KernelError::Cuda`] where it does
    /// not work.
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
                format!("there {are} {n} GPU{s} here, counted from 0"),
                format!("cuda:0 to cuda:{}; CUDA_VISIBLE_DEVICES says which ones a process sees", n - 1),
            ));
        };
        gpu.get_or_init(|| Gpu::open(index)).as_ref().map_err(Clone::clone)
    }

    /// Number of devices; 0 where there is no driver.
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
            device,
            context,
            info,
            compute: Stream::new(index, least)?,
            // A collective that is late holds up all ranks.
            communication: Stream::new(index, most)?,
            copy: Stream::new(index, least)?,
            memory: Memory::new(index)?,
            modules: Modules::default(),
            blas: OnceLock::new(),
            is_deterministic: AtomicBool::new(false),
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

    /// The tensors' name for it.
    pub fn device(&self) -> Device {
        Device::Cuda(self.index)
    }

    /// Whether matrix products use only algorithms that give the same bits in every run: none whose parts of a sum are added in
    /// place (split-k and stream-k "in place"), which some shapes pay for with time. Counts for products that are asked for from
    /// now on; those in a captured graph stay what they were. All kernels of this crate sum in a fixed order anyway.
    pub fn set_deterministic(&self, is_deterministic: bool) {
        self.is_deterministic.store(is_deterministic, Ordering::Relaxed);
    }

    /// What [`Gpu::set_deterministic`] set; false at the start.
    pub fn is_deterministic(&self) -> bool {
        self.is_deterministic.load(Ordering::Relaxed)
    }

    /// What it is.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// The driver's context.
    pub fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// The driver's device.
    pub fn raw_device(&self) -> sys::CUdevice {
        self.device
    }

    /// One of its streams.
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

    /// Scratch of reductions over several blocks: 64 zero u32, which every kernel leaves zero, and behind them
    /// [`PARTIAL_SUMS`] f64 that mean nothing. Kernels of the compute stream use it in turn.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] at the first call, which must not be inside of a capture.
    pub(crate) fn scratch(&'static self) -> Result<Scratch> {
        let buffer = match self.scratch.get() {
            Some(buffer) => buffer,
            None => {
                let made = DeviceBuffer::zeroed(self, SCRATCH_BYTES, MemoryUse::Workspace)?;
                self.scratch.get_or_init(|| made)
            }
        };
        Ok(Scratch { counter: buffer.ptr(), partials: buffer.ptr() + 256 })
    }

    /// Blocks the host until all that was asked of this device is done: operations, copies and collectives.
    ///
    /// Operations return before they have run, so a clock that is read without this measures how long it took to ask.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] for whatever went wrong in that work.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        check_driver(self.index, "cuCtxSynchronize", result::ctx::synchronize())
    }
}
