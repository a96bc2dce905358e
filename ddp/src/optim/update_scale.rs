//! The factor that a step applies to the gradient, and the source of the step's scalars.

use ddp_kernels::TensorRef;
use ddp_kernels::ops::UpdateInputs;

/// Source of the factor that a step applies to the gradient.
#[derive(Debug, Clone, Copy)]
pub enum UpdateScale<'a> {
    /// The caller knows it.
    Host(f64),
    /// The update computes it from numbers of the step on its device, which hold learning rate and step too.
    Device(DeviceScale<'a>),
}

/// Numbers of a step on the device of the weights.
#[derive(Debug, Clone, Copy)]
pub struct DeviceScale<'a> {
    /// Hyperparameters of the run.
    pub inputs: &'a UpdateInputs<'a>,
    /// The scalars with the learning rate of each group's schedule, concatenated, `[n · STEP_SCALARS_LEN]` f64.
    pub group_scalars: Option<TensorRef<'a>>,
}
