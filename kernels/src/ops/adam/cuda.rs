//! One launch over the flat buffers, 16 bytes at a time.

use super::{AdamConfig, WeightDecay};
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::UpdateInputs;
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("adam", include_str!("kernel.cu"));

/// The buffers of a step; equal lengths and kinds, as the caller checked.
pub(super) struct Buffers<'a> {
    pub(super) w: CudaSliceMut<'a>,
    pub(super) g: CudaSlice<'a>,
    pub(super) m: CudaSliceMut<'a>,
    pub(super) v: CudaSliceMut<'a>,
    pub(super) copy: Option<CudaSliceMut<'a>>,
}

pub(super) fn step(
    gpu: &'static Gpu,
    config: &AdamConfig,
    buffers: Buffers<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let Buffers { mut w, g, mut m, mut v, mut copy } = buffers;
    let n = w.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = match (w.dtype(), copy.as_ref().map(CudaSliceMut::dtype)) {
        (DType::F64, Some(DType::F16)) => "adam_f64_f16",
        (DType::F64, Some(_)) => "adam_f64_bf16",
        (DType::F64, None) => "adam_f64",
        (_, Some(DType::F16)) => "adam_f32_f16",
        (_, Some(_)) => "adam_f32_bf16",
        (_, None) => "adam_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?
        .for_elements(n, 16 / w.dtype().size_bytes())
        .write(&mut w)
        .read(g)
        .write(&mut m)
        .write(&mut v)
        .write_opt(copy.as_mut())
        .arg(n)
        .arg(config.lr)
        .arg(config.lr_scale)
        .arg(config.betas[0])
        .arg(config.betas[1])
        .arg(config.eps)
        .arg(config.weight_decay)
        .arg(i32::from(config.decay == WeightDecay::Coupled))
        .arg(config.step)
        .arg(config.grad_scale)
        .read_opt(inputs.map(|i| i.scalars.cuda()).transpose()?)
        .read_opt(inputs.map(|i| i.sums.cuda()).transpose()?)
        .read_opt(inputs.and_then(|i| i.sum_of_squares).map(|s| s.cuda()).transpose()?)
        .arg(inputs.map_or(0.0, |i| i.max_norm));
    // SAFETY: adam(T* w, const T* g, T* m, T* v, C* copy, size_t n, double lr, lr_scale, beta1, beta2, eps, weight_decay, int coupled,
    // u64 step, double scale, const double* scalars, const float* sums, const double* sum_of_squares, double max_norm); the
    // buffers hold n elements each, the inputs what `UpdateInputs::check` saw.
    unsafe { launch.run() }
}
