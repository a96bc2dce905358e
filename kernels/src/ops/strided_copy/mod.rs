//! Copies between places of different layouts: transposition, columns, interleaving, selection by index.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use super::check;
use crate::{DType, KernelError, Result, TensorMut, TensorRef};

/// The elements to copy: `to[i0, i1, i2] = from[i0, index[i1], i2]`, `index[i1]` being `i1` if there is none.
///
/// Strides are in elements; the elements of `to` are all different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Number of elements of each dimension.
    pub(crate) dims: [usize; 3],
    /// Distance of neighbours in `from`.
    pub(crate) from: [usize; 3],
    /// Distance of neighbours in `to`.
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
