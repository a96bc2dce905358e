//! A view's address, length and type, once its borrow is held elsewhere.

use ddp_kernels::{CpuSliceMut, DType, Result, TensorMut, TensorRef};

/// Elements to read, in host memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRef {
    pub(crate) ptr: *const u8,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
}

/// Elements to read and write, in host memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawMut {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
}

impl RawRef {
    /// The address of a view, which stays borrowed for as long as the caller uses it.
    pub(crate) fn of(view: TensorRef<'_>, op: &'static str, name: &'static str) -> Result<Self> {
        let dtype = view.dtype();
        let ptr = match dtype {
            DType::F32 => view.as_slice::<f32>(op, name)?.as_ptr().cast(),
            DType::F64 => view.as_slice::<f64>(op, name)?.as_ptr().cast(),
            DType::I64 => view.as_slice::<i64>(op, name)?.as_ptr().cast(),
        };
        Ok(RawRef { ptr, len: view.numel(), dtype })
    }
}

impl RawMut {
    /// No elements at all.
    pub(crate) const NOTHING: Self =
        RawMut { ptr: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(), len: 0, dtype: DType::I64 };

    /// The address of a view, which stays borrowed for as long as the caller uses it.
    pub(crate) fn of(view: TensorMut<'_>) -> Self {
        let (len, dtype) = (view.numel(), view.dtype());
        let ptr = match view.into_cpu() {
            CpuSliceMut::F32(s) => s.as_mut_ptr().cast(),
            CpuSliceMut::F64(s) => s.as_mut_ptr().cast(),
            CpuSliceMut::I64(s) => s.as_mut_ptr().cast(),
        };
        RawMut { ptr, len, dtype }
    }

    /// The same elements, to read.
    pub(crate) fn as_ref(self) -> RawRef {
        RawRef { ptr: self.ptr, len: self.len, dtype: self.dtype }
    }
}
