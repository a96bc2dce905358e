//! The driver's context of a device, which must be current on a thread that calls the driver, and its streams.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{result, sys};

use super::driver::check_driver;
use crate::Result;

thread_local! {
    /// The device whose context this crate made current on this thread.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The primary context of a device, kept as long as the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    index: u32,
    raw: sys::CUcontext,
}

// SAFETY: the driver's functions may be called with the handle from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the context of the device of this index and makes it current.
    pub(super) fn open(index: u32) -> Result<Self> {
        let device = check_driver(index, "cuDeviceGet", result::device::get(index as i32))?;
        // SAFETY: the device exists; the context is never released.
        let raw = unsafe { result::primary_ctx::retain(device) };
        let context = Context { index, raw: check_driver(index, "cuDevicePrimaryCtxRetain", raw)? };
        context.bind()?;
        Ok(context)
    }

    /// Makes the context current on the calling thread.
    pub(super) fn bind(self) -> Result<()> {
        if CURRENT.get() == Some(self.index) {
            return Ok(());
        }
        // SAFETY: the context is alive as long as the process.
        check_driver(self.index, "cuCtxSetCurrent", unsafe { result::ctx::set_current(self.raw) })?;
        CURRENT.set(Some(self.index));
        Ok(())
    }

    /// Index of the device among the devices of the process.
    pub(super) fn index(self) -> u32 {
        self.index
    }

    /// The driver's handle.
    pub(super) fn raw(self) -> sys::CUcontext {
        self.raw
    }
}

/// A queue of work on one device, which runs in order.
///
/// It is not synchronized with the legacy default stream.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    context: Context,
    /// Whether the newest work is a kernel of this crate.
    ends_in_kernel: AtomicBool,
}

// SAFETY: the driver's functions on streams may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream on the device of this context, which is current; a lower `priority` is more urgent, as in CUDA.
    pub(super) fn new(context: Context, priority: i32) -> Result<Self> {
        let raw = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority);
        let raw = check_driver(context.index(), "cuStreamCreateWithPriority", raw)?;
        Ok(Stream { raw, context, ends_in_kernel: AtomicBool::new(false) })
    }

    /// The driver's handle, for work of any kind.
    pub fn raw(&self) -> sys::CUstream {
        self.ends_in_kernel.store(false, Ordering::Relaxed);
        self.raw
    }

    /// The driver's handle for a kernel of this crate, and whether it follows another one immediately: no copy, matmul, event or graph
    /// between them.
    pub(super) fn for_kernel(&self) -> (sys::CUstream, bool) {
        (self.raw, self.ends_in_kernel.swap(true, Ordering::Relaxed))
    }

    /// Makes the stream's context current on the calling thread.
    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind()
    }

    /// Blocks until all work enqueued on this stream is complete.
    ///
    /// Errors of that work surface here.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the handle is alive.
        let done = unsafe { result::stream::synchronize(self.raw) };
        check_driver(self.context.index(), "cuStreamSynchronize", done)
    }
}
