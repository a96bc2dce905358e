//! A row at a time.

use crate::{Element, KernelError, Result};

/// `out[n, :] = x[indices[n], :]`, each element through `convert`.
pub(super) fn gather<T: Copy, U: Element>(
    op: &'static str,
    x: &[T],
    (n_rows, cols): (usize, usize),
    indices: &[i64],
    out: &mut [U],
    convert: impl Fn(T) -> U,
) -> Result<()> {
    for (to, &index) in out.chunks_exact_mut(cols.max(1)).zip(indices) {
        let start = index as usize;
        if index < 0 || start >= n_rows {
            return Err(KernelError::OutOfRange { op, start, end: start.saturating_add(1), len: n_rows });
        }
        for (to, &from) in to.iter_mut().zip(&x[start * cols..][..cols]) {
            *to = convert(from);
        }
    }
    Ok(())
}
