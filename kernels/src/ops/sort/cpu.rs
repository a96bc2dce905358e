//! Row by row, rows divided between the threads.

use std::cmp::Ordering;

use half::{bf16, f16};

use super::OP;
use crate::cpu::cell::{Cell, with_cells};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{DType, Result, TensorRef};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 12;

/// `x`: rows of `len` elements, at least one.
pub(super) fn argsort(x: TensorRef<'_>, len: usize, descending: bool, index: &mut [i64]) -> Result<()> {
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
