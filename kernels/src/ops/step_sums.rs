//! Loss and weight sums of a step in the tail of the flat gradient buffer, where an all-reduce of the gradients sums them too.

use super::{LossSums, check};
use crate::{DType, Operand, Result, Shape, TensorMut, TensorRef};

/// Number of f32 elements of a step's sums; a cache line.
pub const STEP_SUMS_LEN: usize = 16;

/// Index of the first element of the caller: from here on, it may sum numbers of its own with the gradients. Losses leave them
/// alone, except for [`SumsOutput::extra`].
pub const STEP_SUMS_EXTRA: usize = 4;

/// Layout in [`STEP_SUMS_LEN`] f32: each f64 as two f32, so that summing over peers in f32 loses little of it.
///
/// `[loss, its remainder, weight, its remainder, extra, ...]`
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

/// Destination of a loss's sums.
#[derive(Debug)]
pub struct SumsOutput<'a> {
    /// [`STEP_SUMS_LEN`] f32 on the device of the operands, in the layout of [`LossSums::store`].
    pub tail: TensorMut<'a>,
    /// Whether to add to the sums in `tail`: true for all micro-batches of a step but the first.
    pub accumulate: bool,
    /// `[1]` f64 on the device of the operands, which is copied to element [`STEP_SUMS_EXTRA`] of the tail, rounded to f32.
    pub extra: Option<TensorRef<'a>>,
}

impl SumsOutput<'_> {
    /// Checks that the tail is `[STEP_SUMS_LEN]` f32 on the device of `beside`.
    pub(crate) fn check(&self, op: &'static str, beside: Operand) -> Result<()> {
        let tail = self.tail.operand("sums");
        check::same_device(op, &[beside, tail])?;
        check::dtype(op, tail, &[DType::F32], "f32")?;
        check::shape(op, tail, Shape::vector(STEP_SUMS_LEN))?;
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
}
