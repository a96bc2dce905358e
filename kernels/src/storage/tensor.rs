//! Tensors, which own their elements on one device. The methods that compute new tensors are in `tensor/`.

use super::view::{TensorMut, TensorRef};
use crate::base::host_buffer::Buffer;
use crate::base::memory_use::MemoryUse;
use crate::cuda::{CudaSlice, CudaSliceMut, DeviceBuffer, ForeignMemory, Gpu};
use crate::{DType, Device, Result, Shape};

/// A contiguous row-major tensor on one device.
///
/// ```
/// use ddp_kernels::hint::with_hint;
/// use ddp_kernels::{DType, Device, Tensor};
///
/// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], Device::Cpu)?;
/// let row = Tensor::from_slice(&[10.0f32, 20.0], &[2], Device::Cpu)?;
/// assert_eq!((&a + &row).to_vec::<f32>()?, [11.0, 22.0, 13.0, 24.0]);
/// assert_eq!(a.to_string(), "tensor([[1., 2.],\n        [3., 4.]], device=cpu, dtype=f32)");
/// let error = with_hint(&a.add(&row.to_dtype(DType::F64)?).unwrap_err());
/// assert!(error.contains("hint: "), "{error}");
/// # Ok::<(), ddp_kernels::KernelError>(())
/// ```
pub struct Tensor {
    storage: Storage,
    shape: Shape,
    dtype: DType,
    device: Device,
}

/// Untyped memory on the host or on a GPU.
enum Storage {
    Cpu(Buffer),
    Cuda(DeviceBuffer),
}

impl Tensor {
    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// [`KernelError::BadShape`](crate::KernelError::BadShape),
    /// [`KernelError::DeviceUnavailable`](crate::KernelError::DeviceUnavailable) or
    /// [`KernelError::OutOfMemory`](crate::KernelError::OutOfMemory), as for every function that creates a tensor;
    /// [`KernelError::Cuda`](crate::KernelError::Cuda) on a GPU.
    pub fn zeros(dims: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Self::zeros_for(MemoryUse::Other, dims, dtype, device)
    }

    /// Creates a tensor of zeros; on a GPU, its memory is accounted to `kind`.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn zeros_for(kind: MemoryUse, dims: &[usize], dtype: DType, device: Device) -> Result<Self> {
        let shape = Shape::new(dims)?;
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        let storage = match device {
            Device::Cpu => Storage::Cpu(Buffer::zeroed(bytes)?),
            Device::Cuda(index) => Storage::Cuda(DeviceBuffer::zeroed(Gpu::get(index)?, bytes, kind)?),
        };
        Ok(Tensor { storage, shape, dtype, device })
    }

    /// Creates a tensor of zeros in memory that another library allocated, accounted to `kind`.
    ///
    /// # Errors
    /// [`KernelError::BadShape`](crate::KernelError::BadShape);
    /// [`KernelError::OutOfRange`](crate::KernelError::OutOfRange) (in bytes) if the tensor is larger than the memory;
    /// [`KernelError::Cuda`](crate::KernelError::Cuda).
    pub fn zeros_in(memory: ForeignMemory, kind: MemoryUse, dims: &[usize], dtype: DType) -> Result<Self> {
        let (shape, device) = (Shape::new(dims)?, memory.gpu().device());
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        let storage = Storage::Cuda(DeviceBuffer::zeroed_in(memory, bytes, kind)?);
        Ok(Tensor { storage, shape, dtype, device })
    }

    /// Creates a tensor with unspecified contents, which the caller overwrites.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub(crate) fn for_result(kind: MemoryUse, shape: Shape, dtype: DType, device: Device) -> Result<Self> {
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        let storage = match device {
            Device::Cpu => Storage::Cpu(Buffer::for_result(bytes)?),
            Device::Cuda(index) => Storage::Cuda(DeviceBuffer::new(Gpu::get(index)?, bytes, kind)?),
        };
        Ok(Tensor { storage, shape, dtype, device })
    }

    /// The use that its memory is accounted to.
    pub fn memory_use(&self) -> MemoryUse {
        match &self.storage {
            Storage::Cuda(buffer) => buffer.kind(),
            Storage::Cpu(_) => MemoryUse::Other,
        }
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The dimensions.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Type of the elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that holds the elements.
    #[inline]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Size of the storage in bytes.
    pub fn size_bytes(&self) -> usize {
        self.numel() * self.dtype().size_bytes()
    }

    /// A shared view of the whole tensor.
    #[inline]
    pub fn view(&self) -> TensorRef<'_> {
        let (shape, dtype) = (self.shape, self.dtype);
        match &self.storage {
            Storage::Cpu(buffer) => TensorRef::from_bytes(buffer, dtype, shape),
            Storage::Cuda(buffer) => {
                // SAFETY: the buffer holds that many elements and is borrowed as long as the view; it is freed after all work on
                // the compute stream, with which other streams are joined before a borrow ends.
                let slice = unsafe { CudaSlice::from_raw(buffer.gpu(), buffer.ptr(), shape.numel(), dtype) };
                TensorRef::from_cuda(slice, shape)
            }
        }
    }

    /// An exclusive view of the whole tensor.
    #[inline]
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let (shape, dtype) = (self.shape, self.dtype);
        match &mut self.storage {
            Storage::Cpu(buffer) => TensorMut::from_bytes(buffer, dtype, shape),
            Storage::Cuda(buffer) => {
                // SAFETY: as in `view`, and `&mut self` makes the access exclusive.
                let slice =
                    unsafe { CudaSliceMut::from_raw(buffer.gpu(), buffer.ptr(), shape.numel(), dtype) };
                TensorMut::from_cuda(slice, shape)
            }
        }
    }

    /// The same elements under another shape, without a copy.
    ///
    /// # Errors
    /// [`KernelError::ElementCount`](crate::KernelError::ElementCount) if the shape has a different number of elements.
    pub fn into_shape(mut self, dims: &[usize]) -> Result<Self> {
        self.shape = self.view().reshape(dims)?.shape();
        Ok(self)
    }
}
