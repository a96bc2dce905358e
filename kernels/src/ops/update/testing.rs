//! Numbers of a step in device memory, for the tests of updates.

use crate::ops::testing::tensor;
use crate::ops::{LossSums, OptimizerParams, STEP_SCALARS_LEN, STEP_SUMS_LEN, StepScalars, UpdateInputs};
use crate::{Device, Tensor};

/// The tensors that [`UpdateInputs`] refers to.
pub(super) struct Inputs {
    scalars: Tensor,
    sums: Tensor,
    squares: Option<Tensor>,
    max_norm: f64,
}

impl Inputs {
    /// `clip`: sum of squares and largest norm.
    pub(super) fn new(
        lr: f64,
        step: u64,
        (expected_weight, unscale): (f64, f64),
        sums: LossSums,
        clip: Option<(f64, f64)>,
        device: Device,
    ) -> Self {
        let beta_powers = OptimizerParams::default().beta_powers(step);
        let scalars =
            StepScalars { lr, step, expected_weight, unscale, beta_powers, ..StepScalars::default() };
        let mut tail = [0.0; STEP_SUMS_LEN];
        sums.store(&mut tail);
        Inputs {
            scalars: tensor(&scalars.to_array(), &[STEP_SCALARS_LEN], device),
            sums: tensor(&tail, &[STEP_SUMS_LEN], device),
            squares: clip.map(|(squares, _)| tensor(&[squares], &[1], device)),
            max_norm: clip.map_or(0.0, |(_, max_norm)| max_norm),
        }
    }

    /// With this largest mean loss.
    pub(super) fn with_loss_limit(self, loss_limit: f64) -> Self {
        let scalars = StepScalars::from_slice(&self.scalars.to_vec::<f64>().unwrap());
        let scalars = StepScalars { loss_limit, ..scalars }.to_array();
        let device = self.scalars.device();
        Inputs { scalars: tensor(&scalars, &[STEP_SCALARS_LEN], device), ..self }
    }

    pub(super) fn view(&self) -> UpdateInputs<'_> {
        UpdateInputs {
            scalars: self.scalars.view(),
            sums: self.sums.view(),
            sum_of_squares: self.squares.as_ref().map(Tensor::view),
            max_norm: self.max_norm,
            report: None,
        }
    }
}

/// The numbers of a step, and the gradient factor that they give.
pub(super) struct Case {
    pub(super) expected_weight: f64,
    pub(super) unscale: f64,
    pub(super) sums: LossSums,
    /// Sum of squares and largest norm.
    pub(super) clip: Option<(f64, f64)>,
    pub(super) factor: f64,
}

/// With and without: an expected weight, any weight, gradient clipping, loss scaling.
///
/// Multiplications in the clipped cases are exact, so that the factor has the same bits with and without FMA contraction.
pub(super) fn cases() -> [Case; 8] {
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
