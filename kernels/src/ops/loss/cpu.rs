//! One pass for the gradient, one for the sum; with weights of rows both go row by row.

use super::{ElementLoss, LossSums};
use crate::cpu::Float;
use crate::cpu::simd::vectorize;

pub(super) fn sum_and_gradient<T: Float>(
    loss: &impl ElementLoss,
    x: &[T],
    target: &[T],
    row_weights: Option<&[f32]>,
    scale: T,
    d_x: Option<&mut [T]>,
) -> LossSums {
    if let Some(row_weights) = row_weights {
        return weighted(loss, x, target, row_weights, scale, d_x);
    }
    vectorize(
        #[inline(always)]
        || {
            if let Some(d_x) = d_x {
                for ((d, &x), &t) in d_x.iter_mut().zip(x).zip(target) {
                    *d = scale * loss.derivative(x, t);
                }
            }
            let loss = x.iter().zip(target).map(|(&x, &t)| loss.value(x, t).to_f64()).sum();
            LossSums { loss, weight: x.len() as f64 }
        },
    )
}

fn weighted<T: Float>(
    loss: &impl ElementLoss,
    x: &[T],
    target: &[T],
    row_weights: &[f32],
    scale: T,
    mut d_x: Option<&mut [T]>,
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
                    d_row.into_iter().for_each(|d_row| d_row.fill(T::ZERO));
                    continue;
                }
                let (x, target, weight) = (&x[range.clone()], &target[range], f64::from(weight));
                if let Some(d_row) = d_row {
                    let scale = scale * T::from_f64(weight);
                    for ((d, &x), &t) in d_row.iter_mut().zip(x).zip(target) {
                        *d = scale * loss.derivative(x, t);
                    }
                }
                for (&x, &t) in x.iter().zip(target) {
                    sums.loss += weight * loss.value(x, t).to_f64();
                }
                sums.weight += weight * n_cols as f64;
            }
            sums
        },
    )
}
