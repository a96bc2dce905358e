//! One launch over the flat buffers, 16 bytes at a time.

use super::EmaConfig;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::UpdateInputs;
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("ema", include_str!("kernel.cu"));

/// Equal lengths and kinds, f32 or f64, as the caller checked.
pub(super) fn update(
    gpu: &'static Gpu,
    config: &EmaConfig,
    ema: &mut CudaSliceMut<'_>,
    weights: CudaSlice<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let n = ema.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = if ema.dtype() == DType::F64 { "ema_f64" } else { "ema_f32" };
    let launch = Launch::new(gpu, &SOURCE, kernel)?
        .for_elements(n, 16 / ema.dtype().size_bytes())
        .write(ema)
        .read(weights)
        .arg(n)
        .arg(config.decay)
        .arg(config.step)
        .read_opt(inputs.map(|i| i.scalars.cuda()).transpose()?)
        .read_opt(inputs.map(|i| i.sums.cuda()).transpose()?)
        .read_opt(inputs.and_then(|i| i.sum_of_squares).map(|s| s.cuda()).transpose()?);
    // SAFETY: ema(T* ema, const T* w, size_t n, double decay, u64 step, const double* scalars, const float* sums, const double*
    // sum_of_squares); both hold n elements, the inputs what `UpdateInputs::check` saw.
    unsafe { launch.run() }
}
