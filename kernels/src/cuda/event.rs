//! Events: points in streams that other streams and the host wait for, and the time between two of them.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::context::Stream;
use super::driver::{check_driver, check_status, driver};
use super::gpu::Gpu;
use crate::{Device, IntoDevice, KernelError, Result};

/// An event: a point in a stream that another stream or the host can wait for.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    gpu: &'static Gpu,
}

// SAFETY: the driver's functions on events may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event of a GPU, with timing.
    ///
    /// ```
    /// use ddp_kernels::cuda::{Event, Gpu, StreamKind};
    /// use ddp_kernels::{DType, Device, Tensor};
    ///
    /// if let device @ Device::Cuda(index) = Device::cuda(0).available_or_cpu() {
    ///     let (x, stream) = (Tensor::randn(&[64, 64], DType::F32, device, 0)?, Gpu::get(index)?.stream(StreamKind::Compute));
    ///     let (start, end) = (Event::new(device)?, Event::new(device)?);
    ///     start.record(stream)?;
    ///     let y = x.matmul(&x)?;
    ///     end.record(stream)?;
    ///     println!("{} takes {} ms", y.shape(), start.elapsed_time(&end)?);
    /// }
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for the CPU; the errors of [`Device::ensure_available`]; [`KernelError::Cuda`].
    ///
    /// Source: `torch.cuda.Event(enable_timing=True)`.
    pub fn new(device: impl IntoDevice) -> Result<Self> {
        match device.into_device()? {
            Device::Cuda(index) => Self::timed(Gpu::get(index)?),
            Device::Cpu => {
                let problem = "an event is a point in a stream of a GPU, and the CPU has none";
                Err(KernelError::misuse("Event", problem, "`timed(device, || ..)` takes times on both"))
            }
        }
    }

    /// Creates an event without timing, which is cheaper to wait for.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    #[doc(hidden)]
    pub fn untimed(gpu: &'static Gpu) -> Result<Self> {
        Self::with_flags(gpu, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event with timing.
    pub(super) fn timed(gpu: &'static Gpu) -> Result<Self> {
        Self::with_flags(gpu, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(gpu: &'static Gpu, flags: sys::CUevent_flags) -> Result<Self> {
        gpu.bind()?;
        let raw = check_driver(gpu.index(), "cuEventCreate", result::event::create(flags))?;
        Ok(Event { raw, gpu })
    }

    /// Records the event on `stream`, after all work enqueued there so far.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: both handles are alive and of one device.
        let recorded = unsafe { result::event::record(self.raw, stream.raw()) };
        check_driver(self.gpu.index(), "cuEventRecord", recorded)
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Milliseconds from this event to a later one of the same GPU; blocks until that has passed.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for an event that was not recorded.
    ///
    /// Source: `torch.cuda.Event.elapsed_time`.
    pub fn elapsed_time(&self, later: &Event) -> Result<f64> {
        later.synchronize()?;
        self.ms_until(later)
    }

    /// Milliseconds from this event to a later one, both with timing; both have passed.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub(super) fn ms_until(&self, later: &Event) -> Result<f64> {
        let driver = driver().expect("an event belongs to an open device");
        let mut ms = 0.0;
        // SAFETY: the pointer is valid for one number; both events are alive. Others than timed and recorded ones of one device are an error.
        let status = unsafe { (driver.elapsed_time)(&raw mut ms, self.raw, later.raw) };
        check_status(self.gpu.index(), "cuEventElapsedTime", status)?;
        Ok(f64::from(ms))
    }

    /// Whether all work before the event is complete; true for an event that was never recorded.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for failed earlier work of the device.
    pub fn is_done(&self) -> Result<bool> {
        self.gpu.bind()?;
        // SAFETY: the handle is alive.
        match unsafe { result::event::query(self.raw) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check_driver(self.gpu.index(), "cuEventQuery", other).map(|()| true),
        }
    }

    /// Blocks until all work before the event is complete.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for failed earlier work of the device.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the handle is alive.
        let done = unsafe { result::event::synchronize(self.raw) };
        check_driver(self.gpu.index(), "cuEventSynchronize", done)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // A failure cannot be reported; it leaks a handle at most.
        if self.gpu.bind().is_ok() {
            // SAFETY: created in `with_flags`, destroyed once; the driver keeps it as long as streams need it.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

impl Stream {
    /// Makes work enqueued on this stream from now on wait for `event`.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.gpu.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are alive.
        let waited = unsafe { result::stream::wait_event(self.raw(), event.raw, flags) };
        check_driver(event.gpu.index(), "cuStreamWaitEvent", waited)
    }
}

/// Measures time between two points of a stream on the device.
#[derive(Debug, Clone)]
pub struct Timer {
    events: Arc<[Event; 2]>,
}

impl Timer {
    /// Creates a timer for streams of this device.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu) -> Result<Self> {
        Ok(Timer { events: Arc::new([Event::timed(gpu)?, Event::timed(gpu)?]) })
    }

    /// Records the start on `stream`.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn start(&self, stream: &Stream) -> Result<()> {
        self.events[0].record(stream)
    }

    /// Records the end.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn stop(&self, stream: &Stream) -> Result<()> {
        self.events[1].record(stream)
    }

    /// The end.
    pub(crate) fn end(&self) -> &Event {
        &self.events[1]
    }

    /// Whether the end has passed, so that [`Timer::elapsed_ms`] would not block; true if no end was recorded.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn is_over(&self) -> Result<bool> {
        self.events[1].is_done()
    }

    /// Blocks until the end has passed.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn wait(&self) -> Result<()> {
        self.events[1].synchronize()
    }

    /// Milliseconds from start to end; blocks until the end has passed.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn elapsed_ms(&self) -> Result<f64> {
        let [start, stop] = &*self.events;
        start.elapsed_time(stop)
    }
}
