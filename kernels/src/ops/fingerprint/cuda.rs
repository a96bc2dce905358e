//! One pass over the elements, completed by the last block.

use crate::Result;
use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};

pub(crate) static SOURCE: Source = Source::new("fingerprint", include_str!("kernel.cu"));

/// Maximum number of blocks: about four per multiprocessor of the largest GPUs today.
const MAX_BLOCKS: usize = 512;
/// Elements that a thread loads at a time.
const PER_THREAD: usize = 4;
const _: () = assert!(MAX_BLOCKS <= PARTIAL_SUMS);

/// The fingerprint of `x`, f32, into the one i64 of `out`, on this device.
pub(super) fn sum(gpu: &'static Gpu, x: CudaSlice<'_>, out: &mut CudaSliceMut<'_>) -> Result<()> {
    let scratch = gpu.scratch()?;
    let n_blocks = x.len().div_ceil(BLOCK as usize * PER_THREAD).clamp(1, MAX_BLOCKS);
    let launch = Launch::new(gpu, &SOURCE, "fingerprint")?.blocks(n_blocks);
    let launch = launch.read(x).arg(x.len()).write(out);
    // SAFETY: fingerprint(const u32* x, size_t n, u64* out, u32* counter, u64* partials); x holds n elements of 4 bytes, out
    // one of 8, partials one of 8 bytes for each block.
    unsafe { launch.arg(scratch.counter).arg(scratch.partials).run() }
}
