//! Four elements at a time if rows and addresses allow it: 16 bytes of a result in f32.

use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("load_rows", include_str!("kernel.cu"));

/// `out[n, :] = (x[indices[n], :] - shift) · scale` on this device: `x` has `n_rows` rows of `cols`, `indices` one element per
/// row of `out`, shift and scale of `normalizer` `cols` elements each.
pub(super) fn load(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    [n_rows, cols]: [usize; 2],
    indices: Option<CudaSlice<'_>>,
    normalizer: Option<(CudaSlice<'_>, CudaSlice<'_>)>,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let rows = out.len().checked_div(cols).unwrap_or(0);
    if rows == 0 {
        return Ok(());
    }
    let (shift, scale) = normalizer.unzip();
    let doubles = [shift, scale].into_iter().flatten().fold(0, |all, s| all | s.ptr());
    let [x_word, out_word] = [x.dtype(), out.dtype()].map(|dtype| 4 * dtype.size_bytes() as u64);
    let by_4 = cols.is_multiple_of(4)
        && out.as_ref().ptr().is_multiple_of(out_word)
        && doubles.is_multiple_of(32)
        && x.ptr().is_multiple_of(x_word);
    macro_rules! by {
        ($formats:literal) => {
            if by_4 { concat!("load_rows_", $formats, "_by_4") } else { concat!("load_rows_", $formats) }
        };
    }
    let kernel = match (x.dtype(), out.dtype()) {
        (DType::U8, DType::BF16) => by!("u8_bf16"),
        (DType::U8, DType::F16) => by!("u8_f16"),
        (DType::U8, _) => by!("u8_f32"),
        (DType::F16, DType::BF16) => by!("f16_bf16"),
        (DType::F16, DType::F16) => by!("f16_f16"),
        (DType::F16, _) => by!("f16_f32"),
        (DType::BF16, DType::BF16) => by!("bf16_bf16"),
        (DType::BF16, DType::F16) => by!("bf16_f16"),
        (DType::BF16, _) => by!("bf16_f32"),
        (_, DType::BF16) => by!("f32_bf16"),
        (_, DType::F16) => by!("f32_f16"),
        (_, _) => by!("f32_f32"),
    };
    let items = if by_4 { cols / 4 } else { cols };
    let tiles = RowTiles::new(gpu, rows, items);
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, kernel)?).read(x).read_opt(indices);
    let launch = launch.read_opt(shift).read_opt(scale).write(out);
    let launch = launch.arg(n_rows).arg(rows).arg(items).arg(tiles.log2_width());
    // SAFETY: load_rows(const T* x, const i64* indices, const double* shift, const double* scale, O* out, size_t n_rows,
    // size_t rows, size_t items, u32 log2_width); items of 1 or 4 elements fill a row, of which x holds n_rows and out `rows`,
    // indices one number each, shift and scale one row; for 4 all addresses are multiples of 4 elements. Without indices
    // n_rows is `rows`, as the caller checked.
    unsafe { launch.run() }
}
