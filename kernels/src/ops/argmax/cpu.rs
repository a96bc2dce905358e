//! Row by row, rows divided between the threads.

use half::{bf16, f16};

use super::OP;
use crate::cpu::cell::{Cell, with_cells};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::ops::reduce::cpu::first_largest;
use crate::{DType, Result, TensorRef};

/// Columns below which a plain loop is faster than vectors.
const SHORT: usize = 64;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// `x`: rows of `n_cols` elements, at least one.
pub(super) fn argmax(x: TensorRef<'_>, n_cols: usize, index: &mut [i64]) -> Result<()> {
    let bytes = x.as_bytes(OP, "x")?;
    let (n_rows, index) = (index.len(), SharedMut::new(index));
    with_cells!(x.dtype(), C => {
        let x: &[C] = bytemuck::cast_slice(bytes);
        for_parts(n_rows, MIN_PART.div_ceil(n_cols), 1, |rows| {
            // SAFETY: within `index`, and these rows are this part's alone.
            let index = unsafe { index.slice(rows.clone()) };
            let x = &x[rows.start * n_cols..rows.end * n_cols];
            if n_cols < SHORT {
                for (row, index) in x.chunks_exact(n_cols).zip(index) {
                    *index = of_short(row).unwrap_or(-1);
                }
            } else {
                first_largest(x, n_cols, |row, place| index[row] = place.unwrap_or(-1));
            }
        });
        Ok(())
    })
}

/// None for a row with NaN: it equals nothing, not even itself.
fn of_short<C: Cell>(row: &[C]) -> Option<i64> {
    let (mut place, mut largest) = (0, row[0].load());
    for (at, cell) in (0..).zip(row) {
        let number = cell.load();
        number.partial_cmp(&number)?;
        if number > largest {
            (place, largest) = (at, number);
        }
    }
    Some(place)
}
