//! Streams: queues of work on a device.

use cudarc::driver::{result, sys};

use super::call::check_driver;
use super::context::Context;
use crate::Result;

/// A queue of work on one device, which runs in order.
///
/// It is not synchronized with the legacy default stream.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    context: Context,
}

// SAFETY: the driver's functions on streams may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream on the device of this context, which is current; a lower `priority` is more urgent, as in CUDA.
    pub(super) fn new(context: Context, priority: i32) -> Result<Self> {
        let raw = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority);
        Ok(Stream { raw: check_driver(context.index(), "cuStreamCreateWithPriority", raw)?, context })
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
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
