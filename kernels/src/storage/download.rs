//! Asynchronous copies from device to host: numbers that are read a step late, or all state of a run.

use super::view::TensorRef;
use crate::base::check;
use crate::base::error::Operand;
use crate::cuda::pinned::Pinned;
use crate::cuda::{Event, Gpu, check_driver};
use crate::{DType, Element, KernelError, Result, Shape};

/// Page-locked host memory that receives copies from the device after the work that computes them, at full bus bandwidth.
#[derive(Debug)]
pub struct Download {
    host: Pinned,
    gpu: &'static Gpu,
    arrived: Event,
    bytes: usize,
    /// The copy is known to be complete.
    is_over: bool,
}

impl Download {
    /// Allocates `bytes` bytes.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        Ok(Download {
            host: gpu.host_memory(bytes)?,
            gpu,
            arrived: Event::new(gpu)?,
            bytes: 0,
            is_over: true,
        })
    }

    /// Enqueues the copy of `from` on the compute stream.
    ///
    /// # Errors
    /// Same as [`Download::start_all`].
    pub fn start(&mut self, from: TensorRef<'_>) -> Result<()> {
        self.start_all(&[from])
    }

    /// Enqueues the copies of these tensors, contiguous in host memory, on the compute stream. One wait covers all of them.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] (in bytes) if they do not fit; [`KernelError::DeviceMismatch`] for tensors on another device;
    /// [`KernelError::Cuda`].
    pub fn start_all(&mut self, parts: &[TensorRef<'_>]) -> Result<()> {
        const OP: &str = "download";
        let len = self.host.as_slice::<u8>().len();
        let to =
            Operand { name: "to", shape: Shape::vector(len), dtype: DType::U8, device: self.gpu.device() };
        parts.iter().try_for_each(|part| check::same_device(OP, &[part.operand("from"), to]))?;
        let bytes = |part: &TensorRef<'_>| part.numel() * part.dtype().size_bytes();
        let end = parts.iter().map(bytes).sum();
        if end > len {
            return Err(KernelError::OutOfRange { op: OP, start: 0, end, len });
        }
        self.gpu.bind()?;
        (self.bytes, self.is_over) = (0, false);
        let copied = self.copy(parts);
        // Recorded even after a failed copy: others were enqueued before it.
        if let Err(error) = self.arrived.record(self.gpu.compute()) {
            // No event marks the end of the copies, so wait for them here.
            self.gpu.compute().synchronize()?;
            return Err(error);
        }
        copied?;
        self.bytes = end;
        Ok(())
    }

    /// Enqueues the copies on the compute stream.
    fn copy(&mut self, parts: &[TensorRef<'_>]) -> Result<()> {
        let (mut to, stream) = (self.host.as_ptr(), self.gpu.compute().raw());
        for part in parts {
            let from = part.cuda()?;
            if from.is_empty() {
                continue;
            }
            // SAFETY: both sides hold that many bytes, the host's by the check of all parts; host memory is read, written again and
            // freed only once the event after the copy has passed; device memory is freed and written again after it in the stream.
            let copied = unsafe {
                cudarc::driver::sys::cuMemcpyDtoHAsync_v2(to.cast(), from.ptr(), from.len_bytes(), stream)
            };
            check_driver(self.gpu.index(), "cuMemcpyDtoHAsync", copied.result())?;
            to = to.wrapping_add(from.len_bytes());
        }
        Ok(())
    }

    /// Waits for the last copy and returns its bytes.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for failed work before the copy.
    pub fn wait<T: Element>(&mut self) -> Result<&[T]> {
        self.arrived.synchronize()?;
        self.is_over = true;
        Ok(self.values())
    }

    /// The bytes of the last copy, on any thread, if [`Download::wait`] was called after it. Neither waits nor calls the driver.
    pub fn arrived<T: Element>(&self) -> Option<&[T]> {
        self.is_over.then(|| self.values())
    }

    fn values<T: Element>(&self) -> &[T] {
        &self.host.as_slice::<T>()[..self.bytes / size_of::<T>()]
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
        // The copy must not write to freed memory.
        let _ = self.arrived.synchronize();
    }
}
