//! One kernel per dtype of the result.

use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("convert", include_str!("kernel.cu"));

/// `to = from` on this device; equal lengths, at most one of them of a float dtype.
pub(super) fn convert(gpu: &'static Gpu, from: CudaSlice<'_>, to: &mut CudaSliceMut<'_>) -> Result<()> {
    let n = to.len();
    if n == 0 {
        return Ok(());
    }
    let kind = match from.dtype() {
        DType::F32 => 0,
        DType::F64 => 1,
        DType::BF16 => 2,
        DType::F16 => 3,
        DType::I64 => 4,
        DType::I32 => 5,
        DType::U8 => 6,
        DType::Bool => 7,
    };
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("convert", to.dtype()))?.for_elements(n, 4);
    // SAFETY: convert(int kind, const void* from, T* to, size_t n); both hold n elements, `from` of the dtype `kind`.
    unsafe { launch.arg(kind).read(from).write(to).arg(n).run() }
}
