//! One kernel, a block per line.

use super::{Layout, ScanOp};
use crate::Result;
use crate::cuda::launch::{BLOCK, Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};

pub(crate) static SOURCE: Source = Source::new("scan", include_str!("kernel.cu"));

/// `out = scan(x)` on this device.
pub(super) fn scan(
    gpu: &'static Gpu,
    op: ScanOp,
    x: CudaSlice<'_>,
    Layout { outer, len, inner }: Layout,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    debug_assert_eq!(BLOCK, 256, "the kernel's shared memory");
    let n_lines = outer * inner;
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("scan", x.dtype()))?.blocks(n_lines.min(1 << 20));
    let launch = launch.arg(op as i32).read(x).arg(n_lines).arg(len).arg(inner).write(out);
    // SAFETY: scan(int op, const T* x, size_t n_lines, size_t len, size_t inner, R* out); both hold n_lines * len elements, and n_lines
    // is a multiple of inner.
    unsafe { launch.run() }
}
