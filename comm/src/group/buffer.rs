//! A view's address, length and type, once its borrow is held elsewhere.

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Result, TensorMut, TensorRef};

/// Elements to read, in host memory or in that of a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRef {
    /// On a GPU, an address there, which the host never follows.
    pub(crate) ptr: *const u8,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
}

/// Elements to read and write, in host memory or in that of a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawMut {
    /// On a GPU, an address there, which the host never follows.
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    pub(crate) gpu: Option<&'static Gpu>,
}

impl RawRef {
    /// The address of a view, which stays borrowed for as long as the caller uses it.
    pub(crate) fn of(view: TensorRef<'_>, op: &'static str, name: &'static str) -> Result<Self> {
        let (len, dtype) = (view.numel(), view.dtype());
        let ptr = match view.gpu() {
            Some(_) => std::ptr::without_provenance(view.cuda()?.ptr() as usize),
            None => view.as_bytes(op, name)?.as_ptr(),
        };
        Ok(RawRef { ptr, len, dtype })
    }
}

impl RawMut {
    /// No elements at all.
    pub(crate) const NOTHING: Self = RawMut {
        ptr: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(),
        len: 0,
        dtype: DType::I64,
        gpu: None,
    };

    /// The address of a view, which stays borrowed for as long as the caller uses it.
    pub(crate) fn of(view: TensorMut<'_>, op: &'static str) -> Result<Self> {
        let (len, dtype, gpu) = (view.numel(), view.dtype(), view.gpu());
        if gpu.is_some() {
            let ptr = std::ptr::without_provenance_mut(view.into_cuda()?.ptr() as usize);
            return Ok(RawMut { ptr, len, dtype, gpu });
        }
        let ptr = view.into_bytes(op, "operand")?.as_mut_ptr();
        Ok(RawMut { ptr, len, dtype, gpu })
    }

    /// The same elements, to read.
    pub(crate) fn as_ref(self) -> RawRef {
        RawRef { ptr: self.ptr, len: self.len, dtype: self.dtype }
    }
}
