//! One pass for the gradient, one for the sum.

use super::{ElementLoss, LossSums};
use crate::cpu::Float;
use crate::cpu::simd::vectorize;

pub(super) fn sum_and_gradient<T: Float>(
    loss: &impl ElementLoss,
    x: &[T],
    target: &[T],
    scale: T,
    d_x: Option<&mut [T]>,
) -> LossSums {
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
