//! Borrowed views of tensors, the operands of operations.
//!
//! A view is a contiguous row-major range of a tensor's storage with a shape. Views of one flat buffer can be split and lent
//! out piece by piece, so the borrow checker prevents writes to a range that is being reduced.

use std::ops::Range;

use crate::base::error::Operand;
use crate::base::memory_use::MemoryUse;
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Device, Element, KernelError, Result, Shape};

/// Elements in host memory.
#[derive(Debug, Clone, Copy)]
struct CpuSlice<'a> {
    bytes: &'a [u8],
    dtype: DType,
}

/// Writable elements in host memory.
#[derive(Debug)]
struct CpuSliceMut<'a> {
    bytes: &'a mut [u8],
    dtype: DType,
}

impl DType {
    /// The bytes of elements `range`.
    #[inline]
    fn bytes_of(self, range: Range<usize>) -> Range<usize> {
        range.start * self.size_bytes()..range.end * self.size_bytes()
    }
}

/// Elements by kind of memory.
#[derive(Debug, Clone, Copy)]
enum Data<'a> {
    Cpu(CpuSlice<'a>),
    Cuda(CudaSlice<'a>),
}

/// Writable elements by kind of memory.
#[derive(Debug)]
enum DataMut<'a> {
    Cpu(CpuSliceMut<'a>),
    Cuda(CudaSliceMut<'a>),
}

/// A shared view of a tensor or of a part of one. It has the methods of a tensor that read.
///
/// ```
/// use ddp_kernels::{DType, Device, Tensor};
///
/// let x = Tensor::arange(6, DType::F32, Device::Cpu)?.into_shape(&[3, 2])?;
/// let last_rows = x.view().rows(1, 3)?;
/// assert_eq!((last_rows * 2.0).sum(1)?.to_vec::<f32>()?, [10.0, 18.0]);
/// # Ok::<(), ddp_kernels::KernelError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct TensorRef<'a> {
    data: Data<'a>,
    shape: Shape,
    /// The use to which its memory is accounted, and the memory of results with it.
    kind: MemoryUse,
}

/// A tensor or a view of one, owned or borrowed: what methods take as an operand.
pub trait AsView {
    /// A view of all elements.
    fn as_view(&self) -> TensorRef<'_>;
}

impl AsView for TensorRef<'_> {
    #[inline]
    fn as_view(&self) -> TensorRef<'_> {
        *self
    }
}

impl<V: AsView + ?Sized> AsView for &V {
    #[inline]
    fn as_view(&self) -> TensorRef<'_> {
        (**self).as_view()
    }
}

/// An exclusive view of a tensor or of a part of one.
///
/// ```
/// use ddp_kernels::{DType, Device, Tensor, ops};
///
/// let ones = Tensor::ones(&[1, 2], DType::F32, Device::Cpu)?;
/// let mut x = Tensor::zeros(&[3, 2], DType::F32, Device::Cpu)?;
/// ops::copy(ones.view(), x.view_mut().rows(1, 2)?)?;
/// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), ddp_kernels::KernelError>(())
/// ```
#[derive(Debug)]
pub struct TensorMut<'a> {
    data: DataMut<'a>,
    shape: Shape,
}

macro_rules! common {
    ($view:ident, $data:ident) => {
        impl<'a> $view<'a> {
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
                match &self.data {
                    $data::Cpu(slice) => slice.dtype,
                    $data::Cuda(slice) => slice.dtype(),
                }
            }

            /// The device that holds the elements.
            #[inline]
            pub fn device(&self) -> Device {
                match &self.data {
                    $data::Cpu(_) => Device::Cpu,
                    $data::Cuda(slice) => slice.gpu().device(),
                }
            }

            /// The GPU that holds them, if one does.
            pub fn gpu(&self) -> Option<&'static Gpu> {
                match &self.data {
                    $data::Cpu(_) => None,
                    $data::Cuda(slice) => Some(slice.gpu()),
                }
            }

            /// This view as error messages show it.
            #[inline]
            pub fn operand(&self, name: &'static str) -> Operand {
                Operand { name, shape: self.shape, dtype: self.dtype(), device: self.device() }
            }

            /// The same elements under another shape.
            ///
            /// # Errors
            /// [`KernelError::ElementCount`] if the shape has a different number of elements.
            #[inline]
            pub fn reshape(self, dims: &[usize]) -> Result<Self> {
                let shape = Shape::new(dims)?;
                if shape.numel() != self.numel() {
                    return Err(KernelError::ElementCount { op: "reshape", got: self.numel(), shape });
                }
                Ok($view { shape, ..self })
            }

            /// The element range of rows `start..end`, and its shape.
            #[inline]
            fn row_range(&self, start: usize, end: usize) -> Result<(Range<usize>, Shape)> {
                let Some(&n_rows) = self.shape.dims().first() else {
                    return Err(KernelError::OutOfRange { op: "rows", start, end, len: 0 });
                };
                self.check_range("rows", start, end, n_rows)?;
                let stride = self.numel() / n_rows.max(1);
                Ok((start * stride..end * stride, self.shape.with_rows(end - start)))
            }

            #[inline]
            fn check_range(&self, op: &'static str, start: usize, end: usize, len: usize) -> Result<()> {
                if start > end || end > len {
                    return Err(KernelError::OutOfRange { op, start, end, len });
                }
                Ok(())
            }
        }
    };
}
common!(TensorRef, Data);
common!(TensorMut, DataMut);

impl Data<'_> {
    #[inline]
    fn range(self, range: Range<usize>) -> Self {
        match self {
            Data::Cpu(CpuSlice { bytes, dtype }) => {
                Data::Cpu(CpuSlice { bytes: &bytes[dtype.bytes_of(range)], dtype })
            }
            Data::Cuda(slice) => Data::Cuda(slice.range(range.start, range.end)),
        }
    }
}

impl DataMut<'_> {
    #[inline]
    fn range(self, range: Range<usize>) -> Self {
        match self {
            DataMut::Cpu(CpuSliceMut { bytes, dtype }) => {
                DataMut::Cpu(CpuSliceMut { bytes: &mut bytes[dtype.bytes_of(range)], dtype })
            }
            DataMut::Cuda(slice) => DataMut::Cuda(slice.range(range.start, range.end)),
        }
    }
}

impl<'a> TensorRef<'a> {
    /// Views host memory as a tensor: `values` fill `dims` in row-major order.
    ///
    /// # Errors
    /// [`KernelError::ElementCount`] if their numbers differ.
    pub fn from_slice<T: Element>(values: &'a [T], dims: &[usize]) -> Result<Self> {
        let shape = Shape::new(dims)?;
        if shape.numel() != values.len() {
            return Err(KernelError::ElementCount { op: "from_slice", got: values.len(), shape });
        }
        Ok(Self::from_buffer(values, shape))
    }

    /// Views a whole buffer; the shape has as many elements.
    pub(crate) fn from_buffer<T: Element>(values: &'a [T], shape: Shape) -> Self {
        Self::from_bytes(bytemuck::cast_slice(values), T::DTYPE, shape)
    }

    /// Views bytes in host memory, as many as the elements take and aligned for them.
    pub(crate) fn from_bytes(bytes: &'a [u8], dtype: DType, shape: Shape) -> Self {
        debug_assert_eq!(bytes.len(), shape.numel() * dtype.size_bytes());
        TensorRef { data: Data::Cpu(CpuSlice { bytes, dtype }), shape, kind: MemoryUse::Other }
    }

    /// Views a whole device buffer; the shape has as many elements.
    pub(crate) fn from_cuda(slice: CudaSlice<'a>, shape: Shape) -> Self {
        debug_assert_eq!(slice.len(), shape.numel());
        TensorRef { data: Data::Cuda(slice), shape, kind: MemoryUse::Other }
    }

    /// The same view, whose results are accounted to `kind`.
    #[inline]
    pub(crate) fn accounted_to(self, kind: MemoryUse) -> Self {
        TensorRef { kind, ..self }
    }

    /// The use that its memory is accounted to, if the tensor that it views said so.
    #[inline]
    pub(crate) fn memory_use(&self) -> MemoryUse {
        self.kind
    }

    /// This view: for code that takes tensors and views alike.
    #[inline]
    pub fn view(&self) -> TensorRef<'a> {
        *self
    }

    /// Rows `start..end` of the first dimension.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if the range exceeds the rows, or there is no dimension.
    #[inline]
    pub fn rows(self, start: usize, end: usize) -> Result<Self> {
        let (range, shape) = self.row_range(start, end)?;
        Ok(TensorRef { data: self.data.range(range), shape, ..self })
    }

    /// Elements `start..end` in row-major order, as a vector.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if the range exceeds the elements.
    #[inline]
    pub fn range(self, start: usize, end: usize) -> Result<Self> {
        self.check_range("range", start, end, self.numel())?;
        Ok(TensorRef { data: self.data.range(start..end), shape: Shape::vector(end - start), ..self })
    }

    /// The elements, which must be in host memory and of type `T`.
    ///
    /// # Errors
    /// [`KernelError::DTypeUnsupported`] for another type, [`KernelError::WrongMemory`] for GPU memory; both name `op` and `name`.
    pub fn as_slice<T: Element>(self, op: &'static str, name: &'static str) -> Result<&'a [T]> {
        if self.gpu().is_none() && self.dtype() != T::DTYPE {
            return Err(unsupported::<T>(op, self.operand(name)));
        }
        Ok(bytemuck::cast_slice(self.as_bytes(op, name)?))
    }

    /// The bytes of the elements, of any type, which must be in host memory.
    ///
    /// # Errors
    /// [`KernelError::WrongMemory`] for GPU memory, naming `op` and `name`.
    pub fn as_bytes(self, op: &'static str, name: &'static str) -> Result<&'a [u8]> {
        match self.data {
            Data::Cpu(slice) => Ok(slice.bytes),
            Data::Cuda(_) => Err(not_on_host(op, self.operand(name))),
        }
    }

    /// The elements, which must be in GPU memory.
    ///
    /// # Errors
    /// [`KernelError::WrongMemory`] for host memory.
    pub fn cuda(self) -> Result<CudaSlice<'a>> {
        match self.data {
            Data::Cuda(slice) => Ok(slice),
            Data::Cpu(_) => Err(not_on_gpu(self.operand("operand"))),
        }
    }
}

impl<'a> TensorMut<'a> {
    /// Views host memory as a tensor: `values` fill `dims` in row-major order.
    ///
    /// # Errors
    /// [`KernelError::ElementCount`] if their numbers differ.
    pub fn from_slice<T: Element>(values: &'a mut [T], dims: &[usize]) -> Result<Self> {
        let shape = Shape::new(dims)?;
        if shape.numel() != values.len() {
            return Err(KernelError::ElementCount { op: "from_slice", got: values.len(), shape });
        }
        Ok(Self::from_buffer(values, shape))
    }

    /// Views a whole buffer; the shape has as many elements.
    pub(crate) fn from_buffer<T: Element>(values: &'a mut [T], shape: Shape) -> Self {
        Self::from_bytes(bytemuck::cast_slice_mut(values), T::DTYPE, shape)
    }

    /// Views bytes in host memory, as many as the elements take and aligned for them.
    pub(crate) fn from_bytes(bytes: &'a mut [u8], dtype: DType, shape: Shape) -> Self {
        debug_assert_eq!(bytes.len(), shape.numel() * dtype.size_bytes());
        TensorMut { data: DataMut::Cpu(CpuSliceMut { bytes, dtype }), shape }
    }

    /// Views a whole device buffer; the shape has as many elements.
    pub(crate) fn from_cuda(slice: CudaSliceMut<'a>, shape: Shape) -> Self {
        debug_assert_eq!(slice.len(), shape.numel());
        TensorMut { data: DataMut::Cuda(slice), shape }
    }

    /// The same view with a shorter lifetime.
    #[inline]
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        let data = match &mut self.data {
            DataMut::Cpu(CpuSliceMut { bytes, dtype }) => DataMut::Cpu(CpuSliceMut { bytes, dtype: *dtype }),
            DataMut::Cuda(slice) => DataMut::Cuda(slice.reborrow()),
        };
        TensorMut { data, shape: self.shape }
    }

    /// A shared view of the same elements.
    #[inline]
    pub fn as_ref(&self) -> TensorRef<'_> {
        let data = match &self.data {
            DataMut::Cpu(CpuSliceMut { bytes, dtype }) => Data::Cpu(CpuSlice { bytes, dtype: *dtype }),
            DataMut::Cuda(slice) => Data::Cuda(slice.as_ref()),
        };
        TensorRef { data, shape: self.shape, kind: MemoryUse::Other }
    }

    /// The first `mid` elements and the rest, as vectors.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if there are fewer than `mid`.
    #[inline]
    pub fn split_at(self, mid: usize) -> Result<(TensorMut<'a>, TensorMut<'a>)> {
        let len = self.numel();
        self.check_range("split_at", mid, len, len)?;
        let (a, b) = match self.data {
            DataMut::Cpu(CpuSliceMut { bytes, dtype }) => {
                let (a, b) = bytes.split_at_mut(mid * dtype.size_bytes());
                let cpu = |bytes| DataMut::Cpu(CpuSliceMut { bytes, dtype });
                (cpu(a), cpu(b))
            }
            DataMut::Cuda(slice) => {
                let (a, b) = slice.split_at(mid);
                (DataMut::Cuda(a), DataMut::Cuda(b))
            }
        };
        Ok((
            TensorMut { data: a, shape: Shape::vector(mid) },
            TensorMut { data: b, shape: Shape::vector(len - mid) },
        ))
    }

    /// Elements `start..end` in row-major order, as a vector.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if the range exceeds the elements.
    #[inline]
    pub fn range(self, start: usize, end: usize) -> Result<TensorMut<'a>> {
        self.check_range("range", start, end, self.numel())?;
        Ok(TensorMut { data: self.data.range(start..end), shape: Shape::vector(end - start) })
    }

    /// Rows `start..end` of the first dimension.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if the range exceeds the rows, or there is no dimension.
    #[inline]
    pub fn rows(self, start: usize, end: usize) -> Result<TensorMut<'a>> {
        let (range, shape) = self.row_range(start, end)?;
        Ok(TensorMut { data: self.data.range(range), shape })
    }

    /// The elements, which must be in GPU memory.
    ///
    /// # Errors
    /// [`KernelError::WrongMemory`] for host memory.
    pub fn into_cuda(self) -> Result<CudaSliceMut<'a>> {
        let operand = self.operand("operand");
        match self.data {
            DataMut::Cuda(slice) => Ok(slice),
            DataMut::Cpu(_) => Err(not_on_gpu(operand)),
        }
    }

    /// The elements, which must be in host memory and of type `T`.
    ///
    /// # Errors
    /// [`KernelError::DTypeUnsupported`] for another type, [`KernelError::WrongMemory`] for GPU memory; both name `op` and `name`.
    pub fn into_slice<T: Element>(self, op: &'static str, name: &'static str) -> Result<&'a mut [T]> {
        if self.gpu().is_none() && self.dtype() != T::DTYPE {
            return Err(unsupported::<T>(op, self.operand(name)));
        }
        Ok(bytemuck::cast_slice_mut(self.into_bytes(op, name)?))
    }

    /// The bytes of the elements, of any type, which must be in host memory.
    ///
    /// # Errors
    /// [`KernelError::WrongMemory`] for GPU memory, naming `op` and `name`.
    pub fn into_bytes(self, op: &'static str, name: &'static str) -> Result<&'a mut [u8]> {
        let operand = self.operand(name);
        match self.data {
            DataMut::Cpu(slice) => Ok(slice.bytes),
            DataMut::Cuda(_) => Err(not_on_host(op, operand)),
        }
    }
}

fn unsupported<T: Element>(op: &'static str, operand: Operand) -> KernelError {
    KernelError::DTypeUnsupported { op, operand: operand.into(), takes: T::DTYPE.name() }
}

fn not_on_host(op: &'static str, operand: Operand) -> KernelError {
    KernelError::WrongMemory { op, operand: operand.into(), takes: "host memory" }
}

fn not_on_gpu(operand: Operand) -> KernelError {
    KernelError::WrongMemory { op: "cuda", operand: operand.into(), takes: "GPU memory" }
}
