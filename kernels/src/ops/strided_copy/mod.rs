//! Copies between different layouts: transposition, columns, interleaving, selection by index.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::{DType, KernelError, Result, Shape, TensorMut, TensorRef};

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
            cuda::strided_copy(gpu, from.cuda()?, index, &mut to.into_cuda()?, walk)
        }
        None => {
            let index = index.map(|(index, _)| index.as_slice::<i64>(op, "index")).transpose()?;
            cpu::strided_copy(op, from, index, to, walk)
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
