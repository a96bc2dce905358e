//! One launch over the flat buffers, 16 bytes per access.

use super::segments::KernelSegments;
use super::{MAX_STATE, Tensors, Update, UpdateInputs};
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSliceMut, Gpu};
use crate::{DType, Result, TensorMut};

/// Names of an update's kernels, by the dtypes of the target, of the compute weights and of the gradients.
pub(super) struct Kernels {
    pub(super) source: &'static Source,
    pub(super) f32: &'static str,
    pub(super) f64: &'static str,
    pub(super) f32_bf16: &'static str,
    pub(super) f64_bf16: &'static str,
    pub(super) f32_f16: &'static str,
    pub(super) f64_f16: &'static str,
    pub(super) f32_grads_bf16: &'static str,
    pub(super) f32_bf16_grads_bf16: &'static str,
    pub(super) f32_f16_grads_bf16: &'static str,
}

impl Kernels {
    fn of(&self, target: DType, grads: DType, compute_weights: Option<DType>) -> &'static str {
        match (target, compute_weights) {
            (DType::F32, Some(DType::F16)) if grads == DType::BF16 => self.f32_f16_grads_bf16,
            (DType::F32, Some(_)) if grads == DType::BF16 => self.f32_bf16_grads_bf16,
            (DType::F32, None) if grads == DType::BF16 => self.f32_grads_bf16,
            (DType::F64, Some(DType::F16)) => self.f64_f16,
            (DType::F64, Some(_)) => self.f64_bf16,
            (DType::F64, None) => self.f64,
            (_, Some(DType::F16)) => self.f32_f16,
            (_, Some(_)) => self.f32_bf16,
            (_, None) => self.f32,
        }
    }
}

/// Enqueues `update` on the compute stream. [`super::run`] checked the tensors.
pub(super) fn launch<U: Update<N>, const N: usize>(
    gpu: &'static Gpu,
    update: U,
    tensors: Tensors<'_, N>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    // `UPDATE` in `update.cuh` has parameters for so many.
    const { assert!(N <= MAX_STATE && MAX_STATE == 2) };
    let Tensors { target, source, state, average, compute_weights, segments } = tensors;
    let n = target.numel();
    if n == 0 {
        return Ok(());
    }
    let mut target = target.into_cuda()?;
    let mut copy = compute_weights.map(TensorMut::into_cuda).transpose()?;
    let kernel = U::KERNELS.of(target.dtype(), source.dtype(), copy.as_ref().map(CudaSliceMut::dtype));
    let mut launch = Launch::new(gpu, U::KERNELS.source, kernel)?
        .for_elements(n, 16 / target.dtype().size_bytes())
        .write(&mut target)
        .read(source.cuda()?);
    for s in state.into_iter().chain(std::iter::repeat_with(|| None)).take(MAX_STATE) {
        launch = launch.write_opt(s.map(TensorMut::into_cuda).transpose()?.as_mut());
    }
    let (report, reported_squares) = match inputs.and_then(|inputs| inputs.report) {
        Some(report) => report.claim()?,
        None => (0, None),
    };
    let (decay, warms_up, step) =
        average.as_ref().map_or((0.0, false, 0), |average| (average.decay, average.warms_up, average.step));
    let launch = launch
        .write_opt(average.map(|average| average.ema.into_cuda()).transpose()?.as_mut())
        .write_opt(copy.as_mut())
        .arg(n)
        .arg(update.params())
        .arg(KernelSegments::new(segments))
        .arg(decay)
        .arg(i32::from(warms_up))
        .arg(step)
        .read_opt(inputs.map(|i| i.scalars.cuda()).transpose()?)
        .read_opt(inputs.map(|i| i.sums.cuda()).transpose()?)
        .read_opt(inputs.and_then(|i| i.sum_of_squares).map(|s| s.cuda()).transpose()?)
        .arg(inputs.map_or(0.0, |i| i.max_norm))
        .arg(report)
        .read_opt(reported_squares)
        .arg(inputs.and_then(|_| gpu.gate_ptr()).unwrap_or_default());
    // SAFETY: UPDATE(T* w, const G* g, T* s0, T* s1, T* ema, C* copy, size_t n, Params params, Segments segments, double decay, int warms_up, u64
    // step, const double* scalars, float* sums, const double* sum_of_squares, double max_norm, float* report, const double* reported_squares, u64* gate); the
    // buffers hold n elements each, the inputs what `UpdateInputs::check` requires, of the sums nothing else reads or writes the last
    // element meanwhile, the report what `StepReport::new` does, the gate three,
    // and `Update::Params` is `Params`.
    unsafe { launch.run() }
}
