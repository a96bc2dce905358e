//! The optimisers: their names, hyper-parameters and state, and one step of any of them.
//!
//! An optimiser is two files, its formula for the CPU and for GPUs, and its lines in this one. One whose step depends on whole
//! parameters has two passes, and between them their caller completes norms, directions or second moments over the ranks: it asks for
//! [`WholeNeed`], never for the name of an optimiser.

mod adafactor;
mod adam;
mod lamb;
mod lion;
mod moments;
mod momentum;
mod muon;
mod sgd;
#[cfg(test)]
mod tests;

use std::fmt;

use self::adafactor::Adafactor;
pub use self::adafactor::{
    AdafactorFactors, FactoredShape, adafactor_factors, adafactor_norm, adafactor_sums,
};
use self::adam::Adam;
use self::lamb::{Lamb, Sums};
use self::lion::Lion;
use self::moments::Moments;
use self::momentum::Momentum;
use self::muon::Muon;
use self::sgd::Sgd;
use super::{Average, MAX_STATE, StepScalars, Tensors, Update as _, UpdateInputs, run};
use crate::cuda::launch::Source;
use crate::ops::{check, sum_of_squares};
use crate::{DType, Operand, Result, Shape, TensorMut, TensorRef};

/// The kernels of all optimisers.
pub(crate) static SOURCES: [&Source; 8] = [
    &adafactor::SOURCE,
    &adam::SOURCE,
    &lamb::SOURCE,
    &lion::SOURCE,
    &moments::SOURCE,
    &momentum::SOURCE,
    &muon::SOURCE,
    &sgd::SOURCE,
];

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
    /// Adam's direction in steps of a length relative to each parameter's norm (arXiv:1904.00962).
    Lamb,
    /// Steps by the orthogonalised momentum of a matrix.
    Muon,
    /// Second moments of matrices as one number per row and per column, steps relative to each parameter's size (arXiv:1804.04235).
    Adafactor,
}

impl OptimizerKind {
    /// All optimisers.
    pub const ALL: &'static [OptimizerKind] = &[
        OptimizerKind::Sgd,
        OptimizerKind::Adam,
        OptimizerKind::AdamW,
        OptimizerKind::Lion,
        OptimizerKind::Lamb,
        OptimizerKind::Muon,
        OptimizerKind::Adafactor,
    ];

    /// Their names, in the same order.
    pub const NAMES: &'static [&'static str] = &["sgd", "adam", "adamw", "lion", "lamb", "muon", "adafactor"];

    /// The name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// PyTorch's default, for LAMB that of its paper. Lion's reference implementation decays none.
    pub fn default_weight_decay(self) -> f64 {
        match self {
            OptimizerKind::AdamW | OptimizerKind::Lamb => 0.01,
            OptimizerKind::Muon => 0.1,
            OptimizerKind::Sgd | OptimizerKind::Adam | OptimizerKind::Lion | OptimizerKind::Adafactor => 0.0,
        }
    }

    /// Default of [`OptimizerParams::eps`]: PyTorch's, for LAMB that of its paper.
    pub fn default_eps(self) -> f64 {
        match self {
            OptimizerKind::Lamb => 1e-6,
            OptimizerKind::Adafactor => f64::from(f32::EPSILON),
            _ => 1e-8,
        }
    }

    /// Whether a step has passes before [`optimizer_step`], which then reads what the caller completed over whole parameters: norms for
    /// LAMB, orthogonal directions for Muon ([`optimizer_first_pass`]), factors of second moments for Adafactor ([`adafactor_sums`]).
    pub fn has_first_pass(self) -> bool {
        self.whole_need().is_some()
    }

    /// Returns the need of a step for numbers of whole parameters.
    pub fn whole_need(self) -> Option<WholeNeed> {
        match self {
            OptimizerKind::Sgd | OptimizerKind::Adam | OptimizerKind::AdamW | OptimizerKind::Lion => None,
            OptimizerKind::Lamb => Some(WholeNeed::Norms),
            OptimizerKind::Muon => Some(WholeNeed::Directions),
            OptimizerKind::Adafactor => Some(WholeNeed::SecondMoments),
        }
    }

    /// Default of [`OptimizerParams::momentum`], for Muon PyTorch's.
    pub fn default_momentum(self) -> f64 {
        if self == OptimizerKind::Muon { 0.95 } else { 0.9 }
    }

    /// Default of [`OptimizerParams::nesterov`]: PyTorch's.
    pub fn default_nesterov(self) -> bool {
        self == OptimizerKind::Muon
    }

    /// Default decay rates of the moments: PyTorch's, for Lion those of its paper.
    pub fn default_betas(self) -> [f64; 2] {
        if self == OptimizerKind::Lion { [0.9, 0.99] } else { [0.9, 0.999] }
    }

    /// Default learning rate. Lion's steps have one size for all weights, so its paper takes a rate 3 to 10 times lower than Adam's;
    /// Muon's is that of its author.
    pub fn default_lr(self) -> f64 {
        match self {
            OptimizerKind::Lion => 1e-4,
            OptimizerKind::Muon => 0.02,
            OptimizerKind::Adafactor => 0.01,
            OptimizerKind::Sgd | OptimizerKind::Adam | OptimizerKind::AdamW | OptimizerKind::Lamb => 1e-3,
        }
    }

    /// Names of the state tensors, which have an element per weight; all start as zeros. Adafactor has none of these.
    pub fn state_names(self, params: &OptimizerParams) -> &'static [&'static str] {
        match self {
            OptimizerKind::Sgd if params.momentum == 0.0 => &[],
            OptimizerKind::Sgd => &Sgd::STATE,
            OptimizerKind::Adam | OptimizerKind::AdamW => &Adam::STATE,
            OptimizerKind::Lion => &Lion::STATE,
            // LAMB's moments; Muon's momentum and the direction of the last step.
            OptimizerKind::Lamb | OptimizerKind::Muon => &Adam::STATE,
            OptimizerKind::Adafactor => &[],
        }
    }
}

/// Numbers of whole parameters that a step needs; its caller completes them between the two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WholeNeed {
    /// Norms of the weights and of the direction of each parameter ([`optimizer_first_pass`]).
    Norms,
    /// Orthogonal directions of hidden matrices ([`crate::ops::orthogonalize`]); AdamW updates the other parameters.
    Directions,
    /// Second moments by row and column of each parameter ([`adafactor_sums`]).
    SecondMoments,
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
    /// Decay rates of the first and second moment (Adam, AdamW, LAMB), or of the momentum as it steps and as it is kept (Lion).
    pub betas: [f64; 2],
    /// Added to the square root of the second moment (Adam, AdamW, LAMB), or its least value (Adafactor).
    pub eps: f64,
    /// Least root mean square of a parameter to which a step is relative (Adafactor).
    pub eps2: f64,
    /// The second moment takes the share `step^beta2_decay` of the new squares (Adafactor), not positive.
    pub beta2_decay: f64,
    /// Largest root mean square of a parameter's direction, at least 1 (Adafactor).
    pub clip_threshold: f64,
    /// Fraction of the velocity or momentum that is kept; 0: no momentum (SGD, Muon).
    pub momentum: f64,
    /// Nesterov momentum (SGD, Muon).
    pub nesterov: bool,
    /// Weight decay: L2 for SGD and Adam, decoupled for AdamW, Lion, Muon and Adafactor, part of the direction for LAMB.
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
            eps2: 1e-3,
            beta2_decay: -0.8,
            clip_threshold: 1.0,
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
    /// Numbers of the whole parameter, from the first pass.
    pub whole: Option<WholeNumbers<'a>>,
}

/// Numbers of a whole parameter that the step on a range of it reads.
#[derive(Debug, Clone, Copy)]
pub enum WholeNumbers<'a> {
    /// Norms from [`optimizer_first_pass`], `[2]` f64; without them the trust ratio is 1.
    Norms(TensorRef<'a>),
    /// Factors of the second moments and the norm of the direction, without which Adafactor takes no step.
    Adafactor(AdafactorFactors<'a>),
}

/// The tensors of the first pass on a flat range of parameters, all of one shape and dtype.
#[derive(Debug)]
pub struct FirstPassTensors<'a> {
    /// f32 or f64.
    pub master_weights: TensorRef<'a>,
    /// Of the same dtype, or bf16 for f32.
    pub grads: TensorRef<'a>,
    /// One buffer per name of [`OptimizerKind::state_names`]; updated in place.
    pub state: [TensorMut<'a>; MAX_STATE],
    /// LAMB: receives `[Σw², Σu²]` of the weights and of the direction, f64; their squares' roots are the norms.
    pub norms: Option<TensorMut<'a>>,
    /// Whether these sums are added to what is there.
    pub accumulate: bool,
}

/// The first of two passes ([`OptimizerKind::has_first_pass`]) on a flat range of parameters.
///
/// - LAMB moves both moments and sums the squares of its weights and of its direction. The caller adds the sums of all ranges of a
///   parameter, and passes them to [`optimizer_step`].
/// - Muon moves the momentum in `m` and writes the direction to `v`. The caller makes each whole matrix of directions orthogonal
///   ([`crate::ops::orthogonalize`]).
///
/// `params` and `inputs` as in [`optimizer_step`]; a step that is withheld moves no moment and no momentum. Other optimisers do nothing.
///
/// Asynchronous on a GPU's compute stream; allocates nothing and can be captured.
///
/// # Errors
/// Same as [`optimizer_step`].
pub fn optimizer_first_pass(
    kind: OptimizerKind,
    params: &OptimizerParams,
    tensors: FirstPassTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let FirstPassTensors { master_weights, grads: source, state: [mut m, mut v], norms, accumulate } =
        tensors;
    let (weights_op, m_op) = (master_weights.operand("master_weights"), m.operand("m"));
    check::same_kind(Moments::OP, &[m_op, weights_op])?;
    check::shape(Moments::OP, weights_op, m.shape())?;
    let tensors = Tensors {
        target: m.reborrow(),
        source,
        state: [Some(v.reborrow())],
        average: None,
        compute_weights: None,
    };
    match kind {
        OptimizerKind::Lamb => run(Moments(*params), tensors, inputs)?,
        OptimizerKind::Muon => return run(Momentum(*params), tensors, inputs),
        _ => return Ok(()),
    }
    let Some(norms) = norms else { return Ok(()) };
    check_norms(weights_op, norms.operand("norms"))?;
    let (of_weights, of_direction) = norms.split_at(1)?;
    sum_of_squares(master_weights, of_weights, accumulate)?;
    let (m, v) = (m.as_ref(), v.as_ref());
    lamb::sum_direction(params, master_weights, m, v, inputs, of_direction, accumulate)
}

fn check_norms(weights: Operand, norms: Operand) -> Result<()> {
    check::same_device(Lamb::OP, &[weights, norms])?;
    check::dtype(Lamb::OP, norms, &[DType::F64], "f64")?;
    check::shape(Lamb::OP, norms, Shape::vector(2))
}

/// One step on a flat range of parameters, in place; the formula of each optimiser stands in its file. Where there is a first pass
/// ([`OptimizerKind::has_first_pass`]), this is the second, which reads no gradients and changes no state.
///
/// With `inputs`, learning rate and step number (on a GPU [`StepScalars::beta_powers`]) are read from their scalars, and the gradient's
/// factor from their sums and norm; if they withhold the update, nothing is written, neither the average.
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`],
/// [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
///
/// # Panics
/// Adafactor, without [`WholeNumbers::Adafactor`].
pub fn optimizer_step(
    kind: OptimizerKind,
    params: &OptimizerParams,
    tensors: OptimizerTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let OptimizerTensors { master_weights: target, grads: source, state, average, compute_weights, whole } =
        tensors;
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
        OptimizerKind::Lamb => {
            let sums = match whole {
                Some(WholeNumbers::Norms(norms)) => {
                    check_norms(target.operand("master_weights"), norms.operand("norms"))?;
                    Sums::of(norms)?
                }
                _ => Sums::Host([0.0; 2]),
            };
            let m = first.as_ref().map_or(source, |m| m.as_ref());
            let tensors = Tensors { target, source: m, state: [second], average, compute_weights };
            run(Lamb { params, sums }, tensors, inputs)
        }
        OptimizerKind::Muon => {
            let direction = second.as_ref().map_or(source, |v| v.as_ref());
            run(
                Muon(params),
                Tensors { target, source: direction, state: [], average, compute_weights },
                inputs,
            )
        }
        OptimizerKind::Adafactor => {
            let Some(WholeNumbers::Adafactor(factors)) = whole else {
                panic!("adafactor's step needs the factors of the second moments");
            };
            let update = Adafactor::new(params, target.operand("master_weights"), factors)?;
            run(update, Tensors { target, source, state: [], average, compute_weights }, inputs)
        }
    }
}
