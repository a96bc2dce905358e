//! Moves rows as words of up to 16 bytes.

use super::Table;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::row_tiles::RowTiles;
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("gather_rows", include_str!("kernel.cu"));

/// `out[n, :] = x[indices[n], :]` on this device: `x` has `n_rows` rows, `out` one per index, both `cols` wide; of one dtype, or
/// `x` f32 and `out` bf16 or f16.
pub(super) fn gather(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    Table { n_rows, cols }: Table,
    indices: CudaSlice<'_>,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let rows = indices.len();
    if rows * cols == 0 {
        return Ok(());
    }
    let (kernel, items) = if x.dtype() == out.dtype() {
        words(cols * x.dtype().size_bytes(), x.ptr() | out.ptr())
    } else {
        narrowing(out.dtype(), cols, x.ptr() | out.ptr())
    };
    // All bits set: NaN in every float type.
    let missing = if x.dtype().is_float() { u32::MAX } else { 0 };
    let tiles = RowTiles::new(gpu, rows, items);
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, kernel)?).read(x).read(indices).write(out);
    let launch = launch.arg(n_rows).arg(rows).arg(items).arg(missing).arg(tiles.log2_width());
    // SAFETY: gather(const W* x, const i64* indices, W* out, size_t n_rows, size_t rows, size_t items, u32 missing,
    // u32 log2_width); items of W's size fill a row, of which x holds n_rows and out `rows`, and their addresses are multiples of
    // that size.
    unsafe { launch.run() }
}

/// The kernel for rows of this many bytes in the widest words that the addresses allow, and the number of words per row.
fn words(row_bytes: usize, addresses: u64) -> (&'static str, usize) {
    let aligned = row_bytes as u64 | addresses;
    let (kernel, size) = match aligned.trailing_zeros() {
        4.. => ("gather_rows_16", 16),
        3 => ("gather_rows_8", 8),
        2 => ("gather_rows_4", 4),
        1 => ("gather_rows_2", 2),
        _ => ("gather_rows_1", 1),
    };
    (kernel, row_bytes / size)
}

/// The same for f32 converted to `short`: four elements at a time if rows and addresses allow it.
fn narrowing(short: DType, cols: usize, addresses: u64) -> (&'static str, usize) {
    match (short, cols.is_multiple_of(4) && addresses.is_multiple_of(16)) {
        (DType::F16, true) => ("gather_rows_f32_f16_by_4", cols / 4),
        (DType::F16, false) => ("gather_rows_f32_f16", cols),
        (_, true) => ("gather_rows_f32_bf16_by_4", cols / 4),
        (_, false) => ("gather_rows_f32_bf16", cols),
    }
}
