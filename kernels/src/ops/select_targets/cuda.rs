//! A thread per row.

use super::TargetColumns;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("select_targets", include_str!("kernel.cu"));

/// Selects targets of a matrix of f32, `[weights.len(), n_targets]`; class indices i64, all other operands f32, all on this device.
pub(super) fn select_targets(
    gpu: &'static Gpu,
    targets: CudaSlice<'_>,
    n_targets: usize,
    TargetColumns { first, len, factor }: TargetColumns,
    row_weights: Option<CudaSlice<'_>>,
    selected: &mut CudaSliceMut<'_>,
    weights: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let rows = weights.len();
    if rows == 0 {
        return Ok(());
    }
    let kernel = match selected.dtype() {
        DType::I64 => "select_targets_int64",
        _ => "select_targets_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(rows, 1);
    let launch = launch.read(targets).read_opt(row_weights).write(selected).write(weights);
    let launch = launch.arg(rows).arg(n_targets).arg(first).arg(len).arg(factor);
    // SAFETY: select_targets(const float* targets, const float* row_weights, S* selected, float* weights, size_t rows, size_t
    // n_targets, size_t first, size_t len, float factor); targets holds rows · n_targets elements, selected rows · len, row_weights
    // and weights `rows`; the caller checked that first + len is at most n_targets.
    unsafe { launch.run() }
}
