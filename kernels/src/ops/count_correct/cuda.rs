//! Several rows per warp or one row per block, by the number of classes.

use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("count_correct", include_str!("kernel.cu"));
pub(crate) static WEIGHTED_SOURCE: Source =
    Source::with_row_weights("count_correct_weighted", include_str!("kernel.cu"));

/// Maximum number of blocks.
const MAX_BLOCKS: usize = 1024;
const _: () = assert!(MAX_BLOCKS <= PARTIAL_SUMS);
/// Number of classes from which a block shares a row.
const WIDE: usize = 1024;

/// Counts rows of `n_classes` float logits whose first largest one is at the label, or sums their weights; labels i64, weights
/// f32, count one f64, all on this device.
pub(super) fn count(
    gpu: &'static Gpu,
    logits: CudaSlice<'_>,
    n_classes: usize,
    labels: CudaSlice<'_>,
    row_weights: Option<CudaSlice<'_>>,
    count: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let kernel = match logits.dtype() {
        DType::F64 => "count_correct_f64",
        DType::BF16 => "count_correct_bf16",
        DType::F16 => "count_correct_f16",
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => "count_correct_f32",
    };
    let block = BLOCK as usize;
    let width = if n_classes >= WIDE { block } else { n_classes.clamp(1, 32).next_power_of_two() };
    let source = if row_weights.is_some() { &WEIGHTED_SOURCE } else { &SOURCE };
    let (rows, scratch) = (labels.len(), gpu.scratch()?);
    let launch = Launch::new(gpu, source, kernel)?.blocks(rows.div_ceil(block / width).min(MAX_BLOCKS));
    let launch = launch.read(logits).read(labels).read_opt(row_weights).write(count);
    let launch = launch.arg(rows).arg(n_classes).arg(i32::from(accumulate));
    // SAFETY: count_correct(const T* logits, const i64* labels, const float* row_weights, double* count, size_t rows, size_t
    // cols, int accumulate, u32 log2_width, u32* counter, double* partials); logits holds rows · cols elements, labels and
    // row_weights `rows`, count one, partials one for each block.
    unsafe { launch.arg(width.ilog2()).arg(scratch.counter).arg(scratch.partials).run() }
}
