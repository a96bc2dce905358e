//! One device of the process: its context, its streams, and its caches.
//!
//! Operations run on the compute stream, or beside it; collectives on the communication stream, copies from pinned memory on the copy
//! stream; events order them. Copies to pinned memory follow the work that they read, on the compute stream. Memory is freed in the
//! order of the compute stream, so a user of another stream makes the compute stream wait first.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use cudarc::driver::{result, sys};

use super::blas::{Blas, Conditions};
use super::context::{Context, Stream};
use super::driver::{check_driver, driver, identify};
use super::feature::{FeaturesOff, GpuFeature};
use super::graphs::Graphs;
use super::info::GpuInfo;
use super::module::Modules;
use super::pinned::Pinned;
use super::pool::Pool;
use super::source::Source;
use crate::{Device, KernelError, Result};

/// The CUDA of drivers that capture dependent launches into graphs: 12.3.
const DEPENDENT_LAUNCHES_IN_GRAPHS: i32 = 12_030;

/// Bytes of host memory of a trial.
const TRIAL_BYTES: usize = 4096;

/// Stream on which a thread enqueues operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The compute stream.
    Compute,
    /// The second stream.
    Second,
    /// The third one, with the scratch memory of its matmuls.
    Third { workspace: sys::CUdeviceptr },
}

thread_local! {
    /// Where this thread enqueues operations.
    pub(super) static SIDE: Cell<Side> = const { Cell::new(Side::Compute) };
}

/// Runs `work`, whose operations are enqueued on that side.
pub(super) fn on_side<R>(side: Side, work: impl FnOnce() -> R) -> R {
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            SIDE.set(Side::Compute);
        }
    }
    let _ends = Ends;
    SIDE.set(side);
    work()
}

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
    pub(crate) context: Context,
    info: GpuInfo,
    compute: Stream,
    /// With the highest priority, or the reason why there is none.
    urgent: Result<Stream>,
    /// With the priority of the others.
    communication: Stream,
    copy: Stream,
    /// Of matmuls beside others, with the priority of the others.
    third: Stream,
    pub(super) pool: Pool,
    modules: Modules,
    /// Made by the first matmul.
    pub(super) blas: OnceLock<Blas>,
    off: FeaturesOff,
    is_deterministic: AtomicBool,
    /// Number of [`DeterministicMode`] that live.
    n_deterministic: AtomicU32,
    /// Whether new matmuls choose their algorithm by time.
    is_choosing: AtomicBool,
    /// Whether products of any size split their factors, where they may.
    splits_all: AtomicBool,
    /// Multiprocessors that collectives hold next to the matmuls that are enqueued.
    n_held: AtomicU32,
    pub(super) graphs: Graphs,
    /// Marks that are being recorded.
    pub(super) recording: Mutex<Option<Recording>>,
    /// Address of the scratch memory, made by the first reduction.
    pub(super) scratch: OnceLock<sys::CUdeviceptr>,
    /// Made by [`Gpu::gate_updates`].
    pub(super) gate: OnceLock<GateMemory>,
    /// Held from the launch that leaves sums in the scratch memory to the launch that reads them.
    pub(super) chunk_sums: Mutex<()>,
}

// SAFETY: driver functions may be called with these handles from any thread on which the context is current, which `bind`
// ensures; everything else is Sync by itself.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({}, {})", self.index(), self.info.name)
    }
}

/// All visible devices; each opens at its first use.
static GPUS: OnceLock<Vec<OnceLock<Result<Gpu>>>> = OnceLock::new();

impl Gpu {
    /// Returns the device of this index among the visible ones. The first call creates its context (about 0.2 s).
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] if there is no driver or no such device; [`KernelError::Cuda`] if it does not start.
    pub fn get(index: u32) -> Result<&'static Gpu> {
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

    /// The devices that this process has opened.
    pub(crate) fn opened() -> impl Iterator<Item = &'static Gpu> {
        GPUS.get().into_iter().flatten().filter_map(|gpu| gpu.get()?.as_ref().ok())
    }

    /// Number of devices; 0 without a driver.
    pub fn count() -> usize {
        driver().map_or(0, |driver| driver.n_devices as usize)
    }

    fn open(index: u32) -> Result<Gpu> {
        let info = GpuInfo::of(index)?;
        identify(index, info.identity());
        let context = Context::open(index)?;
        let (least, most) =
            check_driver(index, "cuCtxGetStreamPriorityRange", result::stream::get_priority_range())?;
        Ok(Gpu {
            context,
            info,
            compute: Stream::new(context, least)?,
            // A late exchange delays all peers.
            urgent: Stream::new(context, most),
            communication: Stream::new(context, least)?,
            copy: Stream::new(context, least)?,
            third: Stream::new(context, least)?,
            pool: Pool::new(index),
            modules: Modules::default(),
            blas: OnceLock::new(),
            off: FeaturesOff::default(),
            is_deterministic: AtomicBool::new(false),
            n_deterministic: AtomicU32::new(0),
            is_choosing: AtomicBool::new(false),
            splits_all: AtomicBool::new(false),
            n_held: AtomicU32::new(0),
            graphs: Graphs::default(),
            recording: Mutex::new(None),
            scratch: OnceLock::new(),
            gate: OnceLock::new(),
            chunk_sums: Mutex::new(()),
        })
    }

    /// Makes the context current on the calling thread.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn bind(&self) -> Result<()> {
        self.context.bind()
    }

    /// Index among the devices of the process.
    pub fn index(&self) -> u32 {
        self.context.index()
    }

    /// This GPU as a [`Device`].
    pub fn device(&self) -> Device {
        Device::Cuda(self.index())
    }

    /// Does without `feature` from now on. Call it before anything is allocated or enqueued that uses it.
    pub fn turn_off(&self, feature: GpuFeature) {
        self.off.insert(feature);
    }

    /// Whether a feature is used: it is not turned off, and the driver has not refused it when the device was opened.
    pub fn uses(&self, feature: GpuFeature) -> bool {
        let is_refused = match feature {
            GpuFeature::StreamPriorities => self.urgent.is_err(),
            GpuFeature::MemoryPool => self.pool.raw().is_err(),
            _ => !self.has(feature),
        };
        !is_refused && !self.off.contains(feature)
    }

    /// Whether this GPU and its driver have the feature at all; older ones lack dependent launches.
    pub fn has(&self, feature: GpuFeature) -> bool {
        let has_driver = || driver().is_ok_and(|driver| driver.version >= DEPENDENT_LAUNCHES_IN_GRAPHS);
        feature != GpuFeature::DependentLaunches || self.info.compute_capability >= (9, 0) && has_driver()
    }

    /// Tries the features that are not turned off and that the driver can refuse; returns those that it refuses, with its error.
    pub fn refused_features(&self) -> Vec<(GpuFeature, KernelError)> {
        let tried = |feature| match feature {
            GpuFeature::StreamPriorities => self.urgent.as_ref().err().cloned(),
            GpuFeature::MemoryPool => self.pool.raw().err(),
            GpuFeature::MappedOutcome => Pinned::mapped(self.context, TRIAL_BYTES).err(),
            GpuFeature::PinnedMemory => Pinned::locked(self.context, TRIAL_BYTES, 0).err(),
            GpuFeature::FusedEpilogues
            | GpuFeature::TimedMatmuls
            | GpuFeature::StepTimes
            | GpuFeature::DependentLaunches => None,
        };
        let on = GpuFeature::ALL.iter().copied().filter(|feature| !self.off.contains(*feature));
        on.filter_map(|feature| Some((feature, tried(feature)?))).collect()
    }

    /// Gives memory of the pool that nothing uses back to the driver. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub(crate) fn release_free_memory(&self) -> Result<()> {
        self.synchronize()?;
        let Ok(pool) = self.pool.raw() else { return Ok(()) };
        // SAFETY: the pool lives as long as the process.
        let released = unsafe { result::mem_pool::trim_to(pool, 0) };
        check_driver(self.index(), "cuMemPoolTrimTo", released)
    }

    /// Zero bytes in host memory, for copies from and to this device.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub(crate) fn host_memory(&self, bytes: usize) -> Result<Pinned> {
        Pinned::zeroed(self.context, bytes, self.uses(GpuFeature::PinnedMemory))
    }

    /// Sets whether matmuls use only algorithms that give the same bits in every run: none that accumulate parts of a sum in
    /// place (split-k and stream-k "in place"), which makes some shapes slower. Applies to matmuls enqueued from now on; captured
    /// graphs keep their algorithms. All kernels of this crate sum in a fixed order anyway.
    pub fn set_deterministic(&self, is_deterministic: bool) {
        self.is_deterministic.store(is_deterministic, Ordering::Relaxed);
    }

    /// Turns the mode of [`Gpu::set_deterministic`] on until the result is dropped, whatever is set.
    pub fn deterministic_mode(&'static self) -> DeterministicMode {
        self.n_deterministic.fetch_add(1, Ordering::Relaxed);
        DeterministicMode(self)
    }

    /// Whether the mode is on: it was set, or a [`DeterministicMode`] lives.
    pub fn is_deterministic(&self) -> bool {
        self.is_deterministic.load(Ordering::Relaxed) || self.n_deterministic.load(Ordering::Relaxed) > 0
    }

    /// Sets whether layers in [`MatmulMode::F32x3`](crate::ops::MatmulMode::F32x3) split the factors of products of any size, also where
    /// others are faster: for a check of small models.
    pub fn set_splits_all(&self, splits_all: bool) {
        self.splits_all.store(splits_all, Ordering::Relaxed);
    }

    /// The setting of [`Gpu::set_splits_all`]; initially false.
    pub(super) fn splits_all(&self) -> bool {
        self.splits_all.load(Ordering::Relaxed)
    }

    /// Sets whether new matmuls choose their algorithm by time.
    pub(super) fn set_choosing(&self, is_choosing: bool) {
        self.is_choosing.store(is_choosing, Ordering::Relaxed);
    }

    /// The setting of [`Gpu::set_choosing`]; initially false.
    pub(super) fn is_choosing(&self) -> bool {
        self.is_choosing.load(Ordering::Relaxed)
    }

    /// Enqueues `work`, next to which collectives of `n_blocks` thread blocks run, each on a multiprocessor that it holds until it is
    /// done: matmuls are made for the others. On GPUs from Hopper on their kernels divide the work among all multiprocessors
    /// beforehand, so that the part of one that is held would take as long again.
    ///
    /// Without effect in the deterministic mode, in which an algorithm must not depend on the number of ranks.
    ///
    /// Source: pytorch#143988; `CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET` in cublasLt.h.
    pub fn next_to_collectives<R>(&self, n_blocks: u32, work: impl FnOnce() -> R) -> R {
        let before = self.n_held.swap(n_blocks, Ordering::Relaxed);
        let result = work();
        self.n_held.store(before, Ordering::Relaxed);
        result
    }

    /// State on which the choice of a matmul's algorithm depends.
    pub(super) fn matmul_conditions(&self) -> Conditions {
        let is_deterministic = self.is_deterministic();
        let (all, n_held) = (self.info.multiprocessors, self.n_held.load(Ordering::Relaxed));
        let is_possible = (1..all).contains(&n_held) && !is_deterministic;
        Conditions { is_deterministic, n_free: if is_possible { all - n_held } else { 0 } }
    }

    /// Returns the kernel `name` of `source`; the first use of a source in a format compiles or loads it.
    ///
    /// # Errors
    /// [`KernelError::Compile`]; [`KernelError::DeviceUnavailable`] if the compiler is missing; [`KernelError::Cuda`].
    pub(super) fn kernel(&self, source: &Source, name: &'static str) -> Result<sys::CUfunction> {
        self.modules.kernel(self.context, &self.info, source, name)
    }

    /// Its description.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// The driver's context.
    pub fn context(&self) -> sys::CUcontext {
        self.context.raw()
    }

    /// The stream of this kind.
    pub fn stream(&self, kind: StreamKind) -> &Stream {
        match kind {
            StreamKind::Compute => self.compute(),
            StreamKind::Communication => match &self.urgent {
                Ok(urgent) if !self.off.contains(GpuFeature::StreamPriorities) => urgent,
                _ => &self.communication,
            },
            StreamKind::Copy => &self.copy,
        }
    }

    /// The stream of all operations; of those [beside](super::Beside) it, the second or [third](super::BesideMatmuls) stream.
    pub fn compute(&self) -> &Stream {
        match SIDE.get() {
            Side::Compute => &self.compute,
            Side::Second => &self.communication,
            Side::Third { .. } => &self.third,
        }
    }

    /// The second stream for operations.
    pub(super) fn beside(&self) -> &Stream {
        &self.communication
    }

    /// The third stream for operations.
    pub(super) fn third(&self) -> &Stream {
        &self.third
    }

    /// Blocks until all work enqueued on this device is complete: operations, copies and collectives.
    ///
    /// Operations are asynchronous: without this call, a clock measures only the time to enqueue them.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for failed earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        check_driver(self.index(), "cuCtxSynchronize", result::ctx::synchronize())
    }
}

/// Keeps the deterministic mode of a GPU on while it lives: [`Gpu::deterministic_mode`].
#[derive(Debug)]
#[must_use = "the mode ends with it"]
pub struct DeterministicMode(&'static Gpu);

impl Drop for DeterministicMode {
    fn drop(&mut self) {
        self.0.n_deterministic.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory of the [gate](Gpu::gate_updates) of updates, and a stream of its own to write and read it while others wait.
#[derive(Debug)]
pub(super) struct GateMemory {
    /// [`super::memory::GATE_WORDS`] in device memory.
    pub(super) words: sys::CUdeviceptr,
    pub(super) stream: Stream,
    pub(super) host: Pinned,
}

/// Events, which others own, and labels of the first of them.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) events: Vec<sys::CUevent>,
    pub(super) labels: Vec<u8>,
    /// Begin and end of each piece of work of the communication stream.
    pub(super) of_collectives: Vec<sys::CUevent>,
    /// Bytes of the first pieces.
    pub(super) n_bytes: Vec<u64>,
    /// Whether these are marked.
    pub(super) marks_collectives: bool,
    /// Whether there were more marks than events.
    pub(super) is_full: bool,
    /// Whether a graph holds some of the events.
    pub(super) is_captured: bool,
}
