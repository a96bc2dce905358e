//! One pass for the gradient, one for the sum; with row weights both go row by row.

use super::{ElementLoss, LossSums};
use crate::Element;
use crate::cpu::Stored;
use crate::cpu::simd::vectorize;

pub(super) fn sum_and_gradient<T: Stored, D: Stored<Real = T::Real>>(
    loss: &impl ElementLoss,
    x: &[T],
    target: &[T],
    row_weights: Option<&[f32]>,
    scale: T::Real,
    d_x: Option<&mut [D]>,
) -> LossSums {
    if let Some(row_weights) = row_weights {
        return weighted(loss, x, target, row_weights, scale, d_x);
    }
    vectorize(
        #[inline(always)]
        || {
            if let Some(d_x) = d_x {
                for ((d, &x), &t) in d_x.iter_mut().zip(x).zip(target) {
                    *d = D::store(scale * loss.derivative(x.load(), t.load()));
                }
            }
            let loss = x.iter().zip(target).map(|(&x, &t)| loss.value(x.load(), t.load()).to_f64()).sum();
            LossSums { loss, weight: x.len() as f64 }
        },
    )
}

fn weighted<T: Stored, D: Stored<Real = T::Real>>(
    loss: &impl ElementLoss,
    x: &[T],
    target: &[T],
    row_weights: &[f32],
    scale: T::Real,
    mut d_x: Option<&mut [D]>,
) -> LossSums {
    let n_cols = x.len() / row_weights.len().max(1);
    vectorize(
        #[inline(always)]
        || {
            let mut sums = LossSums::default();
            for (row, &weight) in row_weights.iter().enumerate() {
                let range = row * n_cols..(row + 1) * n_cols;
                let d_row = d_x.as_mut().map(|d_x| &mut d_x[range.clone()]);
                if weight == 0.0 {
                    d_row.into_iter().for_each(|d_row| d_row.fill(D::ZERO));
                    continue;
                }
                let (x, target, weight) = (&x[range.clone()], &target[range], f64::from(weight));
                if let Some(d_row) = d_row {
                    let scale = scale * T::Real::from_f64(weight);
                    for ((d, &x), &t) in d_row.iter_mut().zip(x).zip(target) {
                        *d = D::store(scale * loss.derivative(x.load(), t.load()));
                    }
                }
                for (&x, &t) in x.iter().zip(target) {
                    sums.loss += weight * loss.value(x.load(), t.load()).to_f64();
                }
                sums.weight += weight * n_cols as f64;
            }
            sums
        },
    )
}
