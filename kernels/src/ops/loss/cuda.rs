//! Losses on a GPU: their kernels by name, and the launch that all losses of elements share.

use super::sums::SumsOutput;
use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};
use crate::{DType, Result, TensorRef};

/// The sums of a loss have the same bits with and without a gradient.
pub(crate) static SOURCE: Source = Source::new("loss", include_str!("kernel.cu"));
pub(crate) static WEIGHTED_SOURCE: Source =
    Source::with_row_weights("loss_weighted", include_str!("kernel.cu"));

/// Names of a loss's kernels, by the dtypes of operands and gradient.
pub(crate) struct Kernels {
    pub(crate) f32: &'static str,
    pub(crate) f64: &'static str,
    pub(crate) bf16: &'static str,
    pub(crate) f16: &'static str,
    /// f32 operands with a gradient in bf16.
    pub(crate) f32_bf16: &'static str,
    /// f32 operands with a gradient in f16.
    pub(crate) f32_f16: &'static str,
}

/// The [`Kernels`] of the loss with this name.
macro_rules! kernels {
    ($name:literal) => {
        $crate::ops::loss::cuda::Kernels {
            f32: concat!($name, "_f32"),
            f64: concat!($name, "_f64"),
            bf16: concat!($name, "_bf16"),
            f16: concat!($name, "_f16"),
            f32_bf16: concat!($name, "_f32_bf16"),
            f32_f16: concat!($name, "_f32_f16"),
        }
    };
}
pub(crate) use kernels;

impl Kernels {
    /// The kernel for operands of dtype `x` and a gradient of dtype `d`, if any.
    pub(crate) fn of(&self, x: DType, d: Option<DType>) -> &'static str {
        match (x, d) {
            (DType::F64, _) => self.f64,
            (DType::BF16, _) => self.bf16,
            (DType::F16, _) => self.f16,
            (_, Some(DType::BF16)) => self.f32_bf16,
            (_, Some(DType::F16)) => self.f32_f16,
            _ => self.f32,
        }
    }
}

/// Number of blocks that fills the device, limited by the partial sums in the scratch.
pub(crate) fn max_blocks(gpu: &Gpu) -> usize {
    (gpu.info().multiprocessors as usize * 8).min(PARTIAL_SUMS / 2)
}

/// Number of blocks for `n` elements of a loss of elements, 16 bytes at a time: those that are resident at once with up to 64 registers
/// per thread, since a second round of fewer blocks would leave half of the device idle.
pub(super) fn element_blocks(gpu: &Gpu, n: usize, dtype: DType) -> usize {
    let wanted = n.div_ceil(BLOCK as usize * 16 / dtype.size_bytes());
    wanted.min(gpu.info().multiprocessors as usize * 4).min(PARTIAL_SUMS / 2)
}

/// Loss, gradient and sums in one launch.
///
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
    let source = if row_weights.is_some() { &WEIGHTED_SOURCE } else { &SOURCE };
    let n_cols = row_weights.map_or(n, |weights| n / weights.numel().max(1));
    let launch = Launch::new(gpu, source, kernel)?.blocks(element_blocks(gpu, n, x.dtype())).read(x);
    let launch = launch.read(target).read_opt(row_weights.map(TensorRef::cuda).transpose()?);
    let launch = launch.write_opt(d.as_mut()).arg(n).arg(n_cols).arg(parameter).arg(scale);
    let launch = launch.write(&mut sums.tail.into_cuda()?).arg(accumulate).read_opt(extra);
    let launch = launch.arg(scratch.counter).arg(scratch.partials);
    // SAFETY: loss(const T* x, const T* target, const float* row_weights, D* d, size_t n, size_t cols, double parameter,
    // double scale, float* tail, int accumulate, const double* extra, u32* counter, double* partials); x, target and d hold n elements, row_weights
    // one for each `cols` of them, the tail STEP_SUMS_LEN, partials two a block.
    unsafe { launch.run() }
}
