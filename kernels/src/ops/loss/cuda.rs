//! Loss, gradient and sums in one launch.

use super::kernels::{Kernels, SOURCE, WEIGHTED_SOURCE, max_blocks};
use super::sums::SumsOutput;
use crate::cuda::launch::{BLOCK, Launch};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{Result, TensorRef};

/// Same as `cpu::sum_and_gradient`, by the kernels of a loss with their parameter; the caller checked the operands.
#[allow(clippy::too_many_arguments)] // The operands of the operation.
pub(super) fn sum_and_gradient(
    gpu: &'static Gpu,
    (kernels, parameter): (&Kernels, f64),
    x: CudaSlice<'_>,
    target: CudaSlice<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    mut d: Option<CudaSliceMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let extra = sums.extra.map(TensorRef::cuda).transpose()?;
    let kernel = kernels.of(x.dtype(), d.as_ref().map(CudaSliceMut::dtype));
    let (scratch, n, accumulate) = (gpu.scratch()?, x.len(), i32::from(sums.accumulate));
    let n_blocks = n.div_ceil(BLOCK as usize * 16 / x.dtype().size_bytes());
    let source = if row_weights.is_some() { &WEIGHTED_SOURCE } else { &SOURCE };
    let n_cols = row_weights.map_or(n, |weights| n / weights.numel().max(1));
    let launch = Launch::new(gpu, source, kernel)?
        .blocks(n_blocks.min(max_blocks(gpu)))
        .read(x)
        .read(target)
        .read_opt(row_weights.map(TensorRef::cuda).transpose()?)
        .write_opt(d.as_mut())
        .arg(n)
        .arg(n_cols)
        .arg(parameter)
        .arg(scale)
        .write(&mut sums.tail.into_cuda()?)
        .arg(accumulate)
        .read_opt(extra)
        .arg(scratch.counter)
        .arg(scratch.partials);
    // SAFETY: loss(const T* x, const T* target, const float* row_weights, D* d, size_t n, size_t cols, double parameter,
    // double scale, float* tail, int accumulate, const double* extra, u32* counter, double* partials); x, target and d hold n elements, row_weights
    // one for each `cols` of them, the tail STEP_SUMS_LEN, partials two a block.
    unsafe { launch.run() }
}
