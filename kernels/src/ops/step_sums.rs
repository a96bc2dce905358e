//! The sums of a step as they travel: in the tail of the flat gradient buffer, so that they cost no message of their own.

use super::{LossSums, check};
use crate::{DType, Operand, Result, Shape, TensorMut, TensorRef};

/// Elements (f32) that a step's sums take; a cache line.
pub const STEP_SUMS_LEN: usize = 16;

/// Where among them the ranks' votes are added up, the answer to something that all must do alike, as to stop after this
/// step: small whole numbers, which f32 adds exactly. Losses write only what stands before it.
pub const STEP_VOTE: usize = 4;

/// How sums lie in [`STEP_SUMS_LEN`] f32: each f64 as two f32, so that little of it is lost when they are added over ranks.
///
/// `[loss, rest of it, weight, rest of it, vote, ...]`: neither this nor a loss on any device touches the vote and what stands
/// behind it.
impl LossSums {
    /// Writes the sums to the first four elements of `tail`.
    pub fn store(self, tail: &mut [f32]) {
        for (pair, value) in tail.chunks_exact_mut(2).zip([self.loss, self.weight]) {
            pair[0] = value as f32;
            let rest = value - f64::from(pair[0]);
            // Infinity less infinity is NaN; the first part alone says it all.
            pair[1] = if rest.is_finite() { rest as f32 } else { 0.0 };
        }
    }

    /// Reads the sums from `tail`, of at least four elements.
    pub fn load(tail: &[f32]) -> Self {
        let value = |i: usize| f64::from(tail[i]) + f64::from(tail[i + 1]);
        LossSums { loss: value(0), weight: value(2) }
    }
}

/// Where a loss leaves its sums.
#[derive(Debug)]
pub struct SumsOutput<'a> {
    /// [`STEP_SUMS_LEN`] f32 on the device of the operands, laid out as [`LossSums::store`] does.
    pub tail: TensorMut<'a>,
    /// Whether to add to what `tail` holds, as the micro-batches of a step after the first do.
    pub accumulate: bool,
}

impl SumsOutput<'_> {
    /// The tail is f32, long enough, and beside `operand`.
    pub(crate) fn check(&self, op: &'static str, beside: Operand) -> Result<()> {
        let tail = self.tail.operand("sums");
        check::same_device(op, &[beside, tail])?;
        check::dtype(op, tail, &[DType::F32], "f32")?;
        check::shape(op, tail, Shape::vector(STEP_SUMS_LEN))
    }

    /// Leaves sums that the host computed.
    pub(crate) fn put(self, op: &'static str, sums: LossSums) -> Result<()> {
        let tail = self.tail.into_slice::<f32>(op, "sums")?;
        let mut total = sums;
        if self.accumulate {
            total += LossSums::load(tail);
        }
        total.store(tail);
        Ok(())
    }
}

/// Numbers of a step that change from step to step, as an update reads them from device memory: so a captured graph sees
/// new ones at each replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepScalars {
    /// Learning rate.
    pub lr: f64,
    /// Optimiser steps taken, this one included: from 1.
    pub step: u64,
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Place in the global batch of this rank's first row.
    pub first_row: u64,
    /// What gradients were divided by, where the sum of weights may come to something else (weights of classes or rows); 0 elsewhere.
    pub expected_weight: f64,
    /// Factor that undoes the scaling of the loss: 1 / loss_scale, a power of two; 1 where the loss was not scaled.
    pub unscale: f64,
    /// This rank's vote, for [`STEP_VOTE`].
    pub vote: f64,
}

impl Default for StepScalars {
    /// The first step of a loss that is neither weighted nor scaled; no vote.
    fn default() -> Self {
        StepScalars { lr: 0.0, step: 1, seed: 0, first_row: 0, expected_weight: 0.0, unscale: 1.0, vote: 0.0 }
    }
}

/// Elements (f64) of [`StepScalars`] in a tensor.
pub const STEP_SCALARS_LEN: usize = 8;
/// Which of them is the vote: [`super::cast`] takes it to [`STEP_VOTE`].
pub const STEP_SCALARS_VOTE: usize = 7;

impl StepScalars {
    /// `[lr, step, seed's lower 32 bits, seed's upper 32 bits, first_row, expected_weight, unscale, vote]`: each exact in f64.
    pub fn to_array(self) -> [f64; STEP_SCALARS_LEN] {
        let half = |v: u64| f64::from(v as u32);
        let (low, high) = (half(self.seed), half(self.seed >> 32));
        let first_row = self.first_row as f64;
        [self.lr, self.step as f64, low, high, first_row, self.expected_weight, self.unscale, self.vote]
    }

    /// The inverse of [`StepScalars::to_array`].
    pub fn from_slice(values: &[f64]) -> Self {
        StepScalars {
            lr: values[0],
            step: values[1] as u64,
            seed: values[2] as u64 | (values[3] as u64) << 32,
            first_row: values[4] as u64,
            expected_weight: values[5],
            unscale: values[6],
            vote: values[STEP_SCALARS_VOTE],
        }
    }
}

/// What an update takes from device memory instead of from its arguments.
#[derive(Debug, Clone, Copy)]
pub struct UpdateInputs<'a> {
    /// [`StepScalars`], `[STEP_SCALARS_LEN]` f64.
    pub scalars: TensorRef<'a>,
    /// The step's sums over all ranks, `[STEP_SUMS_LEN]` f32. Where the loss in it or `sum_of_squares` is not finite, the update
    /// does nothing.
    pub sums: TensorRef<'a>,
    /// `Σ grads²` over all ranks, `[1]` f64, where the gradient is clipped.
    pub sum_of_squares: Option<TensorRef<'a>>,
    /// Largest norm of the gradient, infinity for any; counts only with `sum_of_squares`.
    pub max_norm: f64,
}

/// What an update does with the gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradScale {
    /// Factor of the gradient.
    pub scale: f64,
    /// Whether to update at all.
    pub is_finite: bool,
}

impl UpdateInputs<'_> {
    /// Shapes, dtypes and devices are as documented.
    pub(crate) fn check(&self, op: &'static str, beside: Operand) -> Result<()> {
        let (scalars, sums) = (self.scalars.operand("scalars"), self.sums.operand("sums"));
        check::same_device(op, &[beside, scalars, sums])?;
        check::dtype(op, scalars, &[DType::F64], "f64")?;
        check::shape(op, scalars, Shape::vector(STEP_SCALARS_LEN))?;
        check::dtype(op, sums, &[DType::F32], "f32")?;
        check::shape(op, sums, Shape::vector(STEP_SUMS_LEN))?;
        if let Some(squares) = self.sum_of_squares {
            let squares = squares.operand("sum_of_squares");
            check::same_device(op, &[beside, squares])?;
            check::dtype(op, squares, &[DType::F64], "f64")?;
            check::shape(op, squares, Shape::vector(1))?;
        }
        Ok(())
    }

    /// The definition, which the kernels repeat: `unscaled = unscale · mean_scale`, that of [`LossSums::mean_scale`];
    /// `scale = unscaled · min(1, max_norm / (unscaled · √sum_of_squares + 1e-6))`.
    ///
    /// Source: `torch.nn.utils.clip_grad_norm_`.
    pub(crate) fn on_host(&self, op: &'static str) -> Result<(StepScalars, GradScale)> {
        let scalars = StepScalars::from_slice(self.scalars.as_slice(op, "scalars")?);
        let sums = LossSums::load(self.sums.as_slice(op, "sums")?);
        let unscaled = sums.mean_scale(scalars.expected_weight) * scalars.unscale;
        let squares = match self.sum_of_squares {
            Some(squares) => Some(squares.as_slice::<f64>(op, "sum_of_squares")?[0]),
            None => None,
        };
        let clip_scale = squares.map_or(1.0, |squares| {
            let norm = squares.sqrt() * unscaled;
            (self.max_norm / (norm + 1e-6)).min(1.0)
        });
        let is_finite = sums.loss.is_finite() && squares.is_none_or(f64::is_finite);
        Ok((scalars, GradScale { scale: unscaled * clip_scale, is_finite }))
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

        #[test]
        fn scalars_survive_the_array(
            lr in 0.0f64..10.0, step in 1u64..1 << 50, seed: u64, first_row in 0u64..1 << 50, vote in 0u32..9,
        ) {
            let vote = f64::from(vote);
            let scalars = StepScalars { lr, step, seed, first_row, expected_weight: 0.5, unscale: 0.25, vote };
            prop_assert_eq!(StepScalars::from_slice(&scalars.to_array()), scalars);
            prop_assert_eq!(scalars.to_array()[STEP_SCALARS_VOTE], vote);
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
