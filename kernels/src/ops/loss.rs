//! What every loss returns.

use std::ops::AddAssign;

use super::check;
use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::{Result, TensorMut, TensorRef};

/// A loss over some rows as a sum and what to divide it by, so that sums of several ranks add up to the true mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSums {
    /// Sum of the losses, weighted where there are weights.
    pub loss: f64,
    /// Sum of the weights: the number of rows or elements where there are none.
    pub weight: f64,
}

impl LossSums {
    /// The mean: NaN where there was no weight, as in PyTorch.
    pub fn mean(&self) -> f64 {
        self.loss / self.weight
    }
}

impl AddAssign for LossSums {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.weight += other.weight;
    }
}

/// A loss of one predicted and one true value.
pub(super) trait ElementLoss: Sync {
    /// The loss.
    fn value<T: Float>(&self, x: T, target: T) -> T;
    /// Its derivative with respect to `x`.
    fn derivative<T: Float>(&self, x: T, target: T) -> T;
}

/// Sums `loss` over all elements and writes `scale` times its derivative.
pub(super) fn elementwise_loss(
    op: &'static str,
    loss: &impl ElementLoss,
    x_name: &'static str,
    x: TensorRef<'_>,
    target: TensorRef<'_>,
    scale: f64,
    d_x: Option<TensorMut<'_>>,
) -> Result<LossSums> {
    let (x_op, target_op) = (x.operand(x_name), target.operand("target"));
    check::same_kind(op, &[x_op, target_op])?;
    check::shape(op, target_op, x.shape())?;
    if let Some(d_x) = &d_x {
        check::same_kind(op, &[x_op, d_x.operand("gradient")])?;
        check::shape(op, d_x.operand("gradient"), x.shape())?;
    }
    check::float_dispatch!(op, x_op, T => {
        let (x, target) = (x.as_slice::<T>(op, x_name)?, target.as_slice::<T>(op, "target")?);
        let d_x = d_x.map(|d| d.into_slice::<T>(op, "gradient")).transpose()?;
        Ok(sum_and_gradient(loss, x, target, scale as T, d_x))
    })
}

fn sum_and_gradient<T: Float>(
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

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::ops::testing::{assert_gradient, random};

    /// Checks a loss's gradient at random points `range` times -1..1 against targets made by `target`.
    pub(in crate::ops) fn assert_loss_gradient(
        op: impl Fn(TensorRef<'_>, TensorRef<'_>, f64, Option<TensorMut<'_>>) -> Result<LossSums>,
        range: f64,
        target: impl Fn(f64) -> f64,
    ) {
        let dims = [5, 7];
        let x: Vec<f64> = random::<f64>(35, 1).iter().map(|v| range * v).collect();
        let t: Vec<f64> = random::<f64>(35, 2).into_iter().map(target).collect();
        let t = TensorRef::from_slice(&t, &dims).unwrap();
        let mut d = vec![f64::NAN; 35];
        let view = TensorMut::from_slice(&mut d, &dims).unwrap();
        let sums = op(TensorRef::from_slice(&x, &dims).unwrap(), t, 0.25, Some(view)).unwrap();
        assert_eq!(sums.weight, 35.0);
        assert_gradient(&x, &d, |x| {
            0.25 * op(TensorRef::from_slice(x, &dims).unwrap(), t, 0.25, None).unwrap().loss
        });
    }
}
