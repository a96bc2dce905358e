//! Row by row.

use super::row_mix::{ROW_SUMS_LEN, mix_row};
use crate::KeyedPermutation;

/// Writes the rows at positions `first..` of `order` to `numbers`, and adds them to `sums`.
pub(super) fn number_rows(order: &KeyedPermutation, first: usize, numbers: &mut [i64], sums: &mut [i64]) {
    let mut added = [0u64; ROW_SUMS_LEN];
    added[0] = numbers.len() as u64;
    for (i, number) in numbers.iter_mut().enumerate() {
        let row = order.index(first + i);
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
