//! Stochastic gradient descent with momentum.

mod cpu;

use super::check;
use crate::{Result, TensorMut, TensorRef};

/// Hyper-parameters of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// Learning rate.
    pub lr: f64,
    /// Share of the velocity that is kept; 0 is plain descent.
    pub momentum: f64,
    /// Nesterov's form: the step looks ahead along the velocity.
    pub nesterov: bool,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
    /// The gradient is multiplied by this first (clipping, or what remains of a mean).
    pub grad_scale: f64,
}

/// One step on a flat range of parameters, in place.
///
/// `g = grad_scale·grad + weight_decay·w`, `v = momentum·v + g`, `w -= lr·(nesterov ? g + momentum·v : v)`
///
/// - `weights`, `grads`, `velocity`: one shape; the velocity starts as zeros; not needed where momentum is 0
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: `torch.optim.SGD` with dampening 0.
pub fn sgd_step(
    config: &SgdConfig,
    weights: TensorMut<'_>,
    grads: TensorRef<'_>,
    velocity: Option<TensorMut<'_>>,
) -> Result<()> {
    const OP: &str = "sgd_step";
    let (weights_op, grads_op) = (weights.operand("weights"), grads.operand("grads"));
    check::same_kind(OP, &[weights_op, grads_op])?;
    check::shape(OP, grads_op, weights.shape())?;
    if let Some(velocity) = &velocity {
        check::same_kind(OP, &[weights_op, velocity.operand("velocity")])?;
        check::shape(OP, velocity.operand("velocity"), weights.shape())?;
    }
    check::float_dispatch!(OP, weights_op, T => {
        let velocity = velocity.map(|v| v.into_slice::<T>(OP, "velocity")).transpose()?;
        cpu::step::<T>(config, weights.into_slice(OP, "weights")?, grads.as_slice(OP, "grads")?, velocity);
        Ok(())
    })
}
