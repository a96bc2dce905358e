//! One kernel per size of element.

use super::Walk;
use crate::Result;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};

pub(crate) static SOURCE: Source = Source::new("permute", include_str!("kernel.cu"));

/// Copies as `walk` says, on this device.
pub(super) fn permute(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    out: &mut CudaSliceMut<'_>,
    Walk { dims: [_, d1, d2, d3, d4], strides: [s0, s1, s2, s3, s4] }: Walk,
) -> Result<()> {
    let n = out.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = match x.dtype().size_bytes() {
        1 => "permute_int8",
        2 => "permute_int16",
        4 => "permute_int32",
        _ => "permute_int64",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 4).read(x).write(out).arg(n);
    let launch = launch.arg(d1).arg(d2).arg(d3).arg(d4).arg(s0).arg(s1).arg(s2).arg(s3).arg(s4);
    // SAFETY: permute(const W* x, W* out, size_t n, size_t d1, size_t d2, size_t d3, size_t d4, size_t s0, size_t s1, size_t s2,
    // size_t s3, size_t s4); out holds n elements, and the caller checked that the strides stay within x.
    unsafe { launch.run() }
}
