//! One pass over the elements, completed by the last block.

use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{COMMUNICATION_PARTIAL_SUMS, CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS, StreamKind};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("sum_of_squares", include_str!("kernel.cu"));

/// Number of blocks on every device, so that the order of summation depends only on the length: about four per multiprocessor
/// of the largest today, with four wide loads in flight per thread.
const MAX_BLOCKS: usize = 512;
/// Bytes that a block reads at a time.
const STRIDE_BYTES: usize = BLOCK as usize * 16 * 4;
const _: () = assert!(MAX_BLOCKS <= PARTIAL_SUMS && MAX_BLOCKS <= COMMUNICATION_PARTIAL_SUMS);

/// `out = Σ x²`, or `+=`; `x` of a float dtype and one f64 on this device.
pub(super) fn sum(
    gpu: &'static Gpu,
    stream: StreamKind,
    x: CudaSlice<'_>,
    out: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let kernel = match x.dtype() {
        DType::F64 => "sum_of_squares_f64",
        DType::BF16 => "sum_of_squares_bf16",
        DType::F16 => "sum_of_squares_f16",
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => "sum_of_squares_f32",
    };
    let scratch = gpu.scratch_on(stream)?;
    let launch =
        Launch::new(gpu, &SOURCE, kernel)?.blocks(x.len_bytes().div_ceil(STRIDE_BYTES).min(MAX_BLOCKS));
    let launch = launch.on(stream).read(x).arg(x.len()).write(out).arg(i32::from(accumulate));
    // SAFETY: sum_of_squares(const T* x, size_t n, double* out, int accumulate, u32* counter, double* partials); x holds n elements,
    // out one, partials one for each block.
    unsafe { launch.arg(scratch.counter).arg(scratch.partials).run() }
}
