//! The order of the elements of each row.

use std::cmp::Ordering;

use half::{bf16, f16};

use crate::base::check;
use crate::cpu::cell::{Cell, with_cells};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::strided_copy::{Walk, strided_copy};
use crate::{DType, KernelError, MemoryUse, Result, Shape, Tensor, TensorMut, TensorRef};

const OP: &str = "argsort";

/// Row by row, the indices of the elements in ascending order, or in `descending` order.
///
/// - `x`: rows of `len` elements, of any dtype; `index`: as many elements, i64
/// - equal elements keep their order; NaN is larger than all numbers, and equal to NaN
///
/// On a GPU it allocates memory for rows of the next power of two. Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeUnsupported`]; [`KernelError::ElementCount`] if there are no whole rows, or as
/// many indices.
///
/// Source: `torch.argsort` with `stable=True`.
#[doc(hidden)]
pub fn argsort(x: TensorRef<'_>, len: usize, descending: bool, index: TensorMut<'_>) -> Result<()> {
    let (x_op, index_op) = (x.operand("a"), index.operand("index"));
    check::same_device(OP, &[x_op, index_op])?;
    check::dtype(OP, index_op, &[DType::I64], "i64")?;
    let n_rows = x.numel().checked_div(len).unwrap_or(0);
    for numel in [x.numel(), index.numel()] {
        if n_rows * len != numel {
            return Err(KernelError::ElementCount { op: OP, got: numel, shape: Shape::matrix(n_rows, len) });
        }
    }
    if n_rows == 0 {
        return Ok(());
    }
    match index.gpu() {
        Some(gpu) => argsort_cuda(gpu, x.cuda()?, len, descending, index),
        None => argsort_cpu(x, len, descending, index.into_slice::<i64>(OP, "index")?),
    }
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 12;

/// Row by row, rows divided between the threads.
///
/// `x`: rows of `len` elements, at least one.
fn argsort_cpu(x: TensorRef<'_>, len: usize, descending: bool, index: &mut [i64]) -> Result<()> {
    let bytes = x.as_bytes(OP, "a")?;
    let (n_rows, index) = (index.len() / len, SharedMut::new(index));
    with_cells!(x.dtype(), C => {
        let x: &[C] = bytemuck::cast_slice(bytes);
        for_parts(n_rows, MIN_PART.div_ceil(len), 1, |rows| {
            for row in rows {
                let x = &x[row * len..(row + 1) * len];
                // SAFETY: within `index`, and this row is this part's alone.
                let index = unsafe { index.slice(row * len..(row + 1) * len) };
                sort_row(x, descending, index);
            }
        });
        Ok(())
    })
}

fn sort_row<C: Cell>(x: &[C], descending: bool, index: &mut [i64]) {
    (0..).zip(&mut *index).for_each(|(i, index)| *index = i);
    index.sort_by(|&a, &b| {
        let order = compared(x[a as usize].load(), x[b as usize].load());
        if descending { order.reverse() } else { order }
    });
}

/// NaN, which differs from itself, is the largest.
#[allow(clippy::eq_op)]
fn compared<N: PartialOrd>(a: N, b: N) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| (a != a).cmp(&(b != b)))
}

pub(crate) static SOURCE: Source = Source::new("sort", include_str!("kernel.cu"));

/// A bitonic network on indices: one launch per step, for all rows at once.
///
/// `x`: rows of `len` elements, at least one.
fn argsort_cuda(
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

#[cfg(test)]
mod tests {
    use crate::ops::testing::{devices, random};
    use crate::{DType, Tensor, tensor};

    /// By definition: a stable sort, in which NaN is the largest.
    fn reference(row: &[f64], descending: bool) -> Vec<i64> {
        let mut order: Vec<i64> = (0..row.len() as i64).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (row[a as usize], row[b as usize]);
            let order = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
            if descending { order.reverse() } else { order }
        });
        order
    }

    #[test]
    fn rows_are_sorted_as_by_a_stable_sort_in_every_dtype() {
        for device in devices() {
            for dtype in DType::ALL {
                for (n_rows, len) in [(1, 1), (3, 2), (5, 33), (2, 1000), (40, 7), (1, 1024)] {
                    // Few different values, so that many are equal.
                    let mut values: Vec<f64> =
                        random::<f64>(n_rows * len, 7).iter().map(|v| (v * 9.0).round()).collect();
                    if dtype.is_float() && len > 30 {
                        (values[3], values[len / 2], values[7]) = (f64::NAN, f64::NAN, f64::NEG_INFINITY);
                    }
                    let x = Tensor::from_slice(&values, &[n_rows, len], device).unwrap();
                    let x = x.to_dtype(dtype).unwrap();
                    let rounded = x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                    for descending in [false, true] {
                        let want: Vec<i64> =
                            rounded.chunks(len).flat_map(|row| reference(row, descending)).collect();
                        let order = |x: &Tensor, axis: i32| {
                            if descending {
                                x.sort_descending(axis).unwrap().1
                            } else {
                                x.argsort(axis).unwrap()
                            }
                        };
                        let got = order(&x, 1).to_vec::<i64>().unwrap();
                        let what = format!("[{n_rows}, {len}] {dtype} on {device}, descending: {descending}");
                        assert_eq!(got, want, "{what}");
                        let columns = order(&x.t().unwrap(), 0);
                        assert_eq!(columns.t().unwrap().to_vec::<i64>().unwrap(), want, "columns of {what}");
                    }
                }
            }
        }
    }

    #[test]
    fn values_follow_their_indices() {
        for device in devices() {
            let x = tensor![[3., f32::NAN, 5., 5.], [1., 0., -0.0, -2.]].to(device).unwrap();
            let (values, indices) = x.topk(3).unwrap();
            assert_eq!(indices.to_vec::<i64>().unwrap(), [1, 2, 3, 0, 1, 2], "{device}");
            let values = values.to_vec::<f32>().unwrap();
            assert_eq!(values[1..], [5.0, 5.0, 1.0, 0.0, -0.0]);
            assert!(values[0].is_nan() && values[5].is_sign_negative());
            let (values, indices) = x.sort(0).unwrap();
            assert_eq!(indices.to_vec::<i64>().unwrap(), [1, 1, 1, 1, 0, 0, 0, 0]);
            assert_eq!(values.slice(0).unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0, -0.0, -2.0]);
            let message = x.topk(5).unwrap_err().to_string();
            assert_eq!(message, "topk: the range 0..5 exceeds the length 4");
            let nothing = x.slice((.., ..0)).unwrap();
            assert_eq!(nothing.sort(1).unwrap().0.dims(), [2, 0]);
        }
    }
}
