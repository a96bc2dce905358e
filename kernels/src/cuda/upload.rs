//! From the host to the device, without waiting: pinned memory in turn with its copy.

use super::memory::Pinned;
use super::{Event, Gpu, PinnedTensor, Stream, StreamKind, check_driver};
use crate::ops::check;
use crate::view::{TensorMut, TensorRef};
use crate::{DType, Element, KernelError, MemoryUse, Result, Tensor};

/// Host memory and a tensor of the device that is filled from it.
///
/// A round is: write to [`Upload::host`], [`Upload::send`], work that reads [`Upload::device`], [`Upload::consumed`]. The
/// copy runs in the copy stream: it waits for the work that read the last one, and the compute stream waits for it. With
/// two of them in turn, a copy runs beside the work on the one before.
///
/// Where other threads fill the host's memory there are more buffers on the host than on the device: then
/// [`Upload::send_from`] takes the place of the first two.
#[derive(Debug)]
pub struct Upload {
    /// None until it is asked for, if ever.
    host: Option<Pinned>,
    device: Tensor,
    gpu: &'static Gpu,
    sent: Event,
    consumed: Event,
}

impl Upload {
    /// Zeros on both sides.
    ///
    /// # Errors
    /// As making a tensor on the device; [`KernelError::OutOfMemory`] for the pinned memory.
    pub fn new(gpu: &'static Gpu, dims: &[usize], dtype: DType) -> Result<Self> {
        let mut upload = Self::without_host(gpu, dims, dtype)?;
        upload.own_host()?;
        Ok(upload)
    }

    /// Zeros on the device, for copies from [`PinnedTensor`]s. Memory of its own on the host is made when it is asked for.
    ///
    /// # Errors
    /// As making a tensor on the device.
    pub fn without_host(gpu: &'static Gpu, dims: &[usize], dtype: DType) -> Result<Self> {
        let device = Tensor::zeros_for(MemoryUse::Data, dims, dtype, gpu.device())?;
        let upload = Upload { host: None, device, gpu, sent: Event::new(gpu)?, consumed: Event::new(gpu)? };
        // The tensor was zeroed in the compute stream.
        upload.consumed.record(gpu.compute())?;
        Ok(upload)
    }

    fn own_host(&mut self) -> Result<&mut Pinned> {
        let host = match self.host.take() {
            Some(host) => host,
            None => Pinned::zeroed(self.gpu, self.device.size_bytes())?,
        };
        Ok(self.host.insert(host))
    }

    /// The host's side, to write to. Blocks while the last copy still reads it, which, with another [`Upload`] in turn, it
    /// mostly does no more.
    ///
    /// # Errors
    /// [`KernelError::Cuda`]; [`KernelError::OutOfMemory`] at the first time after [`Upload::without_host`].
    pub fn host(&mut self) -> Result<TensorMut<'_>> {
        self.sent.synchronize()?;
        let (dtype, shape) = (self.device.dtype(), self.device.shape());
        Ok(TensorMut::from_bytes(self.own_host()?.as_mut_slice(), dtype, shape))
    }

    /// Starts the copy of the first `n_elements` elements; work that is asked for from now on sees them.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more than there are; [`KernelError::Cuda`].
    pub fn send(&mut self, n_elements: usize) -> Result<()> {
        self.check_len("send", n_elements, self.device.numel())?;
        let from = self.own_host()?.as_ptr();
        let copy = self.begin_copy()?;
        // SAFETY: the own host's side holds as much as the device's; `host` gives it out only once `sent` was passed, and `drop`
        // waits for that too.
        unsafe { self.copy(from, n_elements) }?;
        self.end_copy(copy)
    }

    /// As [`Upload::send`], from memory that another thread may have filled. It can be written to again once
    /// [`PinnedTensor::is_sent`] or [`PinnedTensor::wait_sent`] said so.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more elements than either side has; [`KernelError::DTypeMismatch`];
    /// [`KernelError::DeviceMismatch`] for one that was made for another GPU; [`KernelError::Cuda`].
    pub fn send_from(&mut self, from: &mut PinnedTensor, n_elements: usize) -> Result<()> {
        const OP: &str = "send_from";
        let (from_op, device_op) = (from.operand("from"), self.device.view().operand("device"));
        check::same_kind(OP, &[from_op, device_op])?;
        self.check_len(OP, n_elements, self.device.numel().min(from.shape().numel()))?;
        let copy = self.begin_copy()?;
        // SAFETY: both sides hold that many elements of one type; `from` keeps its memory, and gives it out to write to, only
        // once the end that it marks behind the copy was passed.
        from.send(copy, |from| unsafe { self.copy(from, n_elements) })?;
        self.end_copy(copy)
    }

    fn check_len(&self, op: &'static str, end: usize, len: usize) -> Result<()> {
        if end > len { Err(KernelError::OutOfRange { op, start: 0, end, len }) } else { Ok(()) }
    }

    /// The copy stream, behind the work that read the last copy.
    fn begin_copy(&self) -> Result<&'static Stream> {
        let copy = self.gpu.stream(StreamKind::Copy);
        copy.wait(&self.consumed)?;
        Ok(copy)
    }

    /// Puts the copy into the copy stream.
    ///
    /// # Safety
    /// `from` is pinned memory of at least `n_elements` elements, no more than the device's side has, and neither freed nor
    /// written to before the copy is over.
    unsafe fn copy(&self, from: *const u8, n_elements: usize) -> Result<()> {
        let bytes = n_elements * self.device.dtype().size_bytes();
        let (to, copy) = (self.device.view().cuda()?.ptr(), self.gpu.stream(StreamKind::Copy));
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both sides hold that many bytes, and stay, by the caller's word.
        let copied = unsafe { cudarc::driver::sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, copy.raw()) };
        check_driver(self.gpu.index(), "cuMemcpyHtoDAsync", copied.result())
    }

    /// Work that is asked for from now on comes behind the copy.
    fn end_copy(&self, copy: &Stream) -> Result<()> {
        self.sent.record(copy)?;
        self.gpu.compute().wait(&self.sent)
    }

    /// The device's side.
    pub fn device(&self) -> &Tensor {
        &self.device
    }

    /// The device's side, for work of the compute stream that fills it instead of a copy from the host.
    pub fn device_mut(&mut self) -> TensorMut<'_> {
        self.device.view_mut()
    }

    /// The work that reads the device's side was asked for: the next copy comes after it.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn consumed(&mut self) -> Result<()> {
        self.consumed.record(self.gpu.compute())
    }

    /// Writes `values` to the front and sends them.
    ///
    /// # Errors
    /// As [`Upload::host`] and [`Upload::send`]; [`KernelError::DTypeUnsupported`] for another type.
    pub fn send_slice<T: Element>(&mut self, values: &[T]) -> Result<()> {
        let n = values.len();
        self.check_len("send_slice", n, self.device.numel())?;
        self.host()?.into_slice::<T>("send_slice", "host")?[..n].copy_from_slice(values);
        self.send(n)
    }

    /// Sends the elements of a view of host memory, of the same dtype.
    ///
    /// # Errors
    /// As [`Upload::send_slice`].
    pub fn send_view(&mut self, view: TensorRef<'_>) -> Result<()> {
        const OP: &str = "send_view";
        match view.dtype() {
            DType::F32 => self.send_slice(view.as_slice::<f32>(OP, "view")?),
            DType::F64 => self.send_slice(view.as_slice::<f64>(OP, "view")?),
            DType::I64 => self.send_slice(view.as_slice::<i64>(OP, "view")?),
            DType::BF16 => self.send_slice(view.as_slice::<half::bf16>(OP, "view")?),
            DType::U8 => self.send_slice(view.as_slice::<u8>(OP, "view")?),
            DType::F16 => self.send_slice(view.as_slice::<half::f16>(OP, "view")?),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The copy must not read memory that is given back; its errors surface elsewhere.
        let _ = self.sent.synchronize();
    }
}
