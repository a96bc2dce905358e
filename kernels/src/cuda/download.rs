//! From the device to the host, without waiting: read a step late.

use super::memory::Pinned;
use super::{Event, Gpu, check_driver};
use crate::view::TensorRef;
use crate::{Element, KernelError, Result};

/// Host memory into which a few numbers of the device are copied behind the work that computes them.
#[derive(Debug)]
pub struct Download {
    host: Pinned,
    gpu: &'static Gpu,
    arrived: Event,
    bytes: usize,
}

impl Download {
    /// Room for `bytes` bytes.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        Ok(Download { host: Pinned::zeroed(gpu, bytes)?, gpu, arrived: Event::new(gpu)?, bytes: 0 })
    }

    /// Starts the copy of `from`, behind all work of the compute stream so far.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more than there is room; [`KernelError::Cuda`].
    pub fn start(&mut self, from: TensorRef<'_>) -> Result<()> {
        let from = from.cuda()?;
        let (end, len) = (from.len_bytes(), self.host.as_slice::<u8>().len());
        if end > len {
            return Err(KernelError::OutOfRange { op: "download", start: 0, end, len });
        }
        let (to, stream) = (self.host.as_ptr(), self.gpu.compute());
        if end > 0 {
            // SAFETY: both sides hold that many bytes; the host's is read and freed only once the event was passed.
            let copied = unsafe {
                cudarc::driver::sys::cuMemcpyDtoHAsync_v2(to.cast(), from.ptr(), end, stream.raw())
            };
            check_driver(self.gpu.index(), "cuMemcpyDtoHAsync", copied.result())?;
        }
        self.bytes = end;
        self.arrived.record(stream)
    }

    /// What was copied last. Blocks until it is there.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for whatever went wrong in the work before it.
    pub fn wait<T: Element>(&mut self) -> Result<&[T]> {
        self.arrived.synchronize()?;
        Ok(&self.host.as_slice::<T>()[..self.bytes / size_of::<T>()])
    }

    /// Whether [`Download::wait`] would not block.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn is_there(&self) -> Result<bool> {
        self.arrived.is_done()
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The copy must not write to memory that is given back.
        let _ = self.arrived.synchronize();
    }
}
