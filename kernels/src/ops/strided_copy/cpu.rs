//! Runs of contiguous elements by `copy_from_slice`, matrices by [`transpose`], the rest element by element.

use super::Walk;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::transpose::transpose;
use crate::{Element, Result, TensorMut, TensorRef};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Copies as `walk` says; indices are checked here by indexing.
pub(super) fn strided_copy(
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
        1 => of_type::<u8>(from, index, to, walk),
        2 => of_type::<half::f16>(from, index, to, walk),
        4 => of_type::<i32>(from, index, to, walk),
        _ => of_type::<i64>(from, index, to, walk),
    }
    Ok(())
}

fn of_type<T: Element>(from: &[u8], index: Option<&[i64]>, to: &mut [u8], walk: Walk) {
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
