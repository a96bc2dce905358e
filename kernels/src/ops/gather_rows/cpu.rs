//! Row by row, split over the threads.

use super::Table;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{Element, KernelError, Result};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// `out[n, :] = x[indices[n], :]`, each element converted by `convert`.
pub(super) fn gather<T: Copy + Sync, U: Element>(
    op: &'static str,
    x: &[T],
    Table { n_rows, cols }: Table,
    indices: &[i64],
    out: &mut [U],
    convert: impl Fn(T) -> U + Sync,
) -> Result<()> {
    if let Some(&wrong) = indices.iter().find(|&&index| index < 0 || index as usize >= n_rows) {
        let start = wrong as usize;
        return Err(KernelError::OutOfRange { op, start, end: start.saturating_add(1), len: n_rows });
    }
    if cols == 0 {
        return Ok(());
    }
    let out = SharedMut::new(out);
    for_parts(indices.len(), MIN_PART.div_ceil(cols), 1, |part| {
        for n in part {
            // SAFETY: row `n` of `out`, which is in this thread's part alone.
            let to = unsafe { out.slice(n * cols..(n + 1) * cols) };
            for (to, &from) in to.iter_mut().zip(&x[indices[n] as usize * cols..][..cols]) {
                *to = convert(from);
            }
        }
    });
    Ok(())
}
