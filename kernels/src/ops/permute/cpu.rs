//! Runs of contiguous elements by `copy_from_slice`, the rest element by element.

use super::{OP, Walk};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{Element, Result, TensorMut, TensorRef};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

pub(super) fn permute(x: TensorRef<'_>, out: TensorMut<'_>, walk: Walk) -> Result<()> {
    let size = x.dtype().size_bytes();
    let (x, out) = (x.as_bytes(OP, "x")?, out.into_bytes(OP, "out")?);
    // Types of that size.
    match size {
        1 => of_type::<u8>(x, out, walk),
        2 => of_type::<half::f16>(x, out, walk),
        4 => of_type::<i32>(x, out, walk),
        _ => of_type::<i64>(x, out, walk),
    }
    Ok(())
}

fn of_type<T: Element>(x: &[u8], out: &mut [u8], walk: Walk) {
    let (x, out): (&[T], &mut [T]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
    let Walk { dims: [_, d1, d2, d3, run], strides: [s0, s1, s2, s3, s4] } = walk;
    if out.is_empty() {
        return;
    }
    let n_runs = out.len() / run;
    let out = SharedMut::new(out);
    for_parts(n_runs, MIN_PART.div_ceil(run), 1, |part| {
        for index in part {
            let (i3, rest) = (index % d3, index / d3);
            let (i2, rest) = (rest % d2, rest / d2);
            let (i1, i0) = (rest % d1, rest / d1);
            let from = i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;
            // SAFETY: run `index` of `n_runs` in `out`, which is in this part alone.
            let to = unsafe { out.slice(index * run..(index + 1) * run) };
            match s4 {
                1 => to.copy_from_slice(&x[from..from + run]),
                0 => to.fill(x[from]),
                _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = x[from + i * s4]),
            }
        }
    });
}
