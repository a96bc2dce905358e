//! One pass over the rows; the loss of an element is that of `bce_with_logits`.

use crate::Element;
use crate::cpu::{Float, Stored};
use crate::ops::bce_with_logits::Bce;
use crate::ops::loss::{ElementLoss as _, LossSums};

/// Labels are at most `n_cols`.
pub(super) fn sum_and_gradient<T: Stored, D: Stored<Real = T::Real>>(
    logits: &[T],
    labels: &[i64],
    row_weights: Option<&[f32]>,
    scale: T::Real,
    mut d_logits: Option<&mut [D]>,
) -> LossSums {
    let n_cols = logits.len() / labels.len().max(1);
    let mut sums = LossSums::default();
    for (row, &label) in labels.iter().enumerate() {
        let range = row * n_cols..(row + 1) * n_cols;
        let weight = row_weights.map_or(1.0, |weights| f64::from(weights[row]));
        let mut d_row = d_logits.as_mut().map(|d| &mut d[range.clone()]);
        if weight == 0.0 {
            d_row.into_iter().for_each(|d| d.fill(D::ZERO));
            continue;
        }
        let scale = scale * T::Real::from_f64(weight);
        for (column, logit) in logits[range].iter().enumerate() {
            let target = if label > column as i64 { T::Real::ONE } else { T::Real::ZERO };
            if let Some(d_row) = &mut d_row {
                d_row[column] = D::store(scale * Bce.derivative(logit.load(), target));
            }
            sums.loss += weight * Bce.value(logit.load(), target).to_f64();
        }
        sums.weight += weight * n_cols as f64;
    }
    sums
}
