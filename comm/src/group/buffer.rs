//! Address, length and type of a view whose borrow is held elsewhere.

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Result, TensorMut, TensorRef};

/// Elements to read, in host memory or on a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRef {
    /// A device address if the elements are on a GPU, which the host never dereferences.
    pub(crate) ptr: *const u8,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
}

/// Elements to read and write, in host memory or on a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawMut {
    /// A device address if the elements are on a GPU, which the host never dereferences.
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    pub(crate) gpu: Option<&'static Gpu>,
}

impl RawRef {
    /// The address of a view. The caller keeps the view borrowed for as long as it uses the address.
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
    /// No elements.
    pub(crate) const NOTHING: Self = RawMut {
        ptr: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(),
        len: 0,
        dtype: DType::I64,
        gpu: None,
    };

    /// The address of a view. The caller keeps the view borrowed for as long as it uses the address.
    pub(crate) fn of(view: TensorMut<'_>, op: &'static str) -> Result<Self> {
        let (len, dtype, gpu) = (view.numel(), view.dtype(), view.gpu());
        if gpu.is_some() {
            let ptr = std::ptr::without_provenance_mut(view.into_cuda()?.ptr() as usize);
            return Ok(RawMut { ptr, len, dtype, gpu });
        }
        let ptr = view.into_bytes(op, "operand")?.as_mut_ptr();
        Ok(RawMut { ptr, len, dtype, gpu })
    }

    /// The same elements, read-only.
    pub(crate) fn as_ref(self) -> RawRef {
        RawRef { ptr: self.ptr, len: self.len, dtype: self.dtype }
    }
}
