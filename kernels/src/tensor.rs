//! Tensors that own their storage, on one device.

use half::{bf16, f16};

use crate::cuda::{CudaSlice, CudaSliceMut, DeviceBuffer, Gpu, MemoryUse};
use crate::error::Operand;
use crate::memory::Buffer;
use crate::ops::{UniformStream, check, uniform};
use crate::rng::{Philox, normal_pair};
use crate::view::{TensorMut, TensorRef};
use crate::{DType, Device, Element, KernelError, Result, Shape};

/// A contiguous row-major tensor on one device.
pub struct Tensor {
    storage: Storage,
    shape: Shape,
    device: Device,
}

/// The elements, by kind of memory.
enum Storage {
    CpuF32(Buffer<f32>),
    CpuF64(Buffer<f64>),
    CpuI64(Buffer<i64>),
    CpuBF16(Buffer<bf16>),
    CpuU8(Buffer<u8>),
    CpuF16(Buffer<f16>),
    /// GPU memory is untyped.
    Cuda(DeviceBuffer, DType),
}

/// Evaluates one expression for each element type in host memory and another one for GPU memory.
macro_rules! each_storage {
    ($storage:expr, $buffer:ident => $body:expr, $device_buffer:ident, $dtype:ident => $cuda:expr) => {
        match $storage {
            Storage::CpuF32($buffer) => $body,
            Storage::CpuF64($buffer) => $body,
            Storage::CpuI64($buffer) => $body,
            Storage::CpuBF16($buffer) => $body,
            Storage::CpuU8($buffer) => $body,
            Storage::CpuF16($buffer) => $body,
            Storage::Cuda($device_buffer, $dtype) => $cuda,
        }
    };
}

impl Tensor {
    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// [`KernelError::BadShape`], [`KernelError::DeviceUnavailable`] or [`KernelError::OutOfMemory`], as for every function here
    /// that creates a tensor; [`KernelError::Cuda`] on a GPU.
    pub fn zeros(dims: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Self::zeros_for(MemoryUse::Other, dims, dtype, device)
    }

    /// Creates a tensor of zeros; on a GPU, its memory is accounted to `kind`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn zeros_for(kind: MemoryUse, dims: &[usize], dtype: DType, device: Device) -> Result<Self> {
        let shape = Shape::new(dims)?;
        let storage = match (device, dtype) {
            (Device::Cuda(index), _) => {
                let bytes = shape.numel().saturating_mul(dtype.size_bytes());
                Storage::Cuda(DeviceBuffer::zeroed(Gpu::get(index)?, bytes, kind)?, dtype)
            }
            (Device::Cpu, DType::F32) => Storage::CpuF32(Buffer::zeroed(shape.numel())?),
            (Device::Cpu, DType::F64) => Storage::CpuF64(Buffer::zeroed(shape.numel())?),
            (Device::Cpu, DType::I64) => Storage::CpuI64(Buffer::zeroed(shape.numel())?),
            (Device::Cpu, DType::BF16) => Storage::CpuBF16(Buffer::zeroed(shape.numel())?),
            (Device::Cpu, DType::U8) => Storage::CpuU8(Buffer::zeroed(shape.numel())?),
            (Device::Cpu, DType::F16) => Storage::CpuF16(Buffer::zeroed(shape.numel())?),
        };
        Ok(Tensor { storage, shape, device })
    }

    /// Creates a tensor of ones.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn ones(dims: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Self::full(dims, 1.0, dtype, device)
    }

    /// Creates a tensor filled with `value`, rounded to the dtype.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn full(dims: &[usize], value: f64, dtype: DType, device: Device) -> Result<Self> {
        Self::filled(dims, dtype, device, |_| value)
    }

    /// Creates a tensor from `values`, which fill `dims` in row-major order.
    ///
    /// # Errors
    /// [`KernelError::ElementCount`] if the number of values differs; else as [`Tensor::zeros`].
    pub fn from_slice<T: Element>(values: &[T], dims: &[usize], device: Device) -> Result<Self> {
        TensorRef::from_slice(values, dims)?.copy_to(MemoryUse::Other, device)
    }

    /// Creates the vector `0, 1, ..., n - 1`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn arange(n: usize, dtype: DType, device: Device) -> Result<Self> {
        Self::filled(&[n], dtype, device, |i| i as f64)
    }

    /// Creates uniform random numbers in `[0, 1)`, a function of `seed` and element index only: the same on every device.
    ///
    /// # Errors
    /// As [`Tensor::zeros`]; [`KernelError::DTypeUnsupported`] for integers.
    pub fn rand(dims: &[usize], dtype: DType, device: Device, seed: u64) -> Result<Self> {
        let mut tensor = Self::zeros(dims, dtype, device)?;
        uniform(tensor.view_mut(), 0.0, 1.0, UniformStream { seed, stream: [0, 0] })?;
        Ok(tensor)
    }

    /// Creates standard normal random numbers (Box-Muller), a function of `seed` and element index only.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn randn(dims: &[usize], dtype: DType, device: Device, seed: u64) -> Result<Self> {
        if !check::FLOATS.contains(&dtype) {
            let operand = Operand { name: "result", shape: Shape::new(dims)?, dtype, device };
            return Err(KernelError::DTypeUnsupported {
                op: "randn",
                operand: operand.into(),
                takes: check::FLOATS_NAMES,
            });
        }
        let philox = Philox::new(seed);
        let mut pair = (0.0, 0.0);
        Self::filled(dims, dtype, device, |i| {
            if i % 2 == 0 {
                pair = normal_pair(&philox, i as u64 / 2);
                return pair.0;
            }
            pair.1
        })
    }

    /// Creates a tensor from a function of the element index, computed on the host.
    fn filled(
        dims: &[usize],
        dtype: DType,
        device: Device,
        mut value: impl FnMut(usize) -> f64,
    ) -> Result<Self> {
        fn fill<T: Element>(out: &mut [T], value: &mut impl FnMut(usize) -> f64) {
            for (i, v) in out.iter_mut().enumerate() {
                *v = T::from_f64(value(i));
            }
        }
        // Fails before the work, not after it.
        device.ensure_available()?;
        let mut tensor = Self::zeros(dims, dtype, Device::Cpu)?;
        each_storage!(&mut tensor.storage, buffer => fill(buffer, &mut value), _on_gpu, _dtype => ());
        if device == Device::Cpu { Ok(tensor) } else { tensor.to(device) }
    }

    /// Creates zeros with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn zeros_like(&self) -> Result<Self> {
        self.new_zeros(self.shape.dims())
    }

    /// Creates zeros of another shape with this tensor's dtype and device.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn new_zeros(&self, dims: &[usize]) -> Result<Self> {
        Self::zeros_for(self.memory_use(), dims, self.dtype(), self.device)
    }

    /// Copies the tensor to `device`: the only way from one device to another.
    ///
    /// Between GPUs: a peer copy if the topology allows it, else through pinned host memory ([`crate::cuda::peer::path`] reports
    /// which), ordered after the work on both compute streams. Between host and GPU: synchronous.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] or [`KernelError::OutOfMemory`].
    pub fn to(&self, device: Device) -> Result<Self> {
        self.view().copy_to(self.memory_use(), device)
    }

    /// Copies the tensor to `device`; on a GPU, the memory is accounted to `kind`.
    ///
    /// # Errors
    /// As [`Tensor::to`].
    pub fn to_for(&self, kind: MemoryUse, device: Device) -> Result<Self> {
        self.view().copy_to(kind, device)
    }

    /// The use that its memory is accounted to.
    pub fn memory_use(&self) -> MemoryUse {
        match &self.storage {
            Storage::Cuda(buffer, _) => buffer.kind(),
            _ => MemoryUse::Other,
        }
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Type of the elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        match self.storage {
            Storage::CpuF32(_) => DType::F32,
            Storage::CpuF64(_) => DType::F64,
            Storage::CpuI64(_) => DType::I64,
            Storage::CpuBF16(_) => DType::BF16,
            Storage::CpuU8(_) => DType::U8,
            Storage::CpuF16(_) => DType::F16,
            Storage::Cuda(_, dtype) => dtype,
        }
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
        let shape = self.shape;
        each_storage!(&self.storage, buffer => TensorRef::from_buffer(buffer, shape), buffer, dtype => {
            // SAFETY: the buffer holds that many elements and is borrowed as long as the view; it is freed after all work on
            // the compute stream, with which other streams are joined before a borrow ends.
            let slice = unsafe { CudaSlice::from_raw(buffer.gpu(), buffer.ptr(), shape.numel(), *dtype) };
            TensorRef::from_cuda(slice, shape)
        })
    }

    /// An exclusive view of the whole tensor.
    #[inline]
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let shape = self.shape;
        each_storage!(&mut self.storage, buffer => TensorMut::from_buffer(buffer, shape), buffer, dtype => {
            // SAFETY: as in `view`, and `&mut self` makes the access exclusive.
            let slice = unsafe { CudaSliceMut::from_raw(buffer.gpu(), buffer.ptr(), shape.numel(), *dtype) };
            TensorMut::from_cuda(slice, shape)
        })
    }

    /// Copies the elements to host memory; on a GPU, waits for all work enqueued before.
    ///
    /// # Errors
    /// [`KernelError::DTypeUnsupported`] if the elements are of another type; [`KernelError::Cuda`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.view().to_vec()
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

    /// Copies this view's elements to a new tensor on `device`.
    ///
    /// # Errors
    /// As [`Tensor::to`].
    pub fn copy_to(self, kind: MemoryUse, device: Device) -> Result<Tensor> {
        if (self.device(), device) == (Device::Cpu, Device::Cpu) {
            let storage = match self.dtype() {
                DType::F32 => Storage::CpuF32(Buffer::from_slice(self.as_slice("copy", "source")?)?),
                DType::F64 => Storage::CpuF64(Buffer::from_slice(self.as_slice("copy", "source")?)?),
                DType::I64 => Storage::CpuI64(Buffer::from_slice(self.as_slice("copy", "source")?)?),
                DType::BF16 => Storage::CpuBF16(Buffer::from_slice(self.as_slice("copy", "source")?)?),
                DType::U8 => Storage::CpuU8(Buffer::from_slice(self.as_slice("copy", "source")?)?),
                DType::F16 => Storage::CpuF16(Buffer::from_slice(self.as_slice("copy", "source")?)?),
            };
            return Ok(Tensor { storage, shape: self.shape(), device });
        }
        let mut tensor = match device {
            Device::Cpu => Tensor::zeros(self.shape().dims(), self.dtype(), device)?,
            Device::Cuda(index) => {
                let bytes = self.numel() * self.dtype().size_bytes();
                let buffer = DeviceBuffer::new(Gpu::get(index)?, bytes, kind)?;
                Tensor { storage: Storage::Cuda(buffer, self.dtype()), shape: self.shape(), device }
            }
        };
        crate::ops::copy(self, tensor.view_mut())?;
        Ok(tensor)
    }

    /// Copies the elements to host memory; on a GPU, waits for all work enqueued before.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    pub fn to_vec<T: Element>(self) -> Result<Vec<T>> {
        if self.device() == Device::Cpu {
            return Ok(self.as_slice::<T>("to_vec", "self")?.to_vec());
        }
        let mut values = vec![T::ZERO; self.numel()];
        crate::ops::copy(self, TensorMut::from_slice(&mut values, self.shape().dims())?)?;
        Ok(values)
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor {} {} on {}", self.shape, self.dtype(), self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Device = Device::Cpu;

    #[test]
    fn creation_fills_what_it_says() {
        let full = Tensor::full(&[2, 3], 1.5, DType::F32, CPU).unwrap();
        assert_eq!(full.to_vec::<f32>().unwrap(), [1.5; 6]);
        assert_eq!(Tensor::ones(&[2], DType::I64, CPU).unwrap().to_vec::<i64>().unwrap(), [1, 1]);
        let arange = Tensor::arange(4, DType::F64, CPU).unwrap();
        assert_eq!(arange.to_vec::<f64>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(full.new_zeros(&[4]).unwrap().to_vec::<f32>().unwrap(), [0.0; 4]);
        assert_eq!(full.zeros_like().unwrap().shape(), full.shape());
    }

    #[test]
    fn each_type_is_kept() {
        for dtype in DType::ALL {
            let t = Tensor::arange(5, dtype, CPU).unwrap();
            assert_eq!((t.dtype(), t.size_bytes()), (dtype, 5 * dtype.size_bytes()));
            let bytes = t.view().as_bytes("test", "t").unwrap();
            assert_eq!(bytes.len(), t.size_bytes());
            let copy = t.to(CPU).unwrap();
            assert_eq!(copy.view().as_bytes("test", "copy").unwrap(), bytes);
        }
        let bytes = Tensor::from_slice(&[0u8, 255, 7], &[3], CPU).unwrap();
        assert_eq!(bytes.view().range(1, 3).unwrap().to_vec::<u8>().unwrap(), [255, 7]);
        assert!(bytes.to_vec::<f16>().unwrap_err().to_string().contains("u8"));
        assert_eq!(
            Tensor::full(&[1], 0.1, DType::F16, CPU).unwrap().to_vec::<f16>().unwrap()[0].to_bits(),
            0x2e66
        );
        for dtype in [DType::U8, DType::I64] {
            assert!(
                Tensor::rand(&[2], dtype, CPU, 1).is_err() && Tensor::randn(&[2], dtype, CPU, 1).is_err()
            );
        }
    }

    #[test]
    fn random_numbers_depend_on_seed_and_index_alone() {
        let long = Tensor::randn(&[1000], DType::F32, CPU, 7).unwrap().to_vec::<f32>().unwrap();
        let short = Tensor::randn(&[10, 5], DType::F32, CPU, 7).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(long[..50], short[..]);
        assert_ne!(long, Tensor::randn(&[1000], DType::F32, CPU, 8).unwrap().to_vec::<f32>().unwrap());
    }

    #[test]
    fn moments_of_random_numbers() {
        let n = 100_000;
        let normal = Tensor::randn(&[n], DType::F64, CPU, 1).unwrap().to_vec::<f64>().unwrap();
        let uniform = Tensor::rand(&[n], DType::F64, CPU, 1).unwrap().to_vec::<f64>().unwrap();
        let mean = |v: &[f64]| v.iter().sum::<f64>() / n as f64;
        let var = |v: &[f64]| {
            let m = mean(v);
            v.iter().map(|x| (x - m).powi(2)).sum::<f64>() / n as f64
        };
        // Five standard errors at n = 1e5.
        assert!(mean(&normal).abs() < 0.016 && (var(&normal) - 1.0).abs() < 0.023);
        assert!((mean(&uniform) - 0.5).abs() < 0.005 && (var(&uniform) - 1.0 / 12.0).abs() < 0.002);
        assert!(uniform.iter().all(|&u| (0.0..1.0).contains(&u)));
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_not_ignored() {
        let beyond = Device::Cuda(Gpu::count() as u32);
        let error = Tensor::zeros(&[1], DType::F32, beyond).unwrap_err();
        assert!(matches!(error, KernelError::DeviceUnavailable { device, .. } if device == beyond));
        assert!(Tensor::zeros(&[1], DType::F32, CPU).unwrap().to(beyond).is_err());
    }

    #[test]
    fn views_split_and_reshape_without_copies() {
        let mut t = Tensor::arange(6, DType::F32, CPU).unwrap();
        let (mut a, b) = t.view_mut().split_at(2).unwrap();
        a.reborrow().into_slice::<f32>("test", "a").unwrap()[0] = 9.0;
        assert_eq!((a.numel(), b.numel()), (2, 4));
        let m = t.view().reshape(&[2, 3]).unwrap().rows(1, 2).unwrap();
        assert_eq!(m.as_slice::<f32>("test", "m").unwrap(), [3.0, 4.0, 5.0]);
        assert_eq!(t.to_vec::<f32>().unwrap()[0], 9.0);
        assert!(t.view().reshape(&[4]).is_err() && t.view().range(3, 7).is_err());
        assert!(t.view().as_slice::<f64>("test", "m").unwrap_err().to_string().contains("f32"));
    }
}
