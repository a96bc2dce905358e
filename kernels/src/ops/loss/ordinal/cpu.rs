//! Binary cross-entropy of each element; its target is 1 if the label is above the column, else 0.

use crate::Element;
use crate::cpu::{Float, Stored};
use crate::ops::loss::cpu::Blocks;
use crate::ops::loss::formulas::Bce;
use crate::ops::loss::sums::LossSums;

/// Labels are at most `n_cols`.
pub(super) fn sum_and_gradient<T: Stored, D: Stored<Real = T::Real>>(
    logits: &[T],
    labels: &[i64],
    row_weights: Option<&[f32]>,
    scale: T::Real,
    d_logits: Option<&mut [D]>,
) -> LossSums {
    let n_cols = logits.len() / labels.len().max(1);
    let blocks = Blocks { x: logits, n_cols, row_weights, scale };
    blocks.sum_and_gradient(&Bce, d_logits, |range, memory| {
        let (mut row, mut column) = (range.start / n_cols, range.start % n_cols);
        for target in memory.first(range.len()) {
            *target = if labels[row] > column as i64 { T::Real::ONE } else { T::Real::ZERO };
            column += 1;
            if column == n_cols {
                (row, column) = (row + 1, 0);
            }
        }
        None
    })
}
