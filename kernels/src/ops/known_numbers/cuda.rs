//! One kernel that writes the numbers, one that counts the wrong ones.

use super::KnownNumbers;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("known_numbers", include_str!("kernel.cu"));

/// Fills `x`, f32, bf16 or f16 on this device, with the share of `rank`, or with the sums if it is `n_ranks`.
pub(super) fn fill(gpu: &'static Gpu, x: &mut CudaSliceMut<'_>, rank: u32, of: KnownNumbers) -> Result<()> {
    let (n, KnownNumbers { first, n_ranks, round }) = (x.len(), of);
    let kernel = match x.dtype() {
        DType::BF16 => "known_fill_bf16",
        DType::F16 => "known_fill_f16",
        _ => "known_fill_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 4).write(x);
    let launch = launch.arg(n).arg(first as u64).arg(rank).arg(n_ranks as u32).arg(round);
    // SAFETY: known_fill(T* x, size_t n, u64 first, u32 rank, u32 n_ranks, u32 round); x holds n elements.
    unsafe { launch.run() }
}

/// Adds the number of wrong elements of `x` to the one i64 of `wrong`.
pub(super) fn count(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    of: KnownNumbers,
    wrong: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let (n, KnownNumbers { first, round, .. }) = (x.len(), of);
    let kernel = match x.dtype() {
        DType::BF16 => "known_count_bf16",
        DType::F16 => "known_count_f16",
        _ => "known_count_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 4).read(x);
    let launch = launch.arg(n).arg(first as u64).arg(round).write(wrong);
    // SAFETY: known_count(const T* x, size_t n, u64 first, u32 round, u64* wrong); x holds n elements, wrong one.
    unsafe { launch.run() }
}
