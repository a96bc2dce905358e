//! The optimisers: their names, hyper-parameters and state, and one step of any of them.
//!
//! An optimiser is two files, its formula for the CPU and for GPUs, and its lines in this one.

mod adam;
mod lion;
mod sgd;
#[cfg(test)]
mod tests;

use std::fmt;

use self::adam::Adam;
use self::lion::Lion;
use self::sgd::Sgd;
use super::{Average, MAX_STATE, StepScalars, Tensors, Update as _, UpdateInputs, run};
use crate::cuda::launch::Source;
use crate::{Result, TensorMut, TensorRef};

/// The kernels of all optimisers.
pub(crate) static SOURCES: [&Source; 3] = [&adam::SOURCE, &lion::SOURCE, &sgd::SOURCE];

/// Update rule of an optimiser; semantics of PyTorch where it has the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Adam (arXiv:1412.6980).
    Adam,
    /// Adam with decoupled weight decay (arXiv:1711.05101).
    AdamW,
    /// Steps by the sign of a momentum (arXiv:2302.06675).
    Lion,
}

impl OptimizerKind {
    /// All optimisers.
    pub const ALL: &'static [OptimizerKind] =
        &[OptimizerKind::Sgd, OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Lion];

    /// Their names, in the same order.
    pub const NAMES: &'static [&'static str] = &["sgd", "adam", "adamw", "lion"];

    /// The name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// PyTorch's default: only AdamW decays weights. Lion's reference implementation decays none.
    pub fn default_weight_decay(self) -> f64 {
        if self == OptimizerKind::AdamW { 0.01 } else { 0.0 }
    }

    /// Default decay rates of the moments: PyTorch's, for Lion those of its paper.
    pub fn default_betas(self) -> [f64; 2] {
        if self == OptimizerKind::Lion { [0.9, 0.99] } else { [0.9, 0.999] }
    }

    /// Default learning rate. Lion's steps have one size for all weights, so its paper takes a rate 3 to 10 times lower than Adam's.
    pub fn default_lr(self) -> f64 {
        if self == OptimizerKind::Lion { 1e-4 } else { 1e-3 }
    }

    /// Names of the state tensors; all start as zeros.
    pub fn state_names(self, params: &OptimizerParams) -> &'static [&'static str] {
        match self {
            OptimizerKind::Sgd if params.momentum == 0.0 => &[],
            OptimizerKind::Sgd => &Sgd::STATE,
            OptimizerKind::Adam | OptimizerKind::AdamW => &Adam::STATE,
            OptimizerKind::Lion => &Lion::STATE,
        }
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Hyper-parameters of one step; an optimiser ignores those that it does not use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerParams {
    /// Learning rate. Unused, like `step` and `grad_scale`, if the step gets [`UpdateInputs`].
    pub lr: f64,
    /// Factor of the learning rate, also of one from [`UpdateInputs`].
    pub lr_scale: f64,
    /// Decay rates of the first and second moment (Adam, AdamW), or of the momentum as it steps and as it is kept (Lion).
    pub betas: [f64; 2],
    /// Added to the square root of the second moment (Adam, AdamW).
    pub eps: f64,
    /// Fraction of the velocity that is kept; 0: no momentum (SGD).
    pub momentum: f64,
    /// Nesterov momentum (SGD).
    pub nesterov: bool,
    /// Weight decay: L2 for SGD and Adam, decoupled for AdamW and Lion.
    pub weight_decay: f64,
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

    /// The same with the numbers of a step that are read from [`UpdateInputs`].
    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        OptimizerParams { lr: scalars.lr, step: scalars.step, grad_scale, ..self }
    }
}

/// The tensors of an optimiser's step on a flat range of parameters, all of one shape.
#[derive(Debug)]
pub struct OptimizerTensors<'a> {
    /// f32 or f64; updated in place.
    pub master_weights: TensorMut<'a>,
    /// Of the same dtype, or bf16 for f32.
    pub grads: TensorRef<'a>,
    /// Of the same dtype: as many as [`OptimizerKind::state_names`], then `None`; updated in place.
    pub state: [Option<TensorMut<'a>>; MAX_STATE],
    /// Moving average of the weights, moved towards the new ones.
    pub average: Option<Average<'a>>,
    /// bf16 or f16: receives the new weights rounded to nearest, ties to even.
    pub compute_weights: Option<TensorMut<'a>>,
}

/// One step on a flat range of parameters, in place; the formula of each optimiser stands in its file.
///
/// With `inputs`, learning rate and step number (on a GPU [`StepScalars::beta_powers`]) are read from their scalars, and the gradient's
/// factor from their sums and norm; if they withhold the update, nothing is written, neither the average.
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`],
/// [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
pub fn optimizer_step(
    kind: OptimizerKind,
    params: &OptimizerParams,
    tensors: OptimizerTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let OptimizerTensors { master_weights: target, grads: source, state, average, compute_weights } = tensors;
    let params = *params;
    let [first, second] = state;
    match kind {
        OptimizerKind::Sgd => {
            run(Sgd(params), Tensors { target, source, state: [first], average, compute_weights }, inputs)
        }
        OptimizerKind::Adam | OptimizerKind::AdamW => {
            let update = Adam { params, is_decay_coupled: kind == OptimizerKind::Adam };
            run(update, Tensors { target, source, state: [first, second], average, compute_weights }, inputs)
        }
        OptimizerKind::Lion => {
            run(Lion(params), Tensors { target, source, state: [first], average, compute_weights }, inputs)
        }
    }
}
