//! Elementwise; columns in tiles for the gradient of the scale.

use crate::Result;
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};

pub(crate) static SOURCE: Source = Source::new("column_scale", include_str!("kernel.cu"));

/// Same as `cpu::forward`; the caller checked the operands.
pub(super) fn forward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    scale: CudaSlice<'_>,
    y: &mut CudaSliceMut<'_>,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let kernel = typed_kernel!("column_scale_fwd", x.dtype());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(y.len(), 1);
    let launch = launch.read(x).read(scale).write(y).arg(x.len()).arg(scale.len());
    // SAFETY: column_scale_fwd(const T* x, const M* scale, T* y, size_t n, size_t cols); x and y hold n elements, scale cols.
    unsafe { launch.run() }
}

/// Same as `cpu::backward`; the caller checked the operands.
pub(super) fn backward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    scale: CudaSlice<'_>,
    d: &mut CudaSliceMut<'_>,
    d_scale: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let cols = scale.len();
    if cols == 0 {
        return Ok(());
    }
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("column_scale_bwd_columns", x.dtype()))?
        .blocks(cols.div_ceil(32))
        .read(x)
        .read(d.as_ref())
        .write(d_scale)
        .arg(x.len() / cols)
        .arg(cols)
        .arg(i32::from(accumulate));
    // SAFETY: column_scale_bwd_columns(const T* x, const T* d, M* d_scale, size_t rows, size_t cols, int accumulate); x and d hold
    // rows * cols elements, d_scale cols.
    unsafe { launch.run()? };
    if d.is_empty() {
        return Ok(());
    }
    let (n, address) = (d.len(), d.ptr());
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("column_scale_fwd", d.dtype()))?.for_elements(n, 1);
    let launch = launch.arg(address).read(scale).write(d).arg(n).arg(cols);
    // SAFETY: as in `forward`; the kernel reads each element before it writes it, by the same thread.
    unsafe { launch.run() }
}
