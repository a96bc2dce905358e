//! A tensor in pinned host memory, for threads that fill several of them while older ones travel.

use std::sync::atomic::{AtomicBool, Ordering};

use super::memory::Pinned;
use super::{Gpu, Stream, Timer};
use crate::error::Operand;
use crate::view::{TensorMut, TensorRef};
use crate::{DType, KernelError, Result, Shape};

/// Page-locked host memory with shape and dtype, which [`Upload::send_from`](super::Upload::send_from) sends.
///
/// A round is: write to [`PinnedTensor::host`] on any thread, hand it to the thread that sends, and hand it back once
/// [`PinnedTensor::is_sent`] or [`PinnedTensor::wait_sent`] said that the copy is over. Only these two, and
/// [`PinnedTensor::sent_ms`], ask the driver; until one of them did, `host` refuses, also where the copy is over by then.
#[derive(Debug)]
pub struct PinnedTensor {
    host: Pinned,
    shape: Shape,
    dtype: DType,
    gpu: &'static Gpu,
    /// Around the last copy.
    timer: Timer,
    was_sent: bool,
    /// A copy was asked for, and nobody knows yet that it is over.
    is_travelling: AtomicBool,
}

impl PinnedTensor {
    /// Zeros, for copies to this GPU.
    ///
    /// # Errors
    /// [`KernelError::BadShape`]; [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu, dims: &[usize], dtype: DType) -> Result<Self> {
        let shape = Shape::new(dims)?;
        Ok(PinnedTensor {
            host: Pinned::zeroed(gpu, shape.numel().saturating_mul(dtype.size_bytes()))?,
            shape,
            dtype,
            gpu,
            timer: Timer::new(gpu)?,
            was_sent: false,
            is_travelling: AtomicBool::new(false),
        })
    }

    /// The elements, to write to. Neither waits nor calls the driver.
    ///
    /// # Errors
    /// [`KernelError::StillSending`] from a copy on until it is known to be over.
    pub fn host(&mut self) -> Result<TensorMut<'_>> {
        if *self.is_travelling.get_mut() {
            return Err(KernelError::StillSending { shape: self.shape, dtype: self.dtype });
        }
        Ok(TensorMut::from_bytes(self.host.as_mut_slice(), self.dtype, self.shape))
    }

    /// The elements, to read, at any time.
    pub fn view(&self) -> TensorRef<'_> {
        TensorRef::from_bytes(self.host.as_slice(), self.dtype, self.shape)
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The GPU that it can be sent to.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Whether no copy is under way, so that it can be written to again. Does not wait.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for failed earlier work of the device.
    pub fn is_sent(&self) -> Result<bool> {
        if self.is_travelling.load(Ordering::Acquire) && self.timer.is_over()? {
            self.is_travelling.store(false, Ordering::Release);
        }
        Ok(!self.is_travelling.load(Ordering::Acquire))
    }

    /// Blocks until no copy is under way.
    ///
    /// # Errors
    /// As [`PinnedTensor::is_sent`].
    pub fn wait_sent(&self) -> Result<()> {
        if self.is_travelling.load(Ordering::Acquire) {
            self.timer.wait()?;
            self.is_travelling.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Milliseconds that the last copy took, by the device's clock, without what it waited for before; `None` before the first
    /// one and as long as one is under way. Does not wait.
    ///
    /// # Errors
    /// As [`PinnedTensor::is_sent`].
    pub fn sent_ms(&self) -> Result<Option<f64>> {
        if !self.was_sent || !self.is_sent()? {
            return Ok(None);
        }
        self.timer.elapsed_ms().map(Some)
    }

    /// Has `copy` put a copy of these bytes into `stream`, and marks where it begins and ends.
    pub(super) fn send(&mut self, stream: &Stream, copy: impl FnOnce(*const u8) -> Result<()>) -> Result<()> {
        self.timer.start(stream)?;
        // Before anything can fail behind which the copy may run.
        *self.is_travelling.get_mut() = true;
        copy(self.host.as_ptr())?;
        self.timer.stop(stream)?;
        self.was_sent = true;
        Ok(())
    }

    /// How error messages show it: by where it goes to.
    pub(super) fn operand(&self, name: &'static str) -> Operand {
        Operand { name, shape: self.shape, dtype: self.dtype, device: self.gpu.device() }
    }
}

impl Drop for PinnedTensor {
    fn drop(&mut self) {
        // The copy must not read memory that is given back; its errors surface elsewhere.
        let _ = self.wait_sent();
    }
}
