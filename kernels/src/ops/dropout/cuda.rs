//! Each thread takes four columns at a time, or 16 bytes if that is more.

use super::{DropoutKey, Rate};
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::row_tiles::RowTiles;
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("dropout", include_str!("kernel.cu"));

/// Drops elements of `x`, rows of `cols` floats on this device, whose random word is below `threshold`; multiplies the others by
/// `keep`.
///
/// `scalars`: [`crate::ops::STEP_SCALARS_LEN`] f64 that hold seed, step and first row, or none.
pub(super) fn apply(
    gpu: &'static Gpu,
    x: &mut CudaSliceMut<'_>,
    cols: usize,
    Rate { threshold, keep }: Rate,
    key: DropoutKey,
    scalars: Option<CudaSlice<'_>>,
) -> Result<()> {
    if x.is_empty() {
        return Ok(());
    }
    let (kernel, item) = match x.dtype() {
        DType::F64 => ("dropout_f64", 4),
        DType::BF16 => ("dropout_bf16", 8),
        DType::F16 => ("dropout_f16", 8),
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => ("dropout_f32", 4),
    };
    let rows = x.len() / cols;
    let tiles = RowTiles::new(gpu, rows, cols.div_ceil(item));
    let launch =
        tiles.grid(Launch::new(gpu, &SOURCE, kernel)?).write(x).arg(rows).arg(cols).arg(threshold).arg(keep);
    let launch = launch.arg(key.seed).arg(key.step).arg(u32::from(key.layer)).arg(key.first_row);
    let launch = launch.read_opt(scalars).arg(tiles.log2_width());
    // SAFETY: dropout(T* x, size_t rows, size_t cols, u32 threshold, double keep, u64 seed, u64 step, u32 layer, u64 first_row,
    // const double* scalars, u32 log2_width); x holds rows · cols elements, scalars eight or it is null.
    unsafe { launch.run() }
}
