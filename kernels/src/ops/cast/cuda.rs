//! Elementwise, 16 bytes of the wider type per access.

use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("cast", include_str!("kernel.cu"));

/// `to = from`; equal lengths and two different float dtypes, on this device.
pub(super) fn cast(gpu: &'static Gpu, from: CudaSlice<'_>, to: &mut CudaSliceMut<'_>) -> Result<()> {
    let n = to.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = match (from.dtype(), to.dtype()) {
        (DType::F32, DType::F64) => "cast_f32_f64",
        (DType::F32, DType::F16) => "cast_f32_f16",
        (DType::F32, _) => "cast_f32_bf16",
        (DType::F64, DType::BF16) => "cast_f64_bf16",
        (DType::F64, DType::F16) => "cast_f64_f16",
        (DType::F64, _) => "cast_f64_f32",
        (DType::F16, DType::F64) => "cast_f16_f64",
        (DType::F16, DType::BF16) => "cast_f16_bf16",
        (DType::F16, _) => "cast_f16_f32",
        (_, DType::F64) => "cast_bf16_f64",
        (_, DType::F16) => "cast_bf16_f16",
        (_, _) => "cast_bf16_f32",
    };
    let per_thread = 16 / from.dtype().size_bytes().max(to.dtype().size_bytes());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, per_thread);
    // SAFETY: cast(const From* from, To* to, size_t n); both hold n elements.
    unsafe { launch.read(from).write(to).arg(n).run() }
}
