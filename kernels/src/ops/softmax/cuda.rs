//! A warp per row.

use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("softmax", include_str!("kernel.cu"));

/// Rows of a block.
const BLOCK_ROWS: usize = BLOCK as usize / 32;

pub(super) fn forward(gpu: &'static Gpu, y: &mut CudaSliceMut<'_>, cols: usize) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let rows = y.len() / cols;
    let kernel = match y.dtype() {
        DType::F64 => "softmax_fwd_f64",
        DType::BF16 => "softmax_fwd_bf16",
        DType::F16 => "softmax_fwd_f16",
        _ => "softmax_fwd_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.blocks(rows.div_ceil(BLOCK_ROWS));
    let launch = launch.write(y).arg(rows).arg(cols);
    // SAFETY: softmax_fwd(T* y, size_t rows, size_t cols); y holds rows * cols elements.
    unsafe { launch.run() }
}

pub(super) fn backward(
    gpu: &'static Gpu,
    y: CudaSlice<'_>,
    d: &mut CudaSliceMut<'_>,
    cols: usize,
) -> Result<()> {
    if d.is_empty() {
        return Ok(());
    }
    let rows = d.len() / cols;
    let kernel = match d.dtype() {
        DType::F64 => "softmax_bwd_f64",
        DType::BF16 => "softmax_bwd_bf16",
        DType::F16 => "softmax_bwd_f16",
        _ => "softmax_bwd_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.blocks(rows.div_ceil(BLOCK_ROWS));
    let launch = launch.read(y).write(d).arg(rows).arg(cols);
    // SAFETY: softmax_bwd(const T* y, T* d, size_t rows, size_t cols); both hold rows * cols elements.
    unsafe { launch.run() }
}
