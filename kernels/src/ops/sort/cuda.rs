//! A bitonic network on indices: one launch per step, for all rows at once.

use super::OP;
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::strided_copy::{Walk, strided_copy};
use crate::{DType, MemoryUse, Result, Shape, Tensor, TensorMut};

pub(crate) static SOURCE: Source = Source::new("sort", include_str!("kernel.cu"));

/// `x`: rows of `len` elements, at least one.
pub(super) fn argsort(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    len: usize,
    descending: bool,
    index: TensorMut<'_>,
) -> Result<()> {
    let (n_rows, padded) = (index.numel() / len, len.next_power_of_two());
    if padded == len {
        return sort_padded(gpu, x, len, descending, &mut index.into_cuda()?);
    }
    // Indices from `len` on, which are last in each row, are left out.
    let shape = Shape::new(&[n_rows, padded])?;
    let mut wide = Tensor::for_result(MemoryUse::Workspace, shape, DType::I64, gpu.device())?;
    sort_padded(gpu, x, len, descending, &mut wide.view_mut().into_cuda()?)?;
    let walk = Walk { dims: [1, n_rows, len], from: [0, padded, 1], to: [0, len, 1] };
    strided_copy(OP, wide.view(), None, index, walk)
}

/// `index`: rows of the next power of two from `len` on.
fn sort_padded(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    len: usize,
    descending: bool,
    index: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let padded = len.next_power_of_two();
    let (n, log2) = (index.len(), padded.trailing_zeros());
    let mut step = |log2_span: u32, log2_distance: u32| {
        let kernel = typed_kernel!("sort", x.dtype());
        let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n.div_ceil(2), 4);
        let launch = launch.read(x).write(index).arg(n).arg(len).arg(log2).arg(log2_span).arg(log2_distance);
        let launch = launch.arg(i32::from(descending));
        // SAFETY: sort(const T* x, i64* index, size_t n, size_t len, u32 log2_row, u32 log2_span, u32 log2_distance, int descending);
        // x holds len elements for every 2^log2_row of the n elements of index.
        unsafe { launch.run() }
    };
    // The first step writes the indices; of rows of one element, it does nothing else.
    step(log2.min(1), 0)?;
    for log2_span in 1..=log2 {
        for log2_distance in (0..log2_span).rev() {
            if (log2_span, log2_distance) != (1, 0) {
                step(log2_span, log2_distance)?;
            }
        }
    }
    Ok(())
}
