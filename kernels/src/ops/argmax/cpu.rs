//! Row by row.

use crate::Element;

pub(super) fn argmax<T: Element>(x: &[T], n_cols: usize, index: &mut [i64]) {
    for (row, index) in x.chunks_exact(n_cols.max(1)).zip(index.iter_mut()) {
        *index = first_largest(row).map_or(-1, |place| place as i64);
    }
    if n_cols == 0 {
        index.fill(-1);
    }
}

/// None for a row with NaN: it equals nothing, not even itself.
fn first_largest<T: Element>(row: &[T]) -> Option<usize> {
    let mut place = 0;
    for (at, value) in row.iter().enumerate() {
        value.partial_cmp(value)?;
        if *value > row[place] {
            place = at;
        }
    }
    Some(place)
}
