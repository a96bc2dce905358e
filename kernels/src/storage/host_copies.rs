//! Asynchronous copies between host and device through page-locked memory.

use super::pinned_tensor::PinnedTensor;
use super::tensor::Tensor;
use super::view::{TensorMut, TensorRef};
use crate::base::check;
use crate::base::error::Operand;
use crate::cuda::pinned::Pinned;
use crate::cuda::{Event, Gpu, Stream, StreamKind, check_driver};
use crate::{DType, Element, KernelError, MemoryUse, Result, Shape};

/// Pinned host memory, and a device tensor that is filled from it.
///
/// One cycle: write to [`Upload::host`], call [`Upload::send`], enqueue work that reads [`Upload::device`], call
/// [`Upload::consumed`]. The copy runs on the copy stream: it waits for the work that reads the previous contents, and the
/// compute stream waits for it. With two `Upload`s in alternation, the copy of one overlaps the work on the other.
///
/// If other threads fill host memory, there are more buffers on the host than on the device: then [`Upload::send_from`]
/// replaces the first two calls.
#[derive(Debug)]
pub struct Upload {
    /// Allocated on first use.
    host: Option<Pinned>,
    device: Tensor,
    gpu: &'static Gpu,
    /// End of the last copy from `host`.
    sent: Event,
    consumed: Event,
}

impl Upload {
    /// Allocates zeros on host and device.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`], also for pinned memory; [`KernelError::BadShape`]; [`KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu, dims: &[usize], dtype: DType) -> Result<Self> {
        let mut upload = Self::without_host(gpu, dims, dtype)?;
        upload.own_host()?;
        Ok(upload)
    }

    /// Allocates zeros on the device, for copies from [`PinnedTensor`]s. Host memory of its own is allocated on first use.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`KernelError::BadShape`]; [`KernelError::Cuda`].
    pub fn without_host(gpu: &'static Gpu, dims: &[usize], dtype: DType) -> Result<Self> {
        let mut device = Tensor::zeros_for(MemoryUse::Data, dims, dtype, gpu.device())?;
        // Its memory is written by address from now on, so no other tensor may share it.
        device.view_mut();
        let upload =
            Upload { host: None, device, gpu, sent: Event::untimed(gpu)?, consumed: Event::untimed(gpu)? };
        // The tensor was zeroed on the compute stream.
        upload.consumed.record(gpu.compute())?;
        Ok(upload)
    }

    fn own_host(&mut self) -> Result<&mut Pinned> {
        let host = match self.host.take() {
            Some(host) => host,
            None => self.gpu.host_memory(self.device.size_bytes())?,
        };
        Ok(self.host.insert(host))
    }

    /// The host memory, for writing. Blocks while the last copy still reads it; with two `Upload`s in alternation, it usually does
    /// not.
    ///
    /// # Errors
    /// [`KernelError::Cuda`]; [`KernelError::OutOfMemory`] in the first call after [`Upload::without_host`].
    pub fn host(&mut self) -> Result<TensorMut<'_>> {
        self.sent.synchronize()?;
        let (dtype, shape) = (self.device.dtype(), self.device.shape());
        Ok(TensorMut::from_bytes(self.own_host()?.as_mut_slice(), dtype, shape))
    }

    /// Enqueues the copy of the first `n_elements` elements; work enqueued after this call sees them.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for too many elements; [`KernelError::Cuda`].
    pub fn send(&mut self, n_elements: usize) -> Result<()> {
        self.check_len("send", n_elements, self.device.numel())?;
        let from = self.own_host()?.as_ptr();
        let copy = self.begin_copy()?;
        // SAFETY: host memory holds as much as the device tensor; `host` lends it only after `sent` has passed, and `drop` waits
        // for that too.
        unsafe { self.copy(from, n_elements) }?;
        self.end_copy(copy)
    }

    /// Enqueues a copy as [`Upload::send`] does, from memory that another thread may have filled. That memory can be written to
    /// again once [`PinnedTensor::is_sent`] returned true or [`PinnedTensor::wait_sent`] returned.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more elements than either side holds; [`KernelError::DTypeMismatch`];
    /// [`KernelError::DeviceMismatch`] for a pinned tensor of another GPU; [`KernelError::Cuda`].
    pub fn send_from(&mut self, from: &mut PinnedTensor, n_elements: usize) -> Result<()> {
        const OP: &str = "send_from";
        let (from_op, device_op) = (from.operand("from"), self.device.view().operand("device"));
        check::same_kind(OP, &[from_op, device_op])?;
        self.check_len(OP, n_elements, self.device.numel().min(from.shape().numel()))?;
        let copy = self.begin_copy()?;
        // SAFETY: both sides hold that many elements of one type; `from` frees its memory, or lends it for writing, only once the
        // event that it records after the copy has passed.
        from.send(copy, |from| unsafe { self.copy(from, n_elements) })?;
        self.gpu.compute().wait(from.end())
    }

    fn check_len(&self, op: &'static str, end: usize, len: usize) -> Result<()> {
        if end > len { Err(KernelError::OutOfRange { op, start: 0, end, len }) } else { Ok(()) }
    }

    /// The copy stream, after it was made to wait for the work that reads the last copy.
    fn begin_copy(&self) -> Result<&'static Stream> {
        let copy = self.gpu.stream(StreamKind::Copy);
        copy.wait(&self.consumed)?;
        Ok(copy)
    }

    /// Enqueues the copy on the copy stream.
    ///
    /// # Safety
    /// `from` is pinned memory of at least `n_elements` elements, no more than the device tensor has, and neither freed nor
    /// written to before the copy is complete.
    unsafe fn copy(&self, from: *const u8, n_elements: usize) -> Result<()> {
        let bytes = n_elements * self.device.dtype().size_bytes();
        let (to, copy) = (self.device.view().cuda()?.ptr(), self.gpu.stream(StreamKind::Copy));
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both sides hold that many bytes and stay alive, as the caller guarantees.
        let copied = unsafe { cudarc::driver::sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, copy.raw()) };
        check_driver(self.gpu.index(), "cuMemcpyHtoDAsync", copied.result())
    }

    /// Makes work enqueued from now on wait for the copy.
    fn end_copy(&self, copy: &Stream) -> Result<()> {
        self.sent.record(copy)?;
        self.gpu.compute().wait(&self.sent)
    }

    /// The device tensor.
    pub fn device(&self) -> &Tensor {
        &self.device
    }

    /// The device tensor, for work on the compute stream that fills it instead of a copy from the host.
    pub fn device_mut(&mut self) -> TensorMut<'_> {
        self.device.view_mut()
    }

    /// Marks that the work that reads the device tensor has been enqueued: the next copy waits for it.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn consumed(&mut self) -> Result<()> {
        self.consumed.record(self.gpu.compute())
    }

    /// Writes `values` to the start of host memory and sends them.
    ///
    /// # Errors
    /// Same as [`Upload::host`] and [`Upload::send`]; [`KernelError::DTypeUnsupported`] for another type.
    pub fn send_slice<T: Element>(&mut self, values: &[T]) -> Result<()> {
        let n = values.len();
        self.check_len("send_slice", n, self.device.numel())?;
        self.host()?.into_slice::<T>("send_slice", "host")?[..n].copy_from_slice(values);
        self.send(n)
    }

    /// Sends the elements of a host view of the same dtype.
    ///
    /// # Errors
    /// Same as [`Upload::send_slice`].
    pub fn send_view(&mut self, view: TensorRef<'_>) -> Result<()> {
        const OP: &str = "send_view";
        let (n, host) = (view.numel(), Operand { name: "host", ..self.device.view().operand("device") });
        check::same_dtype(OP, &[view.operand("view"), host])?;
        self.check_len(OP, n, self.device.numel())?;
        let bytes = view.as_bytes(OP, "view")?;
        self.host()?.into_bytes(OP, "host")?[..bytes.len()].copy_from_slice(bytes);
        self.send(n)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The copy must not read freed memory; its errors surface elsewhere.
        let _ = self.sent.synchronize();
    }
}

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
            arrived: Event::untimed(gpu)?,
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
        self.enqueue(0, parts)
    }

    /// Enqueues the copy of one more tensor, which follows those since [`Download::start_all`] in host memory.
    ///
    /// # Errors
    /// Same as [`Download::start_all`]; the copies before are lost too.
    pub fn append(&mut self, from: TensorRef<'_>) -> Result<()> {
        self.enqueue(self.bytes, &[from])
    }

    /// Enqueues the copies to host memory from the byte `start` on.
    fn enqueue(&mut self, start: usize, parts: &[TensorRef<'_>]) -> Result<()> {
        const OP: &str = "download";
        let len = self.host.as_slice::<u8>().len();
        let to =
            Operand { name: "to", shape: Shape::vector(len), dtype: DType::U8, device: self.gpu.device() };
        parts.iter().try_for_each(|part| check::same_device(OP, &[part.operand("from"), to]))?;
        let bytes = |part: &TensorRef<'_>| part.numel() * part.dtype().size_bytes();
        let end = start + parts.iter().map(bytes).sum::<usize>();
        if end > len {
            return Err(KernelError::OutOfRange { op: OP, start, end, len });
        }
        self.gpu.bind()?;
        (self.bytes, self.is_over) = (0, false);
        let copied = self.copy(start, parts);
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
    fn copy(&mut self, start: usize, parts: &[TensorRef<'_>]) -> Result<()> {
        let (mut to, stream) = (self.host.as_ptr().wrapping_add(start), self.gpu.compute().raw());
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
