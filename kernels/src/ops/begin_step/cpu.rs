//! Row by row.

use super::row_mix::{ROW_SUMS_LEN, mix_row};
use crate::KeyedPermutation;

/// Runs of rows: where they begin, the first row of each, and the place of number 0.
type Places<'a> = (&'a [i64], &'a [i64], usize);

/// Writes the rows at positions `first..` of `order` to `numbers`, and adds them to `sums`.
pub(super) fn number_rows(
    order: &KeyedPermutation,
    first: usize,
    places: Option<Places<'_>>,
    numbers: &mut [i64],
    sums: &mut [i64],
) {
    let mut added = [0u64; ROW_SUMS_LEN];
    added[0] = numbers.len() as u64;
    for (i, number) in numbers.iter_mut().enumerate() {
        let row = match (order.index(first + i), places) {
            (row, None) => row,
            (number, Some((starts, rows, origin))) => {
                let place = (origin + number) as i64;
                let run = starts.partition_point(|&start| start <= place).saturating_sub(1);
                (rows[run] + place - starts[run]) as usize
            }
        };
        *number = row as i64;
        let mix = mix_row(row as u64);
        for (k, sum) in added[1..].iter_mut().enumerate() {
            *sum = sum.wrapping_add(u64::from((mix >> (32 * k)) as u32));
        }
    }
    for (sum, added) in sums.iter_mut().zip(added) {
        *sum = sum.wrapping_add(added as i64);
    }
}
