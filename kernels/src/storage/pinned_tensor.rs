//! A tensor in pinned host memory, for threads that fill several of them while others are being copied.

use std::sync::atomic::{AtomicBool, Ordering};

use super::view::{TensorMut, TensorRef};
use crate::base::check;
use crate::base::error::Operand;
use crate::cuda::pinned::Pinned;
use crate::cuda::{Event, Gpu, Stream, Timer, check_driver};
use crate::{DType, KernelError, Result, Shape};

/// Page-locked host memory with shape and dtype, the source of [`Upload::send_from`](crate::Upload::send_from).
///
/// One cycle: write to [`PinnedTensor::host`] on any thread, pass the tensor to the thread that sends, and pass it back once
/// [`PinnedTensor::is_sent`] returned true or [`PinnedTensor::wait_sent`] returned. Only these two and
/// [`PinnedTensor::sent_ms`] query the driver; before one of them has seen the end of the copy, `host` returns an error.
#[derive(Debug)]
pub struct PinnedTensor {
    host: Pinned,
    shape: Shape,
    dtype: DType,
    gpu: &'static Gpu,
    /// Start and end of the last copy.
    timer: Timer,
    /// Whether copies are timed.
    is_timed: bool,
    /// Whether the last copy was.
    was_timed: bool,
    /// A copy was enqueued and is not yet known to be complete.
    is_traveling: AtomicBool,
}

impl PinnedTensor {
    /// Creates a tensor of zeros, for copies to this GPU.
    ///
    /// # Errors
    /// [`KernelError::BadShape`]; [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu, dims: &[usize], dtype: DType) -> Result<Self> {
        let shape = Shape::new(dims)?;
        Ok(PinnedTensor {
            host: gpu.host_memory(shape.numel().saturating_mul(dtype.size_bytes()))?,
            shape,
            dtype,
            gpu,
            timer: Timer::new(gpu)?,
            is_timed: true,
            was_timed: false,
            is_traveling: AtomicBool::new(false),
        })
    }

    /// The elements, for writing. Neither waits nor calls the driver.
    ///
    /// # Errors
    /// [`KernelError::StillSending`] while a copy is not known to be complete.
    pub fn host(&mut self) -> Result<TensorMut<'_>> {
        if *self.is_traveling.get_mut() {
            return Err(KernelError::StillSending { shape: self.shape, dtype: self.dtype });
        }
        Ok(TensorMut::from_bytes(self.host.as_mut_slice(), self.dtype, self.shape))
    }

    /// The elements, for reading at any time.
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

    /// The GPU that it can be copied to.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Whether no copy is in progress, so that it can be written to again. Does not wait.
    ///
    /// # Errors
    /// [`KernelError::Cuda`], also for failed earlier work of the device.
    pub fn is_sent(&self) -> Result<bool> {
        if self.is_traveling.load(Ordering::Acquire) && self.timer.is_over()? {
            self.is_traveling.store(false, Ordering::Release);
        }
        Ok(!self.is_traveling.load(Ordering::Acquire))
    }

    /// Blocks until no copy is in progress.
    ///
    /// # Errors
    /// Same as [`PinnedTensor::is_sent`].
    pub fn wait_sent(&self) -> Result<()> {
        if self.is_traveling.load(Ordering::Acquire) {
            self.timer.wait()?;
            self.is_traveling.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Sets whether the next copies are timed, which costs two calls of the driver each; initially true.
    pub fn set_timed(&mut self, is_timed: bool) {
        self.is_timed = is_timed;
    }

    /// Duration of the last copy in ms by the device's clock, without the time it waited in the stream; `None` before the first
    /// copy, while one is in progress, and after one that was not timed. Does not wait.
    ///
    /// # Errors
    /// Same as [`PinnedTensor::is_sent`].
    pub fn sent_ms(&self) -> Result<Option<f64>> {
        if !self.was_timed || !self.is_sent()? {
            return Ok(None);
        }
        self.timer.elapsed_ms().map(Some)
    }

    /// Enqueues a copy of the first elements, as many as `to` holds, on the compute stream. The memory can be written to again once
    /// [`PinnedTensor::is_sent`] returned true or [`PinnedTensor::wait_sent`] returned: with two tensors in turn, one is filled
    /// while the other is copied.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if `to` is longer; [`KernelError::DTypeMismatch`]; [`KernelError::DeviceMismatch`] if `to` is not
    /// on this GPU; [`KernelError::Cuda`].
    pub fn copy_to(&mut self, to: TensorMut<'_>) -> Result<()> {
        const OP: &str = "copy_to";
        check::same_kind(OP, &[self.operand("from"), to.operand("to")])?;
        let (n, len) = (to.numel(), self.shape.numel());
        if n > len {
            return Err(KernelError::OutOfRange { op: OP, start: 0, end: n, len });
        }
        let (bytes, to, gpu) = (n * self.dtype.size_bytes(), to.into_cuda()?, self.gpu);
        if bytes == 0 {
            return Ok(());
        }
        gpu.bind()?;
        self.send(gpu.compute(), |from| {
            // SAFETY: both sides hold that many bytes; `to` is freed in the order of the compute stream, and this memory is freed, or
            // lent for writing, only once the event after the copy has passed.
            let copied = unsafe {
                cudarc::driver::sys::cuMemcpyHtoDAsync_v2(to.ptr(), from.cast(), bytes, gpu.compute().raw())
            };
            check_driver(gpu.index(), "cuMemcpyHtoDAsync", copied.result())
        })
    }

    /// Enqueues `copy` of these bytes on `stream` and records an event after it, and before it if it is timed.
    pub(super) fn send(&mut self, stream: &Stream, copy: impl FnOnce(*const u8) -> Result<()>) -> Result<()> {
        self.was_timed = false;
        if self.is_timed {
            self.timer.start(stream)?;
        }
        // Set before any call that can fail after the copy was enqueued.
        *self.is_traveling.get_mut() = true;
        copy(self.host.as_ptr())?;
        self.timer.stop(stream)?;
        self.was_timed = self.is_timed;
        Ok(())
    }

    /// The end of the last copy.
    pub(super) fn end(&self) -> &Event {
        self.timer.end()
    }

    /// This tensor as error messages show it, on the device it is copied to.
    pub(super) fn operand(&self, name: &'static str) -> Operand {
        Operand { name, shape: self.shape, dtype: self.dtype, device: self.gpu.device() }
    }
}

impl Drop for PinnedTensor {
    fn drop(&mut self) {
        // The copy must not read freed memory; its errors surface elsewhere.
        let _ = self.wait_sent();
    }
}
