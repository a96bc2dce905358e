//! One kernel per size of element.

use super::Walk;
use crate::Result;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};

pub(crate) static SOURCE: Source = Source::new("strided_copy", include_str!("kernel.cu"));

/// Copies as `walk` says, on this device.
pub(super) fn strided_copy(
    gpu: &'static Gpu,
    from: CudaSlice<'_>,
    index: Option<CudaSlice<'_>>,
    to: &mut CudaSliceMut<'_>,
    Walk { dims, from: [f0, f1, f2], to: [t0, t1, t2] }: Walk,
) -> Result<()> {
    let n = dims.iter().product();
    if n == 0 {
        return Ok(());
    }
    let kernel = match from.dtype().size_bytes() {
        1 => "strided_copy_int8",
        2 => "strided_copy_int16",
        4 => "strided_copy_int32",
        _ => "strided_copy_int64",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 4).read(from).read_opt(index).write(to);
    let launch = launch.arg(n).arg(dims[1]).arg(dims[2]).arg(f0).arg(f1).arg(f2).arg(t0).arg(t1).arg(t2);
    // SAFETY: strided_copy(const W* from, const i64* index, W* to, size_t n, size_t n1, size_t n2, size_t f0, size_t f1, size_t f2,
    // size_t t0, size_t t1, size_t t2); the caller checked that strides and indices stay within both.
    unsafe { launch.run() }
}
