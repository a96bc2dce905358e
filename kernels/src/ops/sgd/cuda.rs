//! One launch over the flat buffers, 16 bytes at a time.

use super::SgdConfig;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::UpdateInputs;
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("sgd", include_str!("kernel.cu"));

/// The buffers of a step; equal lengths and kinds, as the caller checked.
pub(super) struct Buffers<'a> {
    pub(super) w: CudaSliceMut<'a>,
    pub(super) g: CudaSlice<'a>,
    pub(super) velocity: Option<CudaSliceMut<'a>>,
    pub(super) copy: Option<CudaSliceMut<'a>>,
}

pub(super) fn step(
    gpu: &'static Gpu,
    config: &SgdConfig,
    buffers: Buffers<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let Buffers { mut w, g, mut velocity, mut copy } = buffers;
    let n = w.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = match (w.dtype(), copy.as_ref().map(CudaSliceMut::dtype)) {
        (DType::F64, Some(DType::F16)) => "sgd_f64_f16",
        (DType::F64, Some(_)) => "sgd_f64_bf16",
        (DType::F64, None) => "sgd_f64",
        (_, Some(DType::F16)) => "sgd_f32_f16",
        (_, Some(_)) => "sgd_f32_bf16",
        (_, None) => "sgd_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?
        .for_elements(n, 16 / w.dtype().size_bytes())
        .write(&mut w)
        .read(g)
        .write_opt(velocity.as_mut())
        .write_opt(copy.as_mut())
        .arg(n)
        .arg(config.lr)
        .arg(config.lr_scale)
        .arg(config.momentum)
        .arg(config.weight_decay)
        .arg(i32::from(config.nesterov))
        .arg(config.grad_scale)
        .read_opt(inputs.map(|i| i.scalars.cuda()).transpose()?)
        .read_opt(inputs.map(|i| i.sums.cuda()).transpose()?)
        .read_opt(inputs.and_then(|i| i.sum_of_squares).map(|s| s.cuda()).transpose()?)
        .arg(inputs.map_or(0.0, |i| i.max_norm));
    // SAFETY: sgd(T* w, const T* g, T* v, C* copy, size_t n, double lr, lr_scale, momentum, weight_decay, int nesterov, double scale,
    // const double* scalars, const float* sums, const double* sum_of_squares, double max_norm); the buffers hold n elements
    // each, the inputs what `UpdateInputs::check` saw.
    unsafe { launch.run() }
}
