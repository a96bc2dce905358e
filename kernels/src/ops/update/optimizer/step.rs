//! One step of any optimizer, in one pass or two.

use super::super::{Average, MAX_STATE, Tensors, Update, UpdateInputs, UpdateSegment, run};
use super::{OptimizerKind, OptimizerParams};
use crate::base::check;
use crate::{Result, TensorMut, TensorRef};

/// The tensors of an optimizer's step on a flat range of parameters, all of one shape.
#[derive(Debug)]
#[doc(hidden)]
pub struct OptimizerTensors<'a> {
    /// f32 or f64; updated in place.
    pub master_weights: TensorMut<'a>,
    /// Of the same dtype, or bf16 for f32.
    pub grads: TensorRef<'a>,
    /// Of the same dtype: as many as [`OptimizerKind::state_names`], then `None`; updated in place.
    pub state: [Option<TensorMut<'a>>; MAX_STATE],
    /// Moving average of the weights, moved toward the new ones.
    pub average: Option<Average<'a>>,
    /// bf16 or f16: receives the new weights rounded to nearest, ties to even.
    pub compute_weights: Option<TensorMut<'a>>,
    /// LAMB: norms of the whole parameter from [`optimizer_first_pass`], `[2]` f64; without them the trust ratio is 1.
    pub norms: Option<TensorRef<'a>>,
}

/// The tensors of the first pass on a flat range of parameters, all of one shape and dtype.
#[derive(Debug)]
#[doc(hidden)]
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
/// `params` and `inputs` as in [`optimizer_step`]; a step that is withheld moves no moment and no momentum. Other optimizers do nothing.
///
/// Asynchronous on a GPU's compute stream; allocates nothing and can be captured.
///
/// # Errors
/// Same as [`optimizer_step`].
#[doc(hidden)]
pub fn optimizer_first_pass(
    kind: OptimizerKind,
    params: &OptimizerParams,
    tensors: FirstPassTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    match kind.rule().first_pass {
        Some(first_pass) => first_pass(params, tensors, inputs),
        None => Ok(()),
    }
}

/// One step on a flat range of parameters, in place; the formula of each optimizer is in its file. Where there is a first pass
/// ([`OptimizerKind::has_first_pass`]), this is the second, which reads no gradients and changes no state.
///
/// With `inputs`, learning rate and step number (on a GPU [`beta_powers`](crate::ops::StepScalars::beta_powers)) are read from their scalars, and the gradient's
/// factor from their sums and norm; if they withhold the update, nothing is written, neither the average.
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`],
/// [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
#[doc(hidden)]
pub fn optimizer_step(
    kind: OptimizerKind,
    params: &OptimizerParams,
    tensors: OptimizerTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    (kind.rule().step)(params, &[], tensors, inputs)
}

/// Same as [`optimizer_step`], with settings of their own for consecutive parts of the range, whose bits are those of a step for each
/// of them.
///
/// - `segments`: at most [`MAX_SEGMENTS`](crate::ops::MAX_SEGMENTS), the last of which ends with the range
///
/// # Errors
/// See [`optimizer_step`]; [`crate::KernelError::Shape`] if the segments end elsewhere.
///
/// # Panics
/// For an optimizer that takes none ([`OptimizerKind::takes_segments`]), and for too many.
#[doc(hidden)]
pub fn optimizer_step_by_segment(
    kind: OptimizerKind,
    params: &OptimizerParams,
    segments: &[UpdateSegment],
    tensors: OptimizerTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    assert!(kind.takes_segments(), "{kind} depends on whole parameters");
    (kind.rule().step)(params, segments, tensors, inputs)
}

/// Runs an update of `m` by the gradients, with `v` as its state.
pub(super) fn update_first<U: Update<1>>(
    update: U,
    tensors: &mut FirstPassTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let FirstPassTensors { master_weights, grads: source, state: [m, v], .. } = tensors;
    let (weights_op, m_op) = (master_weights.operand("master_weights"), m.operand("m"));
    check::same_kind(U::OP, &[m_op, weights_op])?;
    check::shape(U::OP, weights_op, m.shape())?;
    let (target, state) = (m.reborrow(), [Some(v.reborrow())]);
    let tensors =
        Tensors { target, source: *source, state, average: None, compute_weights: None, segments: &[] };
    run(update, tensors, inputs)
}

/// The step of an update that is driven by the gradients and keeps all state of its optimizer.
#[inline(always)]
pub(super) fn by_gradients<U: Update<N>, const N: usize>(
    update: U,
    segments: &[UpdateSegment],
    tensors: OptimizerTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let OptimizerTensors {
        master_weights: target, grads: source, mut state, average, compute_weights, ..
    } = tensors;
    let state = std::array::from_fn(|i| state[i].take());
    run(update, Tensors { target, source, state, average, compute_weights, segments }, inputs)
}
