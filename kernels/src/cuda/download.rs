//! From the device to the host, without waiting: numbers that are read a step late, or all that a run stands in.

use super::memory::Pinned;
use super::{Event, Gpu, check_driver};
use crate::error::Operand;
use crate::ops::check;
use crate::view::TensorRef;
use crate::{DType, Element, KernelError, Result, Shape};

/// Page-locked host memory into which numbers of the device are copied behind the work that computes them, at the full rate of the
/// bus.
#[derive(Debug)]
pub struct Download {
    host: Pinned,
    gpu: &'static Gpu,
    arrived: Event,
    bytes: usize,
    /// The copy is known to be over.
    is_over: bool,
}

impl Download {
    /// Room for `bytes` bytes.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        Ok(Download {
            host: Pinned::zeroed(gpu, bytes)?,
            gpu,
            arrived: Event::new(gpu)?,
            bytes: 0,
            is_over: true,
        })
    }

    /// Starts the copy of `from`, behind all work of the compute stream so far.
    ///
    /// # Errors
    /// As [`Download::start_all`].
    pub fn start(&mut self, from: TensorRef<'_>) -> Result<()> {
        self.start_all(&[from])
    }

    /// Starts the copies of these tensors, one behind the other in memory, behind all work of the compute stream so far. One wait is
    /// for all of them.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] (in bytes) for more than there is room; [`KernelError::DeviceMismatch`] for tensors of another
    /// device; [`KernelError::Cuda`].
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
        // Behind what runs already, also where a part of it was refused.
        if let Err(error) = self.arrived.record(self.gpu.compute()) {
            // Nothing marks where the copies end: they are waited for here.
            self.gpu.compute().synchronize()?;
            return Err(error);
        }
        copied?;
        self.bytes = end;
        Ok(())
    }

    /// Puts the copies into the compute stream.
    fn copy(&mut self, parts: &[TensorRef<'_>]) -> Result<()> {
        let (mut to, stream) = (self.host.as_ptr(), self.gpu.compute().raw());
        for part in parts {
            let from = part.cuda()?;
            if from.is_empty() {
                continue;
            }
            // SAFETY: both sides hold that many bytes, the host's by the check of all parts; it is read, written again and freed only
            // once the event behind the copy was passed; the device's is freed, and written again, behind it.
            let copied = unsafe {
                cudarc::driver::sys::cuMemcpyDtoHAsync_v2(to.cast(), from.ptr(), from.len_bytes(), stream)
            };
            check_driver(self.gpu.index(), "cuMemcpyDtoHAsync", copied.result())?;
            to = to.wrapping_add(from.len_bytes());
        }
        Ok(())
    }

    /// What was copied last. Blocks until it is there.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for whatever went wrong in the work before it.
    pub fn wait<T: Element>(&mut self) -> Result<&[T]> {
        self.arrived.synchronize()?;
        self.is_over = true;
        Ok(self.values())
    }

    /// What was copied last, for any thread, if [`Download::wait`] was called since. Neither waits nor calls the driver.
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
        // The copy must not write to memory that is given back.
        let _ = self.arrived.synchronize();
    }
}
