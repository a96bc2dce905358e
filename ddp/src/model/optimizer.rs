//! The optimiser: one pass over the flat buffers.

use std::ops::Range;

use ddp_kernels::ops::{self, AdamConfig, AdamState, SgdConfig, UpdateInputs, WeightDecay};
use ddp_kernels::{KernelError, MemoryUse, Tensor, TensorMut, TensorRef};

use crate::config::{OptimizerConfig, OptimizerKind};

/// The optimiser with its state.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    /// Velocity, or the two moments, each as long as the weights.
    state: State,
    /// Steps taken.
    n_steps: u64,
}

/// Where a step's factor of the gradient comes from.
#[derive(Debug, Clone, Copy)]
pub enum UpdateScale<'a> {
    /// The host knows it.
    Host(f64),
    /// The device computes it, and has learning rate and step too.
    Device(&'a UpdateInputs<'a>),
}

#[derive(Debug)]
enum State {
    Sgd { velocity: Option<Tensor> },
    Adam { m: Tensor, v: Tensor },
}

impl Optimizer {
    /// The optimiser of `config` for these weights, before its first step.
    ///
    /// # Errors
    /// As making tensors like the weights.
    pub fn new(config: &OptimizerConfig, weights: &Tensor) -> Result<Self, KernelError> {
        let zeros = || {
            let (dims, dtype) = (weights.shape(), weights.dtype());
            Tensor::zeros_for(MemoryUse::Optimizer, dims.dims(), dtype, weights.device())
        };
        let state = match config.kind {
            OptimizerKind::Sgd => {
                State::Sgd { velocity: if config.momentum > 0.0 { Some(zeros()?) } else { None } }
            }
            OptimizerKind::Adam | OptimizerKind::AdamW => State::Adam { m: zeros()?, v: zeros()? },
        };
        Ok(Optimizer { config: config.clone(), state, n_steps: 0 })
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.config.lr
    }

    /// Begins the next step, which [`Optimizer::step_on`] then takes range by range.
    pub fn begin_step(&mut self) {
        self.n_steps += 1;
    }

    /// The step that was begun, on this range of the flat buffers.
    ///
    /// - `weights`: the weights, and the copy of them that must be kept alike, where there is one
    ///
    /// # Errors
    /// Those of the optimiser's operation.
    pub fn step_on(
        &mut self,
        (weights, working_copy): (&mut Tensor, Option<&mut Tensor>),
        grads: TensorRef<'_>,
        scale: UpdateScale<'_>,
        range: Range<usize>,
    ) -> Result<(), KernelError> {
        let c = &self.config;
        let part = |tensor| TensorMut::range(tensor, range.start, range.end);
        let (weights, grads) = (part(weights.view_mut())?, grads.range(range.start, range.end)?);
        let working_copy = working_copy.map(|copy| part(copy.view_mut())).transpose()?;
        let (grad_scale, inputs) = match scale {
            UpdateScale::Host(grad_scale) => (grad_scale, None),
            UpdateScale::Device(inputs) => (1.0, Some(inputs)),
        };
        match &mut self.state {
            State::Sgd { velocity } => {
                let config = SgdConfig {
                    lr: c.lr,
                    momentum: c.momentum,
                    nesterov: c.nesterov,
                    weight_decay: c.weight_decay,
                    grad_scale,
                };
                let velocity = velocity.as_mut().map(|v| part(v.view_mut())).transpose()?;
                ops::sgd_step(&config, weights, grads, velocity, working_copy, inputs)
            }
            State::Adam { m, v } => {
                let config = AdamConfig {
                    lr: c.lr,
                    betas: c.betas,
                    eps: c.eps,
                    weight_decay: c.weight_decay,
                    decay: match c.kind {
                        OptimizerKind::AdamW => WeightDecay::Decoupled,
                        OptimizerKind::Adam | OptimizerKind::Sgd => WeightDecay::Coupled,
                    },
                    step: self.n_steps,
                    grad_scale,
                };
                let state = AdamState { m: part(m.view_mut())?, v: part(v.view_mut())? };
                ops::adam_step(&config, weights, grads, state, working_copy, inputs)
            }
        }
    }
}
