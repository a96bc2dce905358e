//! Decides by the numbers of a step whether its update is withheld, and by which factor it multiplies the gradient: once for the host
//! here, and once for GPUs, by the same rule, as `update_inputs` in `prelude.cuh`.

use crate::ops::loss::sums::LossSums;
use crate::ops::step_scalars::StepScalars;

/// Reason for which a step's update is withheld: weights and optimizer state stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub enum Withheld {
    /// The mean loss is NaN or infinite.
    Loss,
    /// The norm of the gradient is NaN, infinite or, after clipping, above 1.8e19: its square would overflow.
    Gradient,
    /// The mean loss is above the step's limit.
    AboveLimit,
    /// The limit is negative infinity: the caller left the step's update out.
    LeftOut,
}

/// Largest norm of a gradient of which each square is a number in f32: beyond it, the second moment of Adam and LAMB could become
/// infinite, and stop its weight for ever.
const MAX_GRAD_NORM: f64 = 1.844_674_3e19;

/// The numbers of a step that decide on its update, the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub struct StepNumbers {
    /// The numbers that were known before the step.
    pub scalars: StepScalars,
    /// Loss sums of the global batch.
    pub sums: LossSums,
    /// `Σ grads²` over the whole model, if it was computed.
    pub sum_of_squares: Option<f64>,
}

impl StepNumbers {
    /// The first reason for which the update is withheld, if there is one; `max_norm` is the norm to which the gradient is clipped.
    pub fn withheld(&self, max_norm: f64) -> Option<Withheld> {
        let (mean, limit) = (self.sums.mean(), self.scalars.loss_limit);
        if limit == f64::NEG_INFINITY {
            Some(Withheld::LeftOut)
        } else if !mean.is_finite() {
            Some(Withheld::Loss)
        } else if self.grad_norm().is_some_and(|norm| {
            let clipped = norm * self.clip_scale(max_norm);
            clipped.is_nan() || clipped > MAX_GRAD_NORM
        }) {
            Some(Withheld::Gradient)
        } else {
            (mean > limit).then_some(Withheld::AboveLimit)
        }
    }

    /// 2-norm of the mean loss's gradient before clipping, if the sum of squares is known.
    pub fn grad_norm(&self) -> Option<f64> {
        self.sum_of_squares.map(|squares| squares.sqrt() * self.unscaled())
    }

    /// Factor of the accumulated gradient in the update: `unscaled · min(1, max_norm / (grad_norm + 1e-6))`, with
    /// `unscaled = mean_scale · unscale` ([`LossSums::mean_scale`]); without a sum of squares nothing is clipped.
    ///
    /// Source: `torch.nn.utils.clip_grad_norm_`.
    pub fn grad_scale(&self, max_norm: f64) -> f64 {
        self.unscaled() * self.clip_scale(max_norm)
    }

    fn clip_scale(&self, max_norm: f64) -> f64 {
        self.grad_norm().map_or(1.0, |norm| (max_norm / (norm + 1e-6)).min(1.0))
    }

    /// Turns the accumulated gradient into that of the mean loss.
    fn unscaled(&self) -> f64 {
        self.sums.mean_scale(self.scalars.expected_weight) * self.scalars.unscale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{devices, tensor};
    use crate::ops::update::testing::Inputs;
    use crate::ops::{OptimizerKind, OptimizerParams, OptimizerTensors, optimizer_step};
    use crate::{DType, Device, Tensor};

    const ANY: f64 = f64::INFINITY;

    /// Loss, weight, expected weight, sum of squares and limit of a step, its largest norm, and the decision on it.
    type Case = (f64, f64, f64, Option<f64>, f64, f64, Result<f64, Withheld>);

    fn cases() -> Vec<Case> {
        let inf = f64::INFINITY;
        let mut cases = vec![
            (3.0, 2.0, 0.0, None, ANY, inf, Ok(1.0)),
            // Clipped, or just as long as is allowed.
            (3.0, 2.0, 0.0, Some(16.0), ANY, 2.0, Ok(2.0 / (4.0 + 1e-6))),
            (3.0, 2.0, 0.0, Some(16.0), ANY, inf, Ok(1.0)),
            (3.0, 2.0, 1.0, Some(16.0), ANY, 1.0, Ok(0.5 * (1.0 / (2.0 + 1e-6)))),
            // The limit itself is allowed.
            (3.0, 2.0, 0.0, None, 1.5, inf, Ok(1.0)),
            (3.0, 2.0, 0.0, Some(16.0), 1.25, inf, Err(Withheld::AboveLimit)),
            (3.0, 2.0, 0.0, None, -inf, inf, Err(Withheld::LeftOut)),
            // Over no weight every gradient is 0, and so is the mean, unless the loss is not finite.
            (0.0, 0.0, 3.0, Some(0.0), 0.0, 0.5, Ok(0.0)),
            (f64::NAN, 0.0, 3.0, Some(0.0), ANY, 0.5, Err(Withheld::Loss)),
            (3.0, f64::NAN, 3.0, None, ANY, inf, Err(Withheld::Loss)),
            // A norm that is not finite although its square is.
            (3.0, 1e-30, 1e300, Some(16.0), ANY, 1.0, Err(Withheld::Gradient)),
            // A norm whose square f32 does not hold, unless it is clipped.
            (3.0, 2.0, 0.0, Some(4e38), ANY, inf, Err(Withheld::Gradient)),
            (3.0, 2.0, 0.0, Some(4e38), ANY, 1.0, Ok(1.0 / (2e19 + 1e-6))),
            (3.0, 2.0, 0.0, Some(3.24e38), ANY, inf, Ok(1.0)),
        ];
        for bad in [f64::NAN, inf, -inf] {
            cases.push((bad, 2.0, 0.0, Some(1.0), 1.0, 1.0, Err(Withheld::Loss)));
            cases.push((bad, 2.0, 0.0, Some(bad), -inf, 1.0, Err(Withheld::LeftOut)));
        }
        for bad in [f64::NAN, inf] {
            // The gradient decides before the limit.
            for limit in [ANY, 1.25] {
                cases.push((3.0, 2.0, 0.0, Some(bad), limit, 1.0, Err(Withheld::Gradient)));
            }
            cases.push((0.0, 0.0, 3.0, Some(inf), ANY, bad, Err(Withheld::Gradient)));
        }
        cases
    }

    /// A weight of 0 with a gradient of 1 after a step of SGD at a rate of 1: the negative factor of the gradient.
    fn stepped(inputs: &Inputs, device: Device) -> f64 {
        let (mut weight, gradient) =
            (Tensor::zeros(&[1], DType::F64, device).unwrap(), tensor(&[1.0f64], &[1], device));
        let tensors = OptimizerTensors {
            master_weights: weight.view_mut(),
            grads: gradient.view(),
            state: [None, None],
            average: None,
            compute_weights: None,
            norms: None,
        };
        let params = OptimizerParams::default();
        optimizer_step(OptimizerKind::Sgd, &params, tensors, Some(&inputs.view())).unwrap();
        weight.to_vec::<f64>().unwrap()[0]
    }

    /// A scaled loss has a larger gradient and the same decisions.
    #[test]
    fn host_and_devices_decide_alike() {
        for (loss, weight, expected_weight, squares, loss_limit, max_norm, want) in cases() {
            for loss_scale in [1.0, 1024.0] {
                let sums = LossSums { loss, weight };
                let sum_of_squares = squares.map(|squares| squares * loss_scale * loss_scale);
                let unscale = 1.0 / loss_scale;
                let scalars = StepScalars { expected_weight, unscale, loss_limit, ..StepScalars::default() };
                let numbers = StepNumbers { scalars, sums, sum_of_squares };
                let got = numbers.withheld(max_norm).map_or_else(|| Ok(numbers.grad_scale(max_norm)), Err);
                let want = want.map(|scale| scale * unscale);
                assert_eq!(got, want, "{numbers:?}, clipped to {max_norm}");
                for device in devices() {
                    let clip = sum_of_squares.map(|squares| (squares, max_norm));
                    let inputs = Inputs::new(1.0, 1, (expected_weight, unscale), sums, clip, device);
                    let got = stepped(&inputs.with_loss_limit(loss_limit), device);
                    assert_eq!(got, -want.unwrap_or(0.0), "{numbers:?}, clipped to {max_norm}, on {device}");
                }
            }
        }
    }
}
