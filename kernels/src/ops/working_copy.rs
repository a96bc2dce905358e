//! The copy of the weights in bf16 or f16 that products take, written by the update that changes them.

use super::check;
use crate::cpu::{Float, Stored};
use crate::{DType, Operand, Result, TensorMut};

/// A copy is bf16 or f16, beside the weights and of their shape.
pub(super) fn check(op: &'static str, weights: Operand, copy: Option<&TensorMut<'_>>) -> Result<()> {
    let Some(copy) = copy.map(|copy| copy.operand("working_copy")) else { return Ok(()) };
    check::same_device(op, &[weights, copy])?;
    check::dtype(op, copy, &[DType::BF16, DType::F16], "bf16 and f16")?;
    check::shape(op, copy, weights.shape)
}

/// Each weight, first in f32, to the nearest number of the copy's format, ties to even.
pub(super) fn round<T: Float>(op: &'static str, weights: &[T], copy: TensorMut<'_>) -> Result<()> {
    let copy_op = copy.operand("working_copy");
    check::short_dispatch!(op, copy_op, S => {
        for (copy, weight) in copy.into_slice::<S>(op, "working_copy")?.iter_mut().zip(weights) {
            *copy = S::store(weight.to_f64() as f32);
        }
        Ok(())
    })
}

/// What tests of updates share: the numbers of a step in device memory.
#[cfg(test)]
pub(super) mod testing {
    use crate::ops::testing::tensor;
    use crate::ops::{LossSums, STEP_SCALARS_LEN, STEP_SUMS_LEN, StepScalars, UpdateInputs};
    use crate::{Device, Tensor};

    /// The tensors that [`UpdateInputs`] refers to.
    pub(in crate::ops) struct Inputs {
        scalars: Tensor,
        sums: Tensor,
        squares: Option<Tensor>,
        max_norm: f64,
    }

    impl Inputs {
        /// `clip`: sum of squares and largest norm.
        pub(in crate::ops) fn new(
            lr: f64,
            step: u64,
            (expected_weight, unscale): (f64, f64),
            sums: LossSums,
            clip: Option<(f64, f64)>,
            device: Device,
        ) -> Self {
            let scalars = StepScalars { lr, step, expected_weight, unscale, ..StepScalars::default() };
            let mut tail = [0.0; STEP_SUMS_LEN];
            sums.store(&mut tail);
            Inputs {
                scalars: tensor(&scalars.to_array(), &[STEP_SCALARS_LEN], device),
                sums: tensor(&tail, &[STEP_SUMS_LEN], device),
                squares: clip.map(|(squares, _)| tensor(&[squares], &[1], device)),
                max_norm: clip.map_or(0.0, |(_, max_norm)| max_norm),
            }
        }

        pub(in crate::ops) fn view(&self) -> UpdateInputs<'_> {
            UpdateInputs {
                scalars: self.scalars.view(),
                sums: self.sums.view(),
                sum_of_squares: self.squares.as_ref().map(Tensor::view),
                max_norm: self.max_norm,
            }
        }
    }

    /// A step's numbers, and the factor of the gradient that they come to.
    pub(in crate::ops) struct Case {
        pub(in crate::ops) expected_weight: f64,
        pub(in crate::ops) unscale: f64,
        pub(in crate::ops) sums: LossSums,
        /// Sum of squares and largest norm.
        pub(in crate::ops) clip: Option<(f64, f64)>,
        pub(in crate::ops) factor: f64,
    }

    /// With and without an expected weight, with and without weight that came of it, with and without a gradient that is
    /// clipped, with and without a loss that was scaled.
    ///
    /// The products of the clipped ones are exact, so that the factor has the same bits whether they are contracted or not.
    pub(in crate::ops) fn cases() -> [Case; 8] {
        let case = |expected_weight, weight, clip, factor| Case {
            expected_weight,
            unscale: 1.0,
            sums: LossSums { loss: if weight == 0.0 { 0.0 } else { 0.3 }, weight },
            clip,
            factor,
        };
        [
            case(0.0, 7.0, None, 1.0),
            case(3.0, 7.0, None, 3.0 / 7.0),
            case(0.0, 7.0, Some((4.0, 100.0)), 1.0),
            case(1.0, 2.0, Some((16.0, 0.5)), 0.5 * (0.5 / (2.0 + 1e-6))),
            case(3.0, 0.0, None, 0.0),
            case(3.0, 0.0, Some((0.0, 0.5)), 0.0),
            // The same gradients, scaled by 2^10 with the loss.
            Case { unscale: 1.0 / 1024.0, ..case(3.0, 7.0, None, 3.0 / 7.0 / 1024.0) },
            Case {
                unscale: 1.0 / 1024.0,
                ..case(1.0, 2.0, Some((16.0 * 1024.0 * 1024.0, 0.5)), 0.5 / 1024.0 * (0.5 / (2.0 + 1e-6)))
            },
        ]
    }
}
