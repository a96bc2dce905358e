//! Copies between different layouts: transposition, columns, interleaving, selection by index.

use crate::base::check;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::transpose::transpose;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Element, KernelError, Result, Shape, TensorMut, TensorRef};

/// The elements to copy: `to[i0, i1, i2] = from[i0, index[i1], i2]`, `index[i1]` being `i1` if there is none.
///
/// Strides are in elements; the elements of `to` are all different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Number of elements of each dimension.
    pub(crate) dims: [usize; 3],
    /// Stride of each dimension in `from`.
    pub(crate) from: [usize; 3],
    /// Stride of each dimension in `to`.
    pub(crate) to: [usize; 3],
}

impl Walk {
    /// One past the last element that `strides` reach, with `n` indices of the middle dimension.
    fn end(&self, strides: [usize; 3], n: usize) -> usize {
        let [a, _, c] = self.dims;
        if self.dims.contains(&0) || n == 0 {
            return 0;
        }
        (a - 1) * strides[0] + (n - 1) * strides[1] + (c - 1) * strides[2] + 1
    }
}

/// Copies as `walk` says; `index`: `[dims[1]]` i64, each within `0..n_from`, which the caller has checked on a GPU.
///
/// - `from`, `to`: of one device and dtype
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`]; [`KernelError::OutOfRange`] if `walk` leaves a tensor.
pub(crate) fn strided_copy(
    op: &'static str,
    from: TensorRef<'_>,
    index: Option<(TensorRef<'_>, usize)>,
    to: TensorMut<'_>,
    walk: Walk,
) -> Result<()> {
    check::same_kind(op, &[from.operand("a"), to.operand("out")])?;
    let mut n_from = walk.dims[1];
    if let Some((index, n)) = index {
        n_from = n;
        check::same_device(op, &[from.operand("a"), index.operand("index")])?;
        check::dtype(op, index.operand("index"), &[DType::I64], "i64")?;
    }
    for (len, end) in
        [(from.numel(), walk.end(walk.from, n_from)), (to.numel(), walk.end(walk.to, walk.dims[1]))]
    {
        if end > len {
            return Err(KernelError::OutOfRange { op, start: 0, end, len });
        }
    }
    match to.gpu() {
        Some(gpu) => {
            let index = index.map(|(index, _)| index.cuda()).transpose()?;
            strided_copy_cuda(gpu, from.cuda()?, index, &mut to.into_cuda()?, walk)
        }
        None => {
            let index = index.map(|(index, _)| index.as_slice::<i64>(op, "index")).transpose()?;
            strided_copy_cpu(op, from, index, to, walk)
        }
    }
}

/// Copies adjacent columns: `to[n, to_column + i] = from[n, from_column + i]` for `i` below `n_columns`; other columns stay.
///
/// - `from`: `[N, A]`, `to`: `[N, B]`, of one device and dtype
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`], [`KernelError::Shape`]; [`KernelError::OutOfRange`] for columns
/// beyond the columns of a matrix.
///
/// Source: `to[:, b:b + n].copy_(from[:, a:a + n])` of PyTorch.
#[doc(hidden)]
pub fn copy_columns(
    from: TensorRef<'_>,
    from_column: usize,
    to: TensorMut<'_>,
    to_column: usize,
    n_columns: usize,
) -> Result<()> {
    const OP: &str = "copy_columns";
    let (n_rows, n_from) = check::matrix(OP, from.operand("from"))?;
    let (n_rows_to, n_to) = check::matrix(OP, to.operand("to"))?;
    if n_rows != n_rows_to {
        check::shape(OP, to.operand("to"), Shape::matrix(n_rows, n_to))?;
    }
    for (first, len) in [(from_column, n_from), (to_column, n_to)] {
        let end = first.saturating_add(n_columns);
        if end > len {
            return Err(KernelError::OutOfRange { op: OP, start: first, end, len });
        }
    }
    if n_rows == 0 || n_columns == 0 {
        return Ok(());
    }
    let (from_len, to_len) = (from.numel(), to.numel());
    let walk = Walk { dims: [1, n_rows, n_columns], from: [0, n_from, 1], to: [0, n_to, 1] };
    strided_copy(OP, from.range(from_column, from_len)?, None, to.range(to_column, to_len)?, walk)
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Runs of contiguous elements by `copy_from_slice`, matrices by [`transpose`], the rest element by element.
///
/// Copies as `walk` says; indices are checked here by indexing.
fn strided_copy_cpu(
    op: &'static str,
    from: TensorRef<'_>,
    index: Option<&[i64]>,
    to: TensorMut<'_>,
    walk: Walk,
) -> Result<()> {
    let size = from.dtype().size_bytes();
    let (from, to) = (from.as_bytes(op, "a")?, to.into_bytes(op, "out")?);
    // Types of that size.
    match size {
        1 => copy_type::<u8>(from, index, to, walk),
        2 => copy_type::<half::f16>(from, index, to, walk),
        4 => copy_type::<i32>(from, index, to, walk),
        _ => copy_type::<i64>(from, index, to, walk),
    }
    Ok(())
}

fn copy_type<T: Element>(from: &[u8], index: Option<&[i64]>, to: &mut [u8], walk: Walk) {
    let (from, to): (&[T], &mut [T]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    let Walk { dims: [n0, n1, n2], from: [f0, f1, f2], to: [t0, t1, t2] } = walk;
    if n0 * n1 * n2 == 0 {
        return;
    }
    if n0 == 1 && index.is_none() && (f1, t2) == (1, 1) && (f2, t1) == (n1, n2) {
        return transpose(&from[..n1 * n2], n2, n1, &mut to[..n1 * n2]);
    }
    let n_to = to.len();
    let to = SharedMut::new(to);
    for_parts(n0 * n1, MIN_PART.div_ceil(n2), 1, |part| {
        for row in part {
            let (i, j) = (row / n1, row % n1);
            let (source, target) =
                (i * f0 + index.map_or(j, |index| index[j] as usize) * f1, i * t0 + j * t1);
            if (f2, t2) == (1, 1) {
                assert!(target + n2 <= n_to);
                // SAFETY: within `to`; elements of different rows are different, and this row is in this part alone.
                unsafe { to.slice(target..target + n2) }.copy_from_slice(&from[source..source + n2]);
                continue;
            }
            for k in 0..n2 {
                let at = target + k * t2;
                assert!(at < n_to);
                // SAFETY: as above.
                let to = unsafe { to.slice(at..at + 1) };
                to[0] = from[source + k * f2];
            }
        }
    });
}

pub(crate) static SOURCE: Source = Source::new("strided_copy", include_str!("kernel.cu"));

/// One kernel per size of element.
///
/// Copies as `walk` says, on this device.
fn strided_copy_cuda(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::ops::testing::{devices, tensor};

    #[test]
    fn columns_are_copied_and_others_stay() {
        for device in devices() {
            let from: Vec<f32> = (0..12).map(|i| i as f32).collect();
            let (from, mut to) = (tensor(&from, &[3, 4], device), tensor(&[-1.0f32; 9], &[3, 3], device));
            copy_columns(from.view(), 2, to.view_mut(), 1, 2).unwrap();
            let want = [-1.0, 2.0, 3.0, -1.0, 6.0, 7.0, -1.0, 10.0, 11.0];
            assert_eq!(to.to_vec::<f32>().unwrap(), want, "{device}");
            copy_columns(from.view(), 3, to.view_mut(), 2, 0).unwrap();
            assert_eq!(to.to_vec::<f32>().unwrap(), want);
        }
    }

    #[test]
    fn columns_beyond_a_matrix_are_refused() {
        let from = tensor(&[0.0f32; 6], &[2, 3], Device::Cpu);
        let (mut to, mut other) = (from.zeros_like().unwrap(), tensor(&[0.0f32; 9], &[3, 3], Device::Cpu));
        let refused = |result: Result<()>| result.unwrap_err();
        assert!(matches!(
            refused(copy_columns(from.view(), 2, to.view_mut(), 0, 2)),
            KernelError::OutOfRange { end: 4, .. }
        ));
        assert!(matches!(
            refused(copy_columns(from.view(), 0, to.view_mut(), 3, 1)),
            KernelError::OutOfRange { .. }
        ));
        assert!(matches!(
            refused(copy_columns(from.view(), 0, other.view_mut(), 0, 1)),
            KernelError::Shape { .. }
        ));
    }
}
