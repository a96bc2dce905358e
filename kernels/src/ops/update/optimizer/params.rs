//! Hyper-parameters of a step.

use super::super::{StepScalars, UpdateSegment};

/// Hyper-parameters of one step; an optimizer ignores those that it does not use.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub struct OptimizerParams {
    /// Learning rate. Unused, like `step` and `grad_scale`, if the step gets [`UpdateInputs`](crate::ops::UpdateInputs).
    pub lr: f64,
    /// Factor of the learning rate, also of one from [`UpdateInputs`](crate::ops::UpdateInputs).
    pub lr_scale: f64,
    /// Decay rates of the first and second moment (Adam, AdamW, LAMB), or of the momentum as it steps and as it is kept (Lion).
    pub betas: [f64; 2],
    /// Added to the square root of the second moment (Adam, AdamW, LAMB).
    pub eps: f64,
    /// Fraction of the velocity or momentum that is kept; 0: no momentum (SGD, Muon).
    pub momentum: f64,
    /// Nesterov momentum (SGD, Muon).
    pub nesterov: bool,
    /// Weight decay: L2 for SGD and Adam, decoupled for AdamW, Lion and Muon, part of the direction for LAMB.
    pub weight_decay: f64,
    /// Factor of the direction next to the learning rate, which does not act on the weight decay (Muon).
    pub direction_scale: f64,
    /// Number of this step, from 1.
    pub step: u64,
    /// Factor of the gradient (clipping, mean).
    pub grad_scale: f64,
}

impl Default for OptimizerParams {
    /// PyTorch's defaults, without momentum and weight decay, in step 1.
    fn default() -> Self {
        OptimizerParams {
            lr: 1e-3,
            lr_scale: 1.0,
            betas: [0.9, 0.999],
            eps: 1e-8,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            direction_scale: 1.0,
            step: 1,
            grad_scale: 1.0,
        }
    }
}

impl OptimizerParams {
    /// `β^step`: 1 minus Adam's bias corrections in this step.
    pub fn beta_powers(&self, step: u64) -> [f64; 2] {
        let exponent = i32::try_from(step).unwrap_or(i32::MAX);
        self.betas.map(|beta| beta.powi(exponent))
    }

    /// The same with the settings of a part of the range.
    pub(super) fn in_segment(self, segment: &UpdateSegment) -> Self {
        OptimizerParams { lr_scale: segment.lr_scale, weight_decay: segment.weight_decay, ..self }
    }

    /// The same with the numbers of a step that are read from [`UpdateInputs`](crate::ops::UpdateInputs).
    pub(super) fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        OptimizerParams { lr: scalars.lr, step: scalars.step, grad_scale, ..self }
    }
}
