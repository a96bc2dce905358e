//! Borrowed views of tensors: what operations take.
//!
//! A view is a contiguous row-major range of a tensor's storage with a shape. Views of one flat buffer can be
//! split and lent out piece by piece, so the borrow checker sees to it that a bucket that is being reduced is
//! not written at the same time.

use crate::error::Operand;
use crate::{DType, Device, Element, KernelError, Result, Shape};

/// Elements in host memory, by type.
#[derive(Debug, Clone, Copy)]
pub enum CpuSlice<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Double precision.
    F64(&'a [f64]),
    /// Integers.
    I64(&'a [i64]),
}

/// Writable elements in host memory, by type.
#[derive(Debug)]
pub enum CpuSliceMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Double precision.
    F64(&'a mut [f64]),
    /// Integers.
    I64(&'a mut [i64]),
}

/// A shared view of a tensor or of a part of one.
#[derive(Debug, Clone, Copy)]
pub struct TensorRef<'a> {
    data: CpuSlice<'a>,
    shape: Shape,
}

/// An exclusive view of a tensor or of a part of one.
#[derive(Debug)]
pub struct TensorMut<'a> {
    data: CpuSliceMut<'a>,
    shape: Shape,
}

/// What `$self.data` is, with the same expression for each element type.
macro_rules! each_type {
    ($enum:ident, $data:expr, $slice:ident => $body:expr) => {
        match $data {
            $enum::F32($slice) => $enum::F32($body),
            $enum::F64($slice) => $enum::F64($body),
            $enum::I64($slice) => $enum::I64($body),
        }
    };
}

macro_rules! common {
    ($view:ident, $enum:ident) => {
        impl<'a> $view<'a> {
            /// The shape.
            pub fn shape(&self) -> Shape {
                self.shape
            }

            /// Number of elements.
            pub fn numel(&self) -> usize {
                self.shape.numel()
            }

            /// Type of the elements.
            pub fn dtype(&self) -> DType {
                match self.data {
                    $enum::F32(_) => DType::F32,
                    $enum::F64(_) => DType::F64,
                    $enum::I64(_) => DType::I64,
                }
            }

            /// Where the elements live.
            pub fn device(&self) -> Device {
                Device::Cpu
            }

            /// How error messages show this view.
            pub fn operand(&self, name: &'static str) -> Operand {
                Operand { name, shape: self.shape, dtype: self.dtype(), device: self.device() }
            }

            /// The same elements under another shape.
            ///
            /// # Errors
            /// [`KernelError::ElementCount`] if the shape holds another number of elements.
            pub fn reshape(self, dims: &[usize]) -> Result<Self> {
                let shape = Shape::new(dims)?;
                if shape.numel() != self.numel() {
                    return Err(KernelError::ElementCount { op: "reshape", got: self.numel(), shape });
                }
                Ok($view { shape, ..self })
            }

            /// The elements of rows `start..end`, and the shape that they fill.
            fn row_range(&self, start: usize, end: usize) -> Result<(std::ops::Range<usize>, Shape)> {
                let n_rows = self.shape.dims().first().copied().unwrap_or(0);
                self.check_range("rows", start, end, n_rows)?;
                let stride = self.numel() / n_rows.max(1);
                Ok((start * stride..end * stride, self.shape.with_rows(end - start)))
            }

            fn check_range(&self, op: &'static str, start: usize, end: usize, len: usize) -> Result<()> {
                if start > end || end > len {
                    return Err(KernelError::OutOfRange { op, start, end, len });
                }
                Ok(())
            }
        }
    };
}
common!(TensorRef, CpuSlice);
common!(TensorMut, CpuSliceMut);

impl<'a> TensorRef<'a> {
    /// A view of host memory, `values` filling `dims` in row-major order.
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

    /// The view of a whole buffer whose length is the shape's.
    pub(crate) fn from_buffer<T: Element>(values: &'a [T], shape: Shape) -> Self {
        let data = match T::DTYPE {
            DType::F32 => CpuSlice::F32(bytemuck::cast_slice(values)),
            DType::F64 => CpuSlice::F64(bytemuck::cast_slice(values)),
            DType::I64 => CpuSlice::I64(bytemuck::cast_slice(values)),
        };
        TensorRef { data, shape }
    }

    /// Rows `start..end` of the first dimension.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond the last row.
    pub fn rows(self, start: usize, end: usize) -> Result<Self> {
        let (range, shape) = self.row_range(start, end)?;
        let data = each_type!(CpuSlice, self.data, s => &s[range]);
        Ok(TensorRef { data, shape })
    }

    /// Elements `start..end` in row-major order, as a vector.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond the end.
    pub fn range(self, start: usize, end: usize) -> Result<Self> {
        self.check_range("range", start, end, self.numel())?;
        let data = each_type!(CpuSlice, self.data, s => &s[start..end]);
        Ok(TensorRef { data, shape: Shape::vector(end - start) })
    }

    /// The elements, if they are in host memory and of this type.
    ///
    /// # Errors
    /// [`KernelError::DTypeUnsupported`] for another type, naming `op` and `name`.
    pub fn as_slice<T: Element>(self, op: &'static str, name: &'static str) -> Result<&'a [T]> {
        let bytes: &'a [u8] = match self.data {
            CpuSlice::F32(s) if T::DTYPE == DType::F32 => bytemuck::cast_slice(s),
            CpuSlice::F64(s) if T::DTYPE == DType::F64 => bytemuck::cast_slice(s),
            CpuSlice::I64(s) if T::DTYPE == DType::I64 => bytemuck::cast_slice(s),
            _ => return Err(unsupported::<T>(op, self.operand(name))),
        };
        Ok(bytemuck::cast_slice(bytes))
    }
}

impl<'a> TensorMut<'a> {
    /// A view of host memory, `values` filling `dims` in row-major order.
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

    /// The view of a whole buffer whose length is the shape's.
    pub(crate) fn from_buffer<T: Element>(values: &'a mut [T], shape: Shape) -> Self {
        let data = match T::DTYPE {
            DType::F32 => CpuSliceMut::F32(bytemuck::cast_slice_mut(values)),
            DType::F64 => CpuSliceMut::F64(bytemuck::cast_slice_mut(values)),
            DType::I64 => CpuSliceMut::I64(bytemuck::cast_slice_mut(values)),
        };
        TensorMut { data, shape }
    }

    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        let data = each_type!(CpuSliceMut, &mut self.data, s => s);
        TensorMut { data, shape: self.shape }
    }

    /// A shared view of the same elements.
    pub fn as_ref(&self) -> TensorRef<'_> {
        let data = match &self.data {
            CpuSliceMut::F32(s) => CpuSlice::F32(s),
            CpuSliceMut::F64(s) => CpuSlice::F64(s),
            CpuSliceMut::I64(s) => CpuSlice::I64(s),
        };
        TensorRef { data, shape: self.shape }
    }

    /// The first `mid` elements and the rest, as vectors.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if there are fewer than `mid`.
    pub fn split_at(self, mid: usize) -> Result<(TensorMut<'a>, TensorMut<'a>)> {
        let len = self.numel();
        self.check_range("split_at", mid, len, len)?;
        macro_rules! split {
            ($($variant:ident),*) => {
                match self.data {
                    $(CpuSliceMut::$variant(s) => {
                        let (a, b) = s.split_at_mut(mid);
                        (CpuSliceMut::$variant(a), CpuSliceMut::$variant(b))
                    })*
                }
            };
        }
        let (a, b) = split!(F32, F64, I64);
        Ok((
            TensorMut { data: a, shape: Shape::vector(mid) },
            TensorMut { data: b, shape: Shape::vector(len - mid) },
        ))
    }

    /// Elements `start..end` in row-major order, as a vector.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond the end.
    pub fn range(self, start: usize, end: usize) -> Result<TensorMut<'a>> {
        self.check_range("range", start, end, self.numel())?;
        let data = each_type!(CpuSliceMut, self.data, s => &mut s[start..end]);
        Ok(TensorMut { data, shape: Shape::vector(end - start) })
    }

    /// Rows `start..end` of the first dimension.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond the last row.
    pub fn rows(self, start: usize, end: usize) -> Result<TensorMut<'a>> {
        let (range, shape) = self.row_range(start, end)?;
        let data = each_type!(CpuSliceMut, self.data, s => &mut s[range]);
        Ok(TensorMut { data, shape })
    }

    /// Elements as they stand in host memory, by type.
    pub fn into_cpu(self) -> CpuSliceMut<'a> {
        self.data
    }

    /// The elements, if they are in host memory and of this type.
    ///
    /// # Errors
    /// [`KernelError::DTypeUnsupported`] for another type, naming `op` and `name`.
    pub fn into_slice<T: Element>(self, op: &'static str, name: &'static str) -> Result<&'a mut [T]> {
        let operand = self.operand(name);
        let bytes: &'a mut [u8] = match self.data {
            CpuSliceMut::F32(s) if T::DTYPE == DType::F32 => bytemuck::cast_slice_mut(s),
            CpuSliceMut::F64(s) if T::DTYPE == DType::F64 => bytemuck::cast_slice_mut(s),
            CpuSliceMut::I64(s) if T::DTYPE == DType::I64 => bytemuck::cast_slice_mut(s),
            _ => return Err(unsupported::<T>(op, operand)),
        };
        Ok(bytemuck::cast_slice_mut(bytes))
    }
}

fn unsupported<T: Element>(op: &'static str, operand: Operand) -> KernelError {
    let takes = match T::DTYPE {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::I64 => "i64",
    };
    KernelError::DTypeUnsupported { op, operand: operand.into(), takes }
}
