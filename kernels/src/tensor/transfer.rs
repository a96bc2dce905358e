//! Tensors from and to values of the host, other devices and other dtypes.

use crate::base::memory_use::MemoryUse;
use crate::ops::convert;
use crate::storage::view::{TensorMut, TensorRef};
use crate::{AsView, DType, Device, HostValue, IntoDevice, KernelError, Result, Shape, Tensor};

impl Tensor {
    /// Creates a tensor from `values`, which fill `dims` in row-major order.
    ///
    /// ```
    /// use ddp_kernels::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], Device::Cpu)?;
    /// assert_eq!(x.row(1)?.to_vec::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::ElementCount`] if the number of values differs; else as [`Tensor::zeros`].
    pub fn from_slice<T: HostValue>(values: &[T], dims: &[usize], device: impl IntoDevice) -> Result<Self> {
        let shape = Shape::new(dims)?;
        if shape.numel() != values.len() {
            return Err(KernelError::ElementCount { op: "from_slice", got: values.len(), shape });
        }
        TensorRef::from_bytes(T::as_bytes(values), T::DTYPE, shape).to(device)
    }

    /// Same as [`Tensor::from_slice`], from a vector. It copies too: tensors are aligned to cache lines.
    ///
    /// # Errors
    /// Same as [`Tensor::from_slice`].
    pub fn from_vec<T: HostValue>(values: Vec<T>, dims: &[usize], device: impl IntoDevice) -> Result<Self> {
        Self::from_slice(&values, dims, device)
    }

    /// This tensor on `device`: a copy on another device, the only way from one to another; on its own device without a copy, where
    /// [`Tensor`] says that memory is shared.
    ///
    /// Between GPUs: a peer copy if the topology allows it, else through pinned host memory ([`crate::cuda::peer::path`] reports
    /// which), ordered after the work on both compute streams. Between host and GPU: synchronous.
    ///
    /// ```
    /// use ddp_kernels::{Device, tensor};
    ///
    /// let x = tensor![1., 2.].to("cpu")?;
    /// let y = x.to(Device::cuda(0).available_or_cpu())?;
    /// assert_eq!(y.cpu()?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::UnknownDevice`] for a name; [`KernelError::DeviceUnavailable`] or [`KernelError::OutOfMemory`].
    pub fn to(&self, device: impl IntoDevice) -> Result<Self> {
        let device = device.into_device()?;
        if device == self.device() { self.share() } else { self.view().to(device) }
    }

    /// Copies the tensor to `device`; on a GPU, the memory is accounted to `kind`.
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    pub fn to_for(&self, kind: MemoryUse, device: impl IntoDevice) -> Result<Self> {
        self.view().copy_to(kind, device.into_device()?)
    }

    /// Copies the tensor on its device, at once. [`Clone::clone`] copies when one of both is written, and panics if it can't.
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    pub fn try_clone(&self) -> Result<Self> {
        self.view().copy_to(self.memory_use(), self.device())
    }

    /// Copies the elements to host memory; on a GPU, waits for all work enqueued before.
    ///
    /// # Errors
    /// [`KernelError::DTypeUnsupported`] if the elements are of another type; [`KernelError::Cuda`].
    pub fn to_vec<T: HostValue>(&self) -> Result<Vec<T>> {
        self.view().to_vec()
    }

    /// This tensor on the first GPU, as [`Tensor::to`].
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    pub fn cuda(&self) -> Result<Self> {
        self.to(Device::Cuda(0))
    }

    /// [`Clone::clone`]: tensors have no tape to be detached from.
    pub fn detach(&self) -> Self {
        self.clone()
    }
}

readable! {
    /// Creates a tensor from `values` on this tensor's device.
    ///
    /// # Errors
    /// Same as [`Tensor::from_slice`].
    pub fn new_from_slice<T: HostValue>(&self, values: &[T], dims: &[usize]) -> Result<Tensor> {
        Tensor::from_slice(values, dims, self.device())
    }

    /// This tensor in host memory, as [`Tensor::to`].
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    pub fn cpu(&self) -> Result<Tensor> {
        self.to(Device::Cpu)
    }

    /// Converts the elements to `dtype`, on this tensor's device; to its own dtype as [`Tensor::to`].
    ///
    /// Between float dtypes rounded once, to nearest, ties to even. Floats to integers are truncated toward zero; unlike in
    /// PyTorch, values out of range become the nearest integer of the dtype and NaN becomes 0. Integers to integers wrap. To bool:
    /// whether the value is not 0.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return self.to(self.device());
        }
        let mut to = Tensor::for_result(self.memory_use(), self.shape(), dtype, self.device())?;
        convert(self.view(), to.new_view_mut())?;
        Ok(to)
    }

    /// This tensor on the device and in the dtype of `other`.
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    pub fn to_like(&self, other: impl AsView) -> Result<Tensor> {
        let other = other.as_view();
        // The shorter of the two dtypes travels.
        if other.dtype().size_bytes() < self.dtype().size_bytes() {
            return self.to_dtype(other.dtype())?.to(other.device());
        }
        self.to(other.device())?.to_dtype(other.dtype())
    }

    /// The value of a tensor of one element; on a GPU, waits for all work enqueued before.
    ///
    /// # Errors
    /// [`KernelError::ElementCount`] if there are more elements or none; else as [`Tensor::to_vec`].
    pub fn item<T: HostValue>(&self) -> Result<T> {
        match self.to_vec::<T>()?[..] {
            [value] => Ok(value),
            _ => Err(KernelError::ElementCount { op: "item", got: self.numel(), shape: Shape::new(&[])? }),
        }
    }
}

impl TensorRef<'_> {
    /// Copies this view's elements to a new tensor on the same device.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub fn to_tensor(self) -> Result<Tensor> {
        self.copy_to(MemoryUse::Other, self.device())
    }

    /// Copies this view's elements to a new tensor on `device`, also if that is their own.
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    pub fn to(self, device: impl IntoDevice) -> Result<Tensor> {
        self.copy_to(self.memory_use(), device.into_device()?)
    }

    /// Same as [`TensorRef::to`]; on a GPU, the memory is accounted to `kind`.
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    pub fn copy_to(self, kind: MemoryUse, device: Device) -> Result<Tensor> {
        let (shape, dtype) = (self.shape(), self.dtype());
        let mut tensor = match device {
            // A tensor copied to the host is long-lived: its memory is not a result that is kept for the next one.
            Device::Cpu => Tensor::zeros_for(kind, shape.dims(), dtype, device)?,
            Device::Cuda(_) => Tensor::for_result(kind, shape, dtype, device)?,
        };
        crate::ops::copy(self, tensor.new_view_mut())?;
        Ok(tensor)
    }

    /// Copies the elements to host memory; on a GPU, waits for all work enqueued before.
    ///
    /// # Errors
    /// Same as [`Tensor::to_vec`].
    pub fn to_vec<T: HostValue>(self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            let operand = self.operand("self").into();
            return Err(KernelError::DTypeUnsupported { op: "to_vec", operand, takes: T::DTYPE.name() });
        }
        T::read(self.numel(), |bytes| {
            crate::ops::copy(self, TensorMut::from_bytes(bytes, T::DTYPE, self.shape()))
        })
    }
}
