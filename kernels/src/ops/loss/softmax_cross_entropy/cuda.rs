//! Loss, gradient and sums in one launch: several rows per warp, one row per warp or one per block, by the number of classes.

use super::CrossEntropyConfig;
use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::loss::cuda::{Kernels, kernels, max_blocks};
use crate::ops::loss::sums::SumsOutput;
use crate::{DType, Result, TensorRef};

pub(crate) static SOURCE: Source = Source::new("softmax_cross_entropy", include_str!("kernel.cu"));
pub(crate) static WEIGHTED_SOURCE: Source =
    Source::with_row_weights("softmax_cross_entropy_weighted", include_str!("kernel.cu"));
/// The kernels of the focal loss, with row weights or without, in a module of their own like those with row weights.
pub(crate) static FOCAL_SOURCE: Source = Source::with_preamble(
    "softmax_cross_entropy_focal",
    "#define ROW_WEIGHTS 1\n#define FOCAL 1\n",
    include_str!("kernel.cu"),
);

/// Maximum number of classes of the kernel with eight lanes per row, the same constant as in the kernel.
const MAX_FEW: usize = 32;
/// Maximum number of classes of the kernel that keeps a row in a warp's registers; f64 has no such kernel.
const MAX_SOME: usize = 1024;
/// Most threads of a block that processes one row, and bytes of the row that each of them holds, the same constants as in the kernel.
/// Blocks of fewer threads keep more rows in flight.
const MANY_THREADS: usize = 512;
const HELD_BYTES: usize = 128;

const FEW: Kernels = kernels!("softmax_cross_entropy_few");
const SOME: Kernels = kernels!("softmax_cross_entropy_some");
const MANY: Kernels = kernels!("softmax_cross_entropy_many");

/// Same as `cpu::forward_backward`; the caller checked the operands.
pub(super) fn forward_backward(
    gpu: &'static Gpu,
    logits: CudaSlice<'_>,
    labels: CudaSlice<'_>,
    config: &CrossEntropyConfig<'_>,
    scale: f64,
    mut d_logits: Option<CudaSliceMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let n_rows = labels.len();
    let n_classes = logits.len() / n_rows.max(1);
    let (kernels, threads, rows_per_block) = match n_classes {
        0..=MAX_FEW => (&FEW, BLOCK, BLOCK as usize / 8),
        n if n <= MAX_SOME && logits.dtype() != DType::F64 => (&SOME, BLOCK, BLOCK as usize / 32),
        n => {
            let held = HELD_BYTES / logits.dtype().size_bytes().max(4);
            (&MANY, n.div_ceil(held).next_power_of_two().clamp(64, MANY_THREADS) as u32, 1)
        }
    };
    let kernel = kernels.of(logits.dtype(), d_logits.as_ref().map(CudaSliceMut::dtype));
    let source = match config.row_weights {
        _ if config.focal_gamma > 0.0 => &FOCAL_SOURCE,
        Some(_) => &WEIGHTED_SOURCE,
        None => &SOURCE,
    };
    let (scratch, accumulate) = (gpu.scratch()?, i32::from(sums.accumulate));
    let extra = sums.extra.map(TensorRef::cuda).transpose()?;
    let launch = Launch::new(gpu, source, kernel)?.threads(threads);
    let launch = launch.blocks(n_rows.div_ceil(rows_per_block).min(max_blocks(gpu))).read(logits);
    let launch = launch.read(labels).read_opt(config.class_weights.map(TensorRef::cuda).transpose()?);
    let launch = launch.read_opt(config.row_weights.map(TensorRef::cuda).transpose()?);
    let launch = launch.write_opt(d_logits.as_mut()).arg(n_rows).arg(n_classes);
    let launch = launch.arg(config.ignore_index).arg(config.label_smoothing).arg(config.focal_gamma);
    let launch = launch.arg(scale).write(&mut sums.tail.into_cuda()?).arg(accumulate).read_opt(extra);
    let launch = launch.arg(scratch.counter).arg(scratch.partials);
    // SAFETY: softmax_cross_entropy(const T* logits, const i64* labels, const M* weights, const float* row_weights, D* d,
    // size_t rows, size_t n, i64 ignore_index, double smoothing, double gamma, double scale, float* tail, int accumulate, const double* extra,
    // u32* counter, double* partials); logits and d hold rows · n elements, labels and row_weights rows, weights n, the tail STEP_SUMS_LEN, partials two a block; the block is the kernel's.
    unsafe { launch.run() }
}
