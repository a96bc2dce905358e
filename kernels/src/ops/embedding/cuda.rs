//! Forward: one launch for all tables. Backward: sort the codes with their rows, zero the gradient, sum the rows of each code;
//! three operations for all tables.

use cudarc::driver::result;

use super::Sizes;
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, check_driver};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("embedding", include_str!("kernel.cu"));

/// Block sizes of the kernels.
const SORT_BLOCK: u32 = 512;
const SUM_BLOCK: u32 = 256;
const TILE: usize = 64;
/// Columns of a table that a block sums.
const PART: usize = 32;

/// Computes `out` from `x` and `weights`: both f32 or f64; `out` of the same dtype, or bf16 or f16 if that is f32.
pub(super) fn forward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    weights: CudaSlice<'_>,
    tables: CudaSlice<'_>,
    sizes: Sizes,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let Sizes { rows, n_numbers, cols, n_tables, .. } = sizes;
    if rows * cols == 0 {
        return Ok(());
    }
    let kernel = match out.dtype() {
        DType::F64 => "embedding_fwd_f64",
        DType::BF16 => "embedding_fwd_f32_bf16",
        DType::F16 => "embedding_fwd_f32_f16",
        _ => "embedding_fwd_f32",
    };
    let tiles = RowTiles::new(gpu, rows, cols);
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, kernel)?).read(x).read(weights).write(out).read(tables);
    let launch = launch.arg(rows).arg(n_numbers).arg(n_tables).arg(cols).arg(tiles.log2_width());
    // SAFETY: fwd(const T* x, const T* weights, V* out, const i64* tables, size_t rows, size_t n_numbers, size_t n_tables,
    // size_t cols, u32 log2_width); x and out hold the rows, weights every table, and tables is `EmbeddingTables::new`'s.
    unsafe { launch.run() }
}

/// `d_weights` of `d_out`, both f32 or f64, or `d_out` bf16 or f16; `x` f32 or f64; `pairs` of [`super::EmbeddingTables::workspace_len`].
#[allow(clippy::too_many_arguments)] // The operands of one operation.
pub(super) fn backward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    d_out: CudaSlice<'_>,
    tables: CudaSlice<'_>,
    sizes: Sizes,
    d_weights: &mut CudaSliceMut<'_>,
    pairs: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    if !accumulate {
        zero(gpu, d_weights)?;
    }
    let Sizes { rows, n_numbers, cols, n_tables, widest } = sizes;
    if rows * (cols - n_numbers) == 0 {
        return Ok(());
    }
    let kernel = if x.dtype() == DType::F64 { "embedding_sort_f64" } else { "embedding_sort_f32" };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.threads(SORT_BLOCK).blocks(n_tables);
    let launch = launch.read(x).read(tables).write(pairs).arg(rows).arg(n_numbers).arg(n_tables);
    // SAFETY: sort(const T* x, const i64* tables, u64* pairs, size_t rows, size_t n_numbers, size_t n_tables); x holds the rows,
    // pairs twice a number for each code; a block is SORT_BLOCK threads.
    unsafe { launch.run()? };
    let kernel = match d_out.dtype() {
        DType::F64 => "embedding_bwd_f64",
        DType::BF16 => "embedding_bwd_bf16_f32",
        DType::F16 => "embedding_bwd_f16_f32",
        _ => "embedding_bwd_f32",
    };
    let parts = widest.div_ceil(PART);
    let launch = Launch::new(gpu, &SOURCE, kernel)?.threads(SUM_BLOCK);
    let launch = launch.grid_2d(rows.div_ceil(TILE), n_tables * parts);
    let launch = launch.read(pairs.as_ref()).read(tables).read(d_out).write(d_weights);
    let launch = launch.arg(rows).arg(n_numbers).arg(n_tables).arg(cols).arg(parts);
    // SAFETY: bwd(const u64* pairs, const i64* tables, const T* d_out, D* d_weights, size_t rows, size_t n_numbers, size_t n_tables,
    // size_t cols, size_t parts); d_out holds the rows, d_weights every table, pairs what the sort left; a block is SUM_BLOCK threads.
    unsafe { launch.run() }
}

fn zero(gpu: &'static Gpu, values: &mut CudaSliceMut<'_>) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    gpu.bind()?;
    // SAFETY: the slice has that many bytes and is exclusive; zero bits are the number 0 in every float type.
    let set = unsafe { result::memset_d8_async(values.ptr(), 0, values.len_bytes(), gpu.compute().raw()) };
    check_driver(gpu.index(), "cuMemsetD8Async", set)
}
