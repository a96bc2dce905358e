//! Elementwise, row by row, 16 bytes per access where the rows allow it.

use super::Gate;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::activation::cuda::FUNCTIONS;
use crate::ops::row_tiles::RowTiles;
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::with_preamble("glu", FUNCTIONS, include_str!("kernel.cu"));

/// The kernel of this pass for a gate and dtype, by 16 bytes or by elements.
macro_rules! kernel_name {
    ($pass:literal, $gate:expr, $dtype:expr, $is_packed:expr) => {
        match $gate {
            Gate::SwiGlu => kernel_name!(@ "swiglu", $pass, $dtype, $is_packed),
            Gate::GeGlu => kernel_name!(@ "geglu", $pass, $dtype, $is_packed),
            Gate::ReGlu => kernel_name!(@ "reglu", $pass, $dtype, $is_packed),
        }
    };
    (@ $name:literal, $pass:literal, $dtype:expr, $is_packed:expr) => {
        match ($dtype, $is_packed) {
            (DType::F64, false) => concat!($name, "_", $pass, "_f64"),
            (DType::F64, true) => concat!($name, "_", $pass, "_f64_by_16_bytes"),
            (DType::BF16, false) => concat!($name, "_", $pass, "_bf16"),
            (DType::BF16, true) => concat!($name, "_", $pass, "_bf16_by_16_bytes"),
            (DType::F16, false) => concat!($name, "_", $pass, "_f16"),
            (DType::F16, true) => concat!($name, "_", $pass, "_f16_by_16_bytes"),
            (_, false) => concat!($name, "_", $pass, "_f32"),
            (_, true) => concat!($name, "_", $pass, "_f32_by_16_bytes"),
        }
    };
}

/// Whether rows of `cols` elements at these addresses are whole accesses of 16 bytes, and the accesses or elements per row.
fn items(dtype: DType, cols: usize, addresses: u64) -> (bool, usize) {
    let per_access = 16 / dtype.size_bytes();
    if cols.is_multiple_of(per_access) && addresses.is_multiple_of(16) {
        (true, cols / per_access)
    } else {
        (false, cols)
    }
}

/// Same as `cpu::forward`; the caller checked the operands.
pub(super) fn forward(
    gpu: &'static Gpu,
    gate: Gate,
    x: CudaSlice<'_>,
    y: &mut CudaSliceMut<'_>,
    cols: usize,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let rows = y.len() / cols;
    let (is_packed, items) = items(x.dtype(), cols, x.ptr() | y.ptr());
    let tiles = RowTiles::new(gpu, rows, items);
    let launch = Launch::new(gpu, &SOURCE, kernel_name!("fwd", gate, x.dtype(), is_packed))?;
    let launch = tiles.grid(launch).read(x).write(y).arg(rows).arg(cols).arg(tiles.log2_width());
    // SAFETY: glu_fwd(const T* x, T* y, size_t rows, size_t cols, u32 log2_width); x holds rows * 2 * cols elements, y half as many;
    // the form by 16 bytes is chosen for rows and addresses of whole accesses.
    unsafe { launch.run() }
}

/// Same as `cpu::backward`; the caller checked the operands.
pub(super) fn backward(
    gpu: &'static Gpu,
    gate: Gate,
    x: CudaSlice<'_>,
    d: CudaSlice<'_>,
    d_x: &mut CudaSliceMut<'_>,
    cols: usize,
) -> Result<()> {
    if d.is_empty() {
        return Ok(());
    }
    let rows = d.len() / cols;
    let (is_packed, items) = items(x.dtype(), cols, x.ptr() | d.ptr() | d_x.ptr());
    let tiles = RowTiles::new(gpu, rows, items);
    let launch = Launch::new(gpu, &SOURCE, kernel_name!("bwd", gate, x.dtype(), is_packed))?;
    let launch = tiles.grid(launch).read(x).read(d).write(d_x).arg(rows).arg(cols).arg(tiles.log2_width());
    // SAFETY: glu_bwd(const T* x, const T* d, T* d_x, size_t rows, size_t cols, u32 log2_width); x and d_x hold rows * 2 * cols
    // elements, d half as many; as in `forward`.
    unsafe { launch.run() }
}
