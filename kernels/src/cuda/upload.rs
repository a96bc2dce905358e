//! From the host to the device, without waiting: pinned memory in turn with its copy.

use super::memory::Pinned;
use super::{Event, Gpu, StreamKind, check_driver};
use crate::view::{TensorMut, TensorRef};
use crate::{DType, Element, KernelError, MemoryUse, Result, Tensor};

/// Host memory and a tensor of the device that is filled from it.
///
/// A round is: write to [`Upload::host`], [`Upload::send`], work that reads [`Upload::device`], [`Upload::consumed`]. The
/// copy runs in the copy stream: it waits for the work that read the last one, and the compute stream waits for it. With
/// two of them in turn, a copy runs beside the work on the one before.
#[derive(Debug)]
pub struct Upload {
    host: Pinned,
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
        let device = Tensor::zeros_for(MemoryUse::Data, dims, dtype, gpu.device())?;
        let upload = Upload {
            host: Pinned::zeroed(gpu, device.size_bytes())?,
            device,
            gpu,
            sent: Event::new(gpu)?,
            consumed: Event::new(gpu)?,
        };
        // The tensor was zeroed in the compute stream.
        upload.consumed.record(gpu.compute())?;
        Ok(upload)
    }

    /// The host's side, to write to. Blocks while the last copy still reads it, which, with another [`Upload`] in turn, it
    /// mostly does no more.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn host(&mut self) -> Result<TensorMut<'_>> {
        self.sent.synchronize()?;
        let shape = self.device.shape();
        Ok(TensorMut::from_bytes(self.host.as_mut_slice(), self.device.dtype(), shape))
    }

    /// Starts the copy of the first `n_elements` elements; work that is asked for from now on sees them.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more than there are; [`KernelError::Cuda`].
    pub fn send(&mut self, n_elements: usize) -> Result<()> {
        let len = self.device.numel();
        if n_elements > len {
            return Err(KernelError::OutOfRange { op: "send", start: 0, end: n_elements, len });
        }
        let copy = self.gpu.stream(StreamKind::Copy);
        copy.wait(&self.consumed)?;
        let bytes = n_elements * self.device.dtype().size_bytes();
        let to = self.device.view().cuda()?.ptr();
        if bytes > 0 {
            // SAFETY: both sides hold that many bytes; `host` gives out the pinned side only once `sent` was passed, and `drop`
            // waits for it too.
            let copied = unsafe {
                cudarc::driver::sys::cuMemcpyHtoDAsync_v2(to, self.host.as_ptr().cast(), bytes, copy.raw())
            };
            check_driver(self.gpu.index(), "cuMemcpyHtoDAsync", copied.result())?;
        }
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
        let (n, len) = (values.len(), self.device.numel());
        if n > len {
            return Err(KernelError::OutOfRange { op: "send_slice", start: 0, end: n, len });
        }
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
