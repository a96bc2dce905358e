//! Tensors, which own their elements on one device. The methods that compute new tensors are in `tensor/`.

use std::fs::File;
use std::sync::Arc;

use super::view::{AsView, TensorMut, TensorRef};
use crate::base::device_names::IntoDevice;
use crate::base::host_buffer::Buffer;
use crate::base::memory_use::MemoryUse;
use crate::cuda::{CudaSlice, CudaSliceMut, DeviceBuffer, ForeignMemory, Gpu};
use crate::hint::with_hint;
use crate::{DType, Device, Result, Shape};

/// A contiguous row-major tensor on one device.
///
/// Copies are made when they are written: [`Clone::clone`], [`Tensor::reshape`] and [`Tensor::to`] the same device share the memory,
/// and [`Tensor::view_mut`] copies shared memory first. A tensor that was written by way of `view_mut` shares no more, since graphs,
/// collectives and copies in flight may hold the address of its memory: its copies are made at once.
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
    storage: Arc<Storage>,
    shape: Shape,
    dtype: DType,
    device: Device,
    /// Whether the memory was lent for writing: then its address stays, and it is this tensor's alone.
    is_lent: bool,
}

/// Untyped memory on the host or on a GPU.
enum Storage {
    Cpu(Buffer),
    Cuda(DeviceBuffer),
}

impl Tensor {
    fn from_storage(storage: Storage, shape: Shape, dtype: DType, device: Device) -> Self {
        Tensor { storage: Arc::new(storage), shape, dtype, device, is_lent: false }
    }

    /// Creates a tensor of zeros.
    ///
    /// ```
    /// use ddp_kernels::{DType, Device, Tensor};
    ///
    /// let x = Tensor::zeros(&[2, 3], DType::F32, "cpu")?;
    /// assert_eq!((x.dims(), x.device()), (&[2, 3][..], Device::Cpu));
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::BadShape`](crate::KernelError::BadShape),
    /// [`KernelError::UnknownDevice`](crate::KernelError::UnknownDevice) for a name,
    /// [`KernelError::DeviceUnavailable`](crate::KernelError::DeviceUnavailable) or
    /// [`KernelError::OutOfMemory`](crate::KernelError::OutOfMemory), as for every function that creates a tensor;
    /// [`KernelError::Cuda`](crate::KernelError::Cuda) on a GPU.
    pub fn zeros(dims: &[usize], dtype: DType, device: impl IntoDevice) -> Result<Self> {
        Self::zeros_for(MemoryUse::Other, dims, dtype, device)
    }

    /// Creates a tensor of zeros; on a GPU, its memory is accounted to `kind`.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn zeros_for(kind: MemoryUse, dims: &[usize], dtype: DType, device: impl IntoDevice) -> Result<Self> {
        let device = device.into_device()?;
        let shape = Shape::new(dims)?;
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        let storage = match device {
            Device::Cpu => Storage::Cpu(Buffer::zeroed(bytes)?),
            Device::Cuda(index) => Storage::Cuda(DeviceBuffer::zeroed(Gpu::get(index)?, bytes, kind)?),
        };
        Ok(Self::from_storage(storage, shape, dtype, device))
    }

    /// Creates a tensor on the CPU of the elements in `file` from byte `start` on, a multiple of the page size. All processes that map the
    /// file share the memory, until a page is written, of which this tensor then has a copy of its own. Nobody may write to the file
    /// meanwhile.
    ///
    /// # Errors
    /// [`KernelError::BadShape`](crate::KernelError::BadShape);
    /// [`KernelError::OutOfMemory`](crate::KernelError::OutOfMemory) if the file can't be mapped or is shorter.
    pub fn from_file(file: &File, start: u64, dims: &[usize], dtype: DType) -> Result<Self> {
        let shape = Shape::new(dims)?;
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        Ok(Self::from_storage(
            Storage::Cpu(Buffer::from_file(file, start, bytes)?),
            shape,
            dtype,
            Device::Cpu,
        ))
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
        // The other library may know the memory by its address.
        Ok(Tensor { is_lent: true, ..Self::from_storage(storage, shape, dtype, device) })
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
        Ok(Self::from_storage(storage, shape, dtype, device))
    }

    /// The use that its memory is accounted to.
    pub fn memory_use(&self) -> MemoryUse {
        match &*self.storage {
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
        match &*self.storage {
            Storage::Cpu(buffer) => TensorRef::from_bytes(buffer, dtype, shape),
            Storage::Cuda(buffer) => {
                // SAFETY: the buffer holds that many elements and is borrowed as long as the view; it is freed after all work on
                // the compute stream, with which other streams are joined before a borrow ends.
                let slice = unsafe { CudaSlice::from_raw(buffer.gpu(), buffer.ptr(), shape.numel(), dtype) };
                TensorRef::from_cuda(slice, shape).accounted_to(buffer.kind())
            }
        }
    }

    /// An exclusive view of the whole tensor. Memory that it shares with other tensors is copied first, and its own from then on.
    ///
    /// # Panics
    /// With the message of the error if there is no memory for that copy.
    #[inline]
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        if !self.is_lent {
            self.own_memory();
            self.is_lent = true;
        }
        self.new_view_mut()
    }

    /// Same as [`Tensor::view_mut`], for writing a new tensor that can be shared afterwards.
    #[inline]
    pub(crate) fn new_view_mut(&mut self) -> TensorMut<'_> {
        let (shape, dtype) = (self.shape, self.dtype);
        let storage = if self.is_lent {
            // SAFETY: the memory of a tensor that was lent for writing is its alone: `share` copies it. So there is one `Arc`, and
            // `&mut self` makes the access exclusive. The atomic operations of `Arc::get_mut` would take 8 ns more in each call.
            unsafe { &mut *Arc::as_ptr(&self.storage).cast_mut() }
        } else {
            Arc::get_mut(&mut self.storage).expect("memory that is written is not shared")
        };
        match storage {
            Storage::Cpu(buffer) => TensorMut::from_bytes(buffer, dtype, shape),
            Storage::Cuda(buffer) => {
                // SAFETY: as in `view`, and `&mut self` of storage that is not shared makes the access exclusive.
                let slice =
                    unsafe { CudaSliceMut::from_raw(buffer.gpu(), buffer.ptr(), shape.numel(), dtype) };
                TensorMut::from_cuda(slice, shape)
            }
        }
    }

    /// Replaces shared memory by a copy.
    fn own_memory(&mut self) {
        if Arc::get_mut(&mut self.storage).is_none() {
            *self = self.try_clone().unwrap_or_else(|error| panic!("{}", with_hint(&error)));
        }
    }

    /// This tensor once more: sharing its memory if that is not written in place.
    pub(crate) fn share(&self) -> Result<Self> {
        if self.is_lent {
            return self.try_clone();
        }
        let Tensor { shape, dtype, device, is_lent, .. } = *self;
        Ok(Tensor { storage: Arc::clone(&self.storage), shape, dtype, device, is_lent })
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

/// Shares the memory until one of both is written, see [`Tensor`].
impl Clone for Tensor {
    /// # Panics
    /// With the message of the error where the memory can't be shared and there is none for a copy: [`Tensor::try_clone`] returns it.
    fn clone(&self) -> Self {
        self.share().unwrap_or_else(|error| panic!("{}", with_hint(&error)))
    }
}

impl AsView for Tensor {
    #[inline]
    fn as_view(&self) -> TensorRef<'_> {
        self.view()
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::devices;
    use crate::{DType, Device, Tensor, memory};

    /// Address of the first element.
    fn address(x: &Tensor) -> u64 {
        match x.device() {
            Device::Cpu => x.view().as_bytes("test", "x").unwrap().as_ptr() as u64,
            Device::Cuda(_) => x.view().cuda().unwrap().ptr(),
        }
    }

    fn overwrite(x: &mut Tensor, value: f64) {
        let values = x.full_like(value).unwrap();
        crate::ops::copy(values.view(), x.view_mut()).unwrap();
    }

    #[test]
    fn copies_share_memory_until_one_is_written() {
        for device in devices() {
            let mut x = Tensor::ones(&[2, 3], DType::F32, device).unwrap();
            let kept = address(&x);
            let copies = [
                x.clone(),
                x.to(device).unwrap(),
                x.reshape(&[3, 2]).unwrap(),
                x.to_dtype(DType::F32).unwrap(),
            ];
            assert!(copies.iter().all(|copy| address(copy) == kept), "{device}");
            assert_ne!(address(&x.try_clone().unwrap()), kept);
            assert_ne!(address(&x.view().to(device).unwrap()), kept, "a view does not own its memory");
            overwrite(&mut x, 7.0);
            assert_ne!(address(&x), kept);
            assert_eq!(x.to_vec::<f32>().unwrap(), [7.0; 6]);
            for copy in &copies {
                assert_eq!(copy.to_vec::<f32>().unwrap(), [1.0; 6], "{device}");
            }
        }
    }

    #[test]
    fn memory_that_was_written_in_place_stays_and_is_not_shared() {
        for device in devices() {
            let mut x = Tensor::zeros(&[4], DType::F32, device).unwrap();
            overwrite(&mut x, 1.0);
            let kept = address(&x);
            let copies = [x.clone(), x.to(device).unwrap(), x.reshape(&[2, 2]).unwrap()];
            assert!(copies.iter().all(|copy| address(copy) != kept), "{device}");
            overwrite(&mut x, 2.0);
            assert_eq!(address(&x), kept, "as a captured graph needs it");
            let x = x.into_shape(&[2, 2]).unwrap();
            assert_eq!(address(&x), kept);
            assert!(copies.iter().all(|copy| copy.to_vec::<f32>().unwrap() == [1.0; 4]));
        }
    }

    #[test]
    fn shared_memory_is_counted_once() {
        const N: usize = 1 << 27;
        for device in devices() {
            let x = Tensor::zeros(&[N], DType::U8, device).unwrap();
            let before = memory::allocated(device).unwrap();
            let copies = [x.clone(), x.to(device).unwrap()];
            // Other tests allocate at the same time, but not as much.
            assert!(memory::allocated(device).unwrap() < before + N);
            drop((x, copies));
        }
    }
}
