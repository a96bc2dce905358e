//! Adam and AdamW.

mod cpu;

use super::check;
use crate::{Result, TensorMut, TensorRef};

/// How weights decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDecay {
    /// As an L2 penalty in the gradient: Adam.
    Coupled,
    /// Directly, apart from the gradient: AdamW.
    Decoupled,
}

/// Hyper-parameters of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Learning rate.
    pub lr: f64,
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Its kind.
    pub decay: WeightDecay,
    /// Number of this step, from 1.
    pub step: u64,
    /// The gradient is multiplied by this first (clipping, or what remains of a mean).
    pub grad_scale: f64,
}

/// The moments, both starting as zeros.
#[derive(Debug)]
pub struct AdamState<'a> {
    /// First moment.
    pub m: TensorMut<'a>,
    /// Second moment.
    pub v: TensorMut<'a>,
}

/// One step on a flat range of parameters, in place.
///
/// `g = grad_scale·grad`; coupled decay: `g += wd·w`, decoupled: `w -= lr·wd·w`; then
/// `m = β1·m + (1-β1)·g`, `v = β2·v + (1-β2)·g²`, `w -= lr/c1 · m / (sqrt(v)/sqrt(c2) + eps)` with `ci = 1 - βi^step`
///
/// - `weights`, `grads`, `state.m`, `state.v`: one shape
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: arXiv:1412.6980, arXiv:1711.05101; `torch.optim.{Adam, AdamW}`.
pub fn adam_step(
    config: &AdamConfig,
    weights: TensorMut<'_>,
    grads: TensorRef<'_>,
    state: AdamState<'_>,
) -> Result<()> {
    const OP: &str = "adam_step";
    let AdamState { m, v } = state;
    let (weights_op, grads_op) = (weights.operand("weights"), grads.operand("grads"));
    let (m_op, v_op) = (m.operand("m"), v.operand("v"));
    check::same_kind(OP, &[weights_op, grads_op, m_op, v_op])?;
    for operand in [grads_op, m_op, v_op] {
        check::shape(OP, operand, weights.shape())?;
    }
    check::float_dispatch!(OP, weights_op, T => {
        cpu::step::<T>(
            config,
            weights.into_slice(OP, "weights")?,
            grads.as_slice(OP, "grads")?,
            m.into_slice(OP, "m")?,
            v.into_slice(OP, "v")?,
        );
        Ok(())
    })
}
