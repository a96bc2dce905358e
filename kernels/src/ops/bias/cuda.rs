//! One pass over the elements; for the gradient, threads share the columns and blocks share the rows.

use crate::cuda::column_grid::{COLUMN_BLOCK, ColumnGrid};
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("bias", include_str!("kernel.cu")).after_others();

/// Elements per 16-byte access, if rows and addresses allow it.
fn per_access(dtype: DType, cols: usize, addresses: u64) -> Option<usize> {
    let n = 16 / dtype.size_bytes();
    (cols.is_multiple_of(n) && addresses.is_multiple_of(16)).then_some(n)
}

/// `y += bias` on every row.
pub(crate) fn forward(gpu: &'static Gpu, bias: CudaSlice<'_>, y: &mut CudaSliceMut<'_>) -> Result<()> {
    let cols = bias.len();
    if y.is_empty() {
        return Ok(());
    }
    let wide = per_access(y.dtype(), cols, bias.ptr() | y.ptr());
    let kernel = match (y.dtype(), wide.is_some()) {
        (DType::F64, true) => "bias_fwd_f64_by_16_bytes",
        (DType::F64, false) => "bias_fwd_f64",
        (DType::BF16, true) => "bias_fwd_bf16_by_16_bytes",
        (DType::F16, true) => "bias_fwd_f16_by_16_bytes",
        (DType::BF16, false) => "bias_fwd_bf16",
        (DType::F16, false) => "bias_fwd_f16",
        (_, true) => "bias_fwd_f32_by_16_bytes",
        (_, false) => "bias_fwd_f32",
    };
    let rows = y.len() / cols;
    let tiles = RowTiles::new(gpu, rows, cols / wide.unwrap_or(1));
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, kernel)?);
    let launch = launch.read(bias).write(y).arg(rows).arg(cols).arg(tiles.log2_width());
    // SAFETY: fwd(const T* bias, T* y, size_t rows, size_t cols, u32 log2_width); bias holds cols elements, y rows · cols, and if
    // the kernel moves 16 bytes at a time, rows and addresses are multiples of 16 bytes.
    unsafe { launch.run() }
}

/// The kernels `$prefix` for sums of the columns, by the dtypes of operand and sums, and whether they access 16 bytes at a time.
macro_rules! column_kernel {
    ($prefix:literal, $dtypes:expr) => {
        match $dtypes {
            (DType::F64, _, true) => concat!($prefix, "_f64_by_16_bytes"),
            (DType::F64, _, false) => concat!($prefix, "_f64"),
            (DType::BF16, DType::BF16, true) => concat!($prefix, "_bf16_by_16_bytes"),
            (DType::F16, DType::F16, true) => concat!($prefix, "_f16_by_16_bytes"),
            (DType::BF16, DType::BF16, false) => concat!($prefix, "_bf16"),
            (DType::F16, DType::F16, false) => concat!($prefix, "_f16"),
            (DType::BF16, _, true) => concat!($prefix, "_bf16_f32_by_16_bytes"),
            (DType::F16, _, true) => concat!($prefix, "_f16_f32_by_16_bytes"),
            (DType::BF16, _, false) => concat!($prefix, "_bf16_f32"),
            (DType::F16, _, false) => concat!($prefix, "_f16_f32"),
            (_, _, true) => concat!($prefix, "_f32_by_16_bytes"),
            (_, _, false) => concat!($prefix, "_f32"),
        }
    };
}

/// `d_bias = Σ_rows d_y`, or `+=` if `accumulate`.
pub(crate) fn backward(
    gpu: &'static Gpu,
    d_y: CudaSlice<'_>,
    cols: usize,
    d_bias: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    if cols == 0 {
        return Ok(());
    }
    let wide = per_access(d_y.dtype(), cols, d_y.ptr());
    let kernel = column_kernel!("bias_bwd", (d_y.dtype(), d_bias.dtype(), wide.is_some()));
    let launch = Launch::new(gpu, &SOURCE, kernel)?.read(d_y).write(d_bias);
    // SAFETY: bwd(const T* d_y, D* d_bias, ...); see `launch_column_sums`.
    unsafe { launch_column_sums(gpu, launch, d_y, cols, wide, accumulate) }
}

/// `d = d` where `saved > 0`, else `0·d`; then as [`backward`] of it, in the same launch.
pub(crate) fn backward_through_relu(
    gpu: &'static Gpu,
    saved: CudaSlice<'_>,
    d: &mut CudaSliceMut<'_>,
    cols: usize,
    d_bias: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    if cols == 0 {
        return Ok(());
    }
    let wide = per_access(d.dtype(), cols, d.ptr() | saved.ptr());
    let kernel = column_kernel!("relu_bias_bwd", (d.dtype(), d_bias.dtype(), wide.is_some()));
    let launch = Launch::new(gpu, &SOURCE, kernel)?.write(d).read(saved).write(d_bias);
    // SAFETY: relu_bias_bwd(T* d_y, const T* saved, D* d_bias, ...); saved holds as many elements as d, as the caller checked; see
    // `launch_column_sums`.
    unsafe { launch_column_sums(gpu, launch, d.as_ref(), cols, wide, accumulate) }
}

/// Adds the arguments after `d_bias` and launches.
///
/// # Safety
/// Same as [`Launch::run`]; the kernel ends with `size_t rows, size_t cols, int accumulate, u32 log2_lanes, u32* counters, M* partials`;
/// its matrices hold rows · cols elements, `d_bias` cols, and if `wide` is given, rows and addresses are multiples of 16 bytes.
unsafe fn launch_column_sums(
    gpu: &'static Gpu,
    launch: Launch,
    d_y: CudaSlice<'_>,
    cols: usize,
    wide: Option<usize>,
    accumulate: bool,
) -> Result<()> {
    let rows = d_y.len() / cols;
    let sum_bytes = if d_y.dtype() == DType::F64 { 8 } else { 4 };
    // At least 128 bytes of a row, unless it is narrower.
    let least_lanes = if wide.is_some() { 8 } else { 32 };
    let grid = ColumnGrid::new(rows, cols, wide.unwrap_or(1), least_lanes, sum_bytes);
    let scratch = gpu.scratch()?;
    let launch = launch.threads(COLUMN_BLOCK as u32).grid_2d(grid.tiles, grid.shares);
    let launch = launch.arg(rows).arg(cols).arg(i32::from(accumulate));
    let launch = launch.arg(grid.log2_lanes).arg(scratch.counter).arg(scratch.partials);
    // SAFETY: the caller guarantees the operands; a block is COLUMN_BLOCK threads; with several shares there is a counter for each
    // tile, and there are places for the columns of each share.
    unsafe { launch.run() }
}
