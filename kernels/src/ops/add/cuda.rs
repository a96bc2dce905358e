//! Elementwise, 16 bytes per access.

use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("add", include_str!("kernel.cu"));

/// `y += x`; equal lengths and float dtypes, on this device.
pub(super) fn add(gpu: &'static Gpu, y: &mut CudaSliceMut<'_>, x: CudaSlice<'_>) -> Result<()> {
    let n = y.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = match y.dtype() {
        DType::F64 => "add_assign_f64",
        DType::BF16 => "add_assign_bf16",
        DType::F16 => "add_assign_f16",
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => "add_assign_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 16 / y.dtype().size_bytes());
    // SAFETY: add_assign(const T* x, T* y, size_t n); both hold n elements.
    unsafe { launch.read(x).write(y).arg(n).run() }
}
