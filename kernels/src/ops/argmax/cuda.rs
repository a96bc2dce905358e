//! A warp per row.

use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("argmax", include_str!("kernel.cu"));

/// Maximum number of blocks.
const MAX_BLOCKS: usize = 4096;
const WARP: usize = 32;

/// Writes the place of the first largest of `n_cols` floats of each row; `index` is i64, on this device.
pub(super) fn argmax(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    n_cols: usize,
    index: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let kernel = match x.dtype() {
        DType::F64 => "argmax_f64",
        DType::BF16 => "argmax_bf16",
        DType::F16 => "argmax_f16",
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => "argmax_f32",
    };
    let rows = index.len();
    if rows == 0 {
        return Ok(());
    }
    let rows_per_block = BLOCK as usize / WARP;
    let launch = Launch::new(gpu, &SOURCE, kernel)?.blocks(rows.div_ceil(rows_per_block).min(MAX_BLOCKS));
    // SAFETY: argmax(const T* x, i64* index, size_t rows, size_t cols); x holds rows · cols elements, index `rows`.
    unsafe { launch.read(x).write(index).arg(rows).arg(n_cols).run() }
}
