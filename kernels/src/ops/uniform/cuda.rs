//! Each thread computes one Philox block, four elements, at a time.

use super::UniformStream;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("uniform", include_str!("kernel.cu"));

/// Fills `x`, of a float dtype on this device.
pub(super) fn fill(
    gpu: &'static Gpu,
    x: &mut CudaSliceMut<'_>,
    low: f32,
    high: f32,
    stream: UniformStream,
) -> Result<()> {
    let n = x.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = match x.dtype() {
        DType::F64 => "uniform_f64",
        DType::BF16 => "uniform_bf16",
        DType::F16 => "uniform_f16",
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => "uniform_f32",
    };
    let launch =
        Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 4).write(x).arg(n).arg(low).arg(high - low);
    let launch = launch.arg(stream.seed).arg(stream.stream[0]).arg(stream.stream[1]);
    // SAFETY: uniform(T* x, size_t n, float low, float range, u64 seed, u32 stream0, u32 stream1); x holds n elements.
    unsafe { launch.run() }
}
