//! One pass over the elements; for the gradient, threads share the columns and blocks share the rows.

use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("bias", include_str!("kernel.cu"));

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
    let grid = ColumnGrid::new(rows, cols, wide.unwrap_or(1), sum_bytes);
    let scratch = gpu.scratch()?;
    let launch = launch.threads(COLUMN_BLOCK as u32).grid_2d(grid.tiles, grid.shares);
    let launch = launch.arg(rows).arg(cols).arg(i32::from(accumulate));
    let launch = launch.arg(grid.log2_lanes).arg(scratch.counter).arg(scratch.partials);
    // SAFETY: the caller guarantees the operands; a block is COLUMN_BLOCK threads; with several shares there is a counter for each
    // tile, and there are places for the columns of each share.
    unsafe { launch.run() }
}

/// Threads per block that sums columns: COLUMN_BLOCK in the kernel.
const COLUMN_BLOCK: usize = 512;
/// Number of blocks that fills any device: two per multiprocessor of the largest today.
const BLOCKS: usize = 256;
/// Counters in [`crate::cuda::Gpu`]'s scratch: its first 256 bytes.
const COUNTERS: usize = 64;
/// Rows per thread below which another block does not pay off.
const MIN_ROWS: usize = 4;

/// Split of the gradient's columns and rows, by the shape only, so that the order of sums is the same on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ColumnGrid {
    /// Logarithm of the number of threads across the columns.
    log2_lanes: u32,
    /// Number of column tiles.
    tiles: usize,
    /// Number of row shares, one block each.
    shares: usize,
}

impl ColumnGrid {
    /// Split for threads that take `per_access` columns at a time and partial sums of `sum_bytes`.
    fn new(rows: usize, cols: usize, per_access: usize, sum_bytes: usize) -> Self {
        let items = cols / per_access;
        // At least 128 bytes of a row, unless it is narrower; more if there would be more tiles than counters.
        let least = if per_access == 1 { 32 } else { 8 };
        let mut lanes = least.min(items.next_power_of_two());
        while items.div_ceil(lanes) > COUNTERS && lanes < 128 {
            lanes *= 2;
        }
        if items.div_ceil(lanes) > COUNTERS {
            return ColumnGrid { log2_lanes: least.ilog2(), tiles: items.div_ceil(least), shares: 1 };
        }
        let tiles = items.div_ceil(lanes);
        let places = PARTIAL_SUMS * 8 / sum_bytes / cols;
        let worthwhile = rows / (COLUMN_BLOCK / lanes * MIN_ROWS);
        let shares = (BLOCKS / tiles).min(places).min(worthwhile).max(1);
        ColumnGrid { log2_lanes: lanes.ilog2(), tiles, shares }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_grid_covers_the_columns_and_has_its_counters_and_places() {
        for rows in [0, 1, 100, 8192, 65_536, 1 << 30] {
            for cols in [1, 3, 10, 31, 64, 1000, 1023, 2056, 4096, 8191, 20_480, 100_000, 1 << 24] {
                for (per_access, sum_bytes) in [(1, 4), (1, 8), (2, 8), (4, 4), (8, 4)] {
                    if cols % per_access != 0 {
                        continue;
                    }
                    let grid = ColumnGrid::new(rows, cols, per_access, sum_bytes);
                    let width = (1 << grid.log2_lanes) * per_access;
                    assert!(grid.tiles * width >= cols && (grid.tiles - 1) * width < cols);
                    assert!(width <= COLUMN_BLOCK * per_access && grid.log2_lanes <= 7);
                    if grid.shares > 1 {
                        assert!(grid.tiles <= COUNTERS && grid.shares * cols * sum_bytes <= PARTIAL_SUMS * 8);
                        assert!(grid.shares <= 65_535);
                    }
                }
            }
        }
        // Tall matrices fill the device; small ones skip the second stage.
        let grid = ColumnGrid::new(8192, 4096, 8, 4);
        assert_eq!(grid, ColumnGrid { log2_lanes: 3, tiles: 64, shares: 4 });
        assert_eq!(ColumnGrid::new(65_536, 10, 1, 4), ColumnGrid { log2_lanes: 4, tiles: 1, shares: 256 });
        assert_eq!(ColumnGrid::new(128, 1024, 4, 4).shares, 1);
    }
}
