//! Sum and weight of a loss, and their place in the tail of the flat gradient buffer, where an all-reduce of the gradients sums
//! them too.

use std::ops::AddAssign;

use crate::base::check;
use crate::{DType, Operand, Result, Shape, TensorMut, TensorRef};

/// Sum of losses and the divisor of their mean, so that adding the sums of several shards gives the true mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSums {
    /// Sum of the losses, times their weights if there are any.
    pub loss: f64,
    /// Sum of the weights; without weights, the number of rows or elements.
    pub weight: f64,
}

impl LossSums {
    /// The mean; 0 if the sum of weights is 0, unless the loss is not finite, which is then returned.
    pub fn mean(&self) -> f64 {
        if self.weight == 0.0 { self.loss } else { self.loss / self.weight }
    }

    /// Factor that turns a gradient divided by `expected_weight` into the gradient of the mean; 1 if `expected_weight` is 0, that is,
    /// if the gradient was divided by the sum of weights itself; 0 if the sum of weights is 0, as every gradient is then.
    pub fn mean_scale(&self, expected_weight: f64) -> f64 {
        if expected_weight > 0.0 {
            if self.weight == 0.0 { 0.0 } else { expected_weight / self.weight }
        } else {
            1.0
        }
    }
}

impl AddAssign for LossSums {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.weight += other.weight;
    }
}

/// Number of f32 elements of a step's sums; a cache line.
pub const STEP_SUMS_LEN: usize = 16;

/// Index of the first element that belongs to the caller, who may sum values of its own with the gradients from here on, up to the last
/// element, which is a mark. Losses do not write there, except for [`SumsOutput::extra`].
#[doc(hidden)]
pub const STEP_SUMS_EXTRA: usize = 4;

/// Layout in [`STEP_SUMS_LEN`] f32: each f64 as two f32, so that summing over peers in f32 loses little of it.
///
/// `[loss, its remainder, weight, its remainder, extra, ..., mark]`
///
/// On a GPU an update marks weights that it has made infinite or NaN by NaN, and the next loss is NaN then: a ReLU that cuBLASLt computes
/// turns NaN into 0, so that the loss itself may stay finite.
impl LossSums {
    /// Writes the sums to the first [`STEP_SUMS_EXTRA`] elements of `tail`.
    pub fn store(self, tail: &mut [f32]) {
        for (pair, value) in tail.chunks_exact_mut(2).zip([self.loss, self.weight]) {
            pair[0] = value as f32;
            let rest = value - f64::from(pair[0]);
            // Infinity minus infinity is NaN; the first f32 is enough.
            pair[1] = if rest.is_finite() { rest as f32 } else { 0.0 };
        }
    }

    /// Reads the sums from the first [`STEP_SUMS_EXTRA`] elements of `tail`.
    pub fn load(tail: &[f32]) -> Self {
        let value = |i: usize| f64::from(tail[i]) + f64::from(tail[i + 1]);
        LossSums { loss: value(0), weight: value(2) }
    }
}

/// Checks that sums are `[STEP_SUMS_LEN]` f32 on the device of `beside`.
pub(crate) fn check_sums(op: &'static str, sums: Operand, beside: Operand) -> Result<()> {
    check::same_device(op, &[beside, sums])?;
    check::dtype(op, sums, &[DType::F32], "f32")?;
    check::shape(op, sums, Shape::vector(STEP_SUMS_LEN))
}

/// Destination of a loss's sums.
#[derive(Debug)]
pub struct SumsOutput<'a> {
    /// [`STEP_SUMS_LEN`] f32 on the device of the operands, in the layout of [`LossSums::store`].
    pub tail: TensorMut<'a>,
    /// Whether to add to the sums in `tail`: true for all micro-batches of a step but the first.
    pub accumulate: bool,
    /// `[1]` f64 on the device of the operands, which is copied to element [`STEP_SUMS_EXTRA`] of the tail, rounded to f32. With it the tail
    /// is that of a step, whose last element marks weights that are not finite.
    pub extra: Option<TensorRef<'a>>,
}

impl SumsOutput<'_> {
    /// Checks tail and extra.
    pub(crate) fn check(&self, op: &'static str, beside: Operand) -> Result<()> {
        check_sums(op, self.tail.operand("sums"), beside)?;
        let Some(extra) = self.extra.map(|extra| extra.operand("extra")) else { return Ok(()) };
        check::same_device(op, &[beside, extra])?;
        check::dtype(op, extra, &[DType::F64], "f64")?;
        check::shape(op, extra, Shape::vector(1))
    }

    /// Writes sums that the host computed.
    pub(crate) fn write(self, op: &'static str, sums: LossSums) -> Result<()> {
        let tail = self.tail.into_slice::<f32>(op, "sums")?;
        let mut total = sums;
        if self.accumulate {
            total += LossSums::load(tail);
        }
        total.store(tail);
        if let Some(extra) = self.extra {
            tail[STEP_SUMS_EXTRA] = extra.as_slice::<f64>(op, "extra")?[0] as f32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_survive_the_tail(loss in 0.0f64..1e9, weight in 0.0f64..1e12) {
            let mut tail = [0.0; STEP_SUMS_LEN];
            LossSums { loss, weight }.store(&mut tail);
            let back = LossSums::load(&tail);
            prop_assert!((back.loss - loss).abs() <= 1e-13 * loss);
            prop_assert!((back.weight - weight).abs() <= 1e-13 * weight);
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_stays_so() {
        for loss in [f64::INFINITY, f64::NAN, 1e300] {
            let mut tail = [0.0; STEP_SUMS_LEN];
            LossSums { loss, weight: 1.0 }.store(&mut tail);
            assert!(!LossSums::load(&tail).loss.is_finite());
        }
    }

    #[test]
    fn the_mean_over_no_weight_is_0_and_so_is_its_gradient() {
        let of = |loss, weight| LossSums { loss, weight };
        assert_eq!((of(6.0, 4.0).mean(), of(0.0, 0.0).mean()), (1.5, 0.0));
        assert!(of(f64::NAN, 0.0).mean().is_nan() && of(f64::NAN, 2.0).mean().is_nan());
        assert_eq!((of(6.0, 4.0).mean_scale(2.0), of(6.0, 4.0).mean_scale(0.0)), (0.5, 1.0));
        assert_eq!((of(0.0, 0.0).mean_scale(2.0), of(0.0, 0.0).mean_scale(0.0)), (0.0, 1.0));
    }
}
