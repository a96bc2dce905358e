//! Loss, gradient and sums in one launch, by a kernel next to binary cross-entropy in `kernel.cu`.

use crate::cuda::launch::{BLOCK, Launch};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::loss::kernels::{Kernels, SOURCE, kernels, max_blocks};
use crate::ops::loss::sums::SumsOutput;
use crate::{Result, TensorRef};

const KERNELS: Kernels = kernels!("ordinal");

/// Same as `cpu::sum_and_gradient`; the caller checked the operands.
pub(super) fn sum_and_gradient(
    gpu: &'static Gpu,
    logits: CudaSlice<'_>,
    labels: CudaSlice<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    mut d: Option<CudaSliceMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let extra = sums.extra.map(TensorRef::cuda).transpose()?;
    let kernel = KERNELS.of(logits.dtype(), d.as_ref().map(CudaSliceMut::dtype));
    let (scratch, n, accumulate) = (gpu.scratch()?, logits.len(), i32::from(sums.accumulate));
    let n_cols = n / labels.len().max(1);
    let launch = Launch::new(gpu, &SOURCE, kernel)?
        .blocks(n.div_ceil(BLOCK as usize).min(max_blocks(gpu)))
        .read(logits)
        .read(labels)
        .read_opt(row_weights.map(TensorRef::cuda).transpose()?)
        .write_opt(d.as_mut())
        .arg(n)
        .arg(n_cols)
        .arg(scale)
        .write(&mut sums.tail.into_cuda()?)
        .arg(accumulate)
        .read_opt(extra)
        .arg(scratch.counter)
        .arg(scratch.partials);
    // SAFETY: ordinal(const T* x, const i64* labels, const float* row_weights, D* d, size_t n, size_t cols, double scale, float* tail,
    // int accumulate, const double* extra, u32* counter, double* partials); x and d hold n elements, labels and row_weights one for
    // each `cols` of them, the tail STEP_SUMS_LEN, partials two a block.
    unsafe { launch.run() }
}
