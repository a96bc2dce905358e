//! The optimiser: one fused update of the flat buffers, or of a range of them, followed by the moving average of the weights.

use std::ops::Range;

use ddp_kernels::ops::{self, Average, OptimizerParams, OptimizerTensors, UpdateInputs};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorMut, TensorRef};

use super::param_groups::{ParamGroups, Segment};
use crate::config::OptimizerConfig;
use crate::model::Network;
use crate::optim::error::Result;

/// The optimiser with its state, for all weights or for the shards that this rank updates.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    groups: ParamGroups,
    /// State tensors, by name.
    state: Vec<(&'static str, Tensor)>,
    /// Moving average of the weights, where one is kept.
    ema: Option<Tensor>,
    /// The learning rate of the next step.
    lr: f64,
    /// Steps taken.
    n_steps: u64,
}

/// Source of the factor that a step applies to the gradient.
#[derive(Debug, Clone, Copy)]
pub enum UpdateScale<'a> {
    /// The host knows it.
    Host(f64),
    /// The device computes it, and holds learning rate and step too.
    Device(&'a UpdateInputs<'a>),
}

impl Optimizer {
    /// Creates the optimiser of `config` before its first step.
    ///
    /// - `groups`: the settings of each range of the flat buffers
    /// - `state_len`: elements (f32) of each tensor of state: as many as all weights, or as this rank's shards
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`], [`KernelError::DeviceUnavailable`].
    pub fn new(
        config: &OptimizerConfig,
        groups: ParamGroups,
        state_len: usize,
        device: Device,
    ) -> Result<Self, KernelError> {
        let zeros = |kind| Tensor::zeros_for(kind, &[state_len], DType::F32, device);
        let names = config.kind.state_names(&config.params());
        let state = names.iter().map(|name| Ok((*name, zeros(MemoryUse::Optimizer)?)));
        let state = state.collect::<Result<_, KernelError>>()?;
        let ema = (config.ema_decay > 0.0).then(|| zeros(MemoryUse::Average)).transpose()?;
        Ok(Optimizer { config: config.clone(), groups, state, ema, lr: config.lr, n_steps: 0 })
    }

    /// [`OptimizerParams::beta_powers`] in step `step`.
    pub(crate) fn beta_powers(&self, step: u64) -> [f64; 2] {
        self.config.params().beta_powers(step)
    }

    /// State tensors of the optimiser of `config`, without the averaged weights.
    pub fn n_moments(config: &OptimizerConfig) -> usize {
        config.kind.state_names(&config.params()).len()
    }

    /// Creates the optimiser of `config` for all weights of `model`, before its first step.
    ///
    /// # Errors
    /// See [`ParamGroups::new`] and [`Optimizer::new`].
    pub fn for_model(config: &OptimizerConfig, model: &Network) -> Result<Self> {
        let layout = model.layout();
        Ok(Self::new(config, ParamGroups::new(config, layout)?, layout.flat_len(), model.device())?)
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.lr
    }

    /// Sets the learning rate of the next step. A step with [`UpdateScale::Device`] reads the rate from the device instead.
    pub fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    /// Steps begun so far.
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// Sets the number of steps, after state was restored or a step was skipped.
    pub fn set_n_steps(&mut self, n_steps: u64) {
        self.n_steps = n_steps;
    }

    /// Begins the next step, which [`Optimizer::step_on`] then applies range by range.
    pub fn begin_step(&mut self) {
        self.n_steps += 1;
    }

    /// State tensors by name, each of `state_len` elements, such as `m` and `v`; then `ema`.
    pub fn state(&self) -> Vec<(&'static str, &Tensor)> {
        let mut state: Vec<_> = self.state.iter().map(|(name, tensor)| (*name, tensor)).collect();
        state.extend(self.ema.iter().map(|ema| ("ema", ema)));
        state
    }

    /// Mutable [`Optimizer::state`].
    pub fn state_mut(&mut self) -> Vec<(&'static str, &mut Tensor)> {
        let mut state: Vec<_> = self.state.iter_mut().map(|(name, tensor)| (*name, tensor)).collect();
        state.extend(self.ema.iter_mut().map(|ema| ("ema", ema)));
        state
    }

    /// The moving average of the weights, where one is kept: of `state_len` elements, zeros before the first step.
    pub fn ema(&self) -> Option<&Tensor> {
        self.ema.as_ref()
    }

    /// Mutable [`Optimizer::ema`].
    pub fn ema_mut(&mut self) -> Option<&mut Tensor> {
        self.ema.as_mut()
    }

    /// Applies the current step to a range of the flat buffers; see [`Optimizer::step_on_slice`].
    ///
    /// - `weights`: all master weights, and the compute weights, if they differ
    ///
    /// # Errors
    /// See [`Optimizer::step_on_slice`].
    pub fn step_on(
        &mut self,
        (weights, compute_weights): (&mut Tensor, Option<&mut Tensor>),
        grads: TensorRef<'_>,
        scale: UpdateScale<'_>,
        range: Range<usize>,
        state_start: usize,
    ) -> Result<(), KernelError> {
        let copy = compute_weights.map(|copy| slice(copy.view_mut(), &range)).transpose()?;
        self.step_on_slice((slice(weights.view_mut(), &range)?, copy), grads, scale, range, state_start)
    }

    /// Applies the current step to slices of the flat buffers.
    ///
    /// - `weights`: master weights of `range`, and its compute weights, if they differ
    /// - `grads`: gradients of exactly `range`
    /// - `state_start`: start of the state of `range` in the state tensors
    ///
    /// On a GPU one launch per segment of the groups within the range, which moves the average too.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if `grads` is not as long as `range`.
    pub fn step_on_slice(
        &mut self,
        (mut weights, mut compute_weights): (TensorMut<'_>, Option<TensorMut<'_>>),
        grads: TensorRef<'_>,
        scale: UpdateScale<'_>,
        range: Range<usize>,
        state_start: usize,
    ) -> Result<(), KernelError> {
        let (grad_scale, inputs) = match scale {
            UpdateScale::Host(grad_scale) => (grad_scale, None),
            UpdateScale::Device(inputs) => (1.0, Some(inputs)),
        };
        for (part, Segment { lr_scale, weight_decay, .. }) in self.groups.within(range.clone()) {
            let at = part.start - range.start..part.end - range.start;
            // A whole range keeps its gradients as they are: the operation rejects a wrong length.
            let is_whole = at == (0..range.len());
            let state_range = state_start + at.start..state_start + at.end;
            let mut state = self.state.iter_mut().map(|(_, tensor)| slice(tensor.view_mut(), &state_range));
            let mut state = || state.next().transpose();
            let (decay, step) = (self.config.ema_decay, self.n_steps);
            let average = self.ema.as_mut().map(|ema| {
                Ok::<_, KernelError>(Average { ema: slice(ema.view_mut(), &state_range)?, decay, step })
            });
            let tensors = OptimizerTensors {
                master_weights: slice(weights.reborrow(), &at)?,
                grads: if is_whole { grads } else { grads.range(at.start, at.end)? },
                state: [state()?, state()?],
                average: average.transpose()?,
                compute_weights: compute_weights
                    .as_mut()
                    .map(|copy| slice(copy.reborrow(), &at))
                    .transpose()?,
            };
            let params = OptimizerParams {
                lr: self.lr,
                lr_scale,
                weight_decay,
                step,
                grad_scale,
                ..self.config.params()
            };
            ops::optimizer_step(self.config.kind, &params, tensors, inputs)?;
        }
        Ok(())
    }
}

fn slice<'a>(tensor: TensorMut<'a>, range: &Range<usize>) -> Result<TensorMut<'a>, KernelError> {
    tensor.range(range.start, range.end)
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;

    use super::*;
    use crate::config::precision::Precision;
    use crate::config::{OptimizerKind, ParamGroup};
    use crate::model::ModelSpec;

    fn model() -> Network {
        let spec = ModelSpec { layer_norm: true, ..ModelSpec::plain(&[3, 20, 2], Activation::Relu) };
        let mut model = Network::new(spec, 1, Device::Cpu, Precision::F32).unwrap();
        model.initialize(1).unwrap();
        model
    }

    fn config(kind: OptimizerKind) -> OptimizerConfig {
        let group = |pattern: &str, lr_scale, weight_decay| ParamGroup {
            pattern: pattern.to_owned(),
            lr_scale,
            weight_decay,
        };
        OptimizerConfig {
            groups: vec![group("layers.0.*", 0.5, Some(0.3)), group("*.bias", 2.0, None)],
            decay_bias_norm: false,
            weight_decay: 0.1,
            ema_decay: 0.9,
            ..OptimizerConfig::new(kind, 0.1)
        }
    }

    fn bits(tensor: &Tensor) -> Vec<u32> {
        tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    }

    /// Weights and the tensors of state after three steps over ranges that end there.
    fn stepped(config: &OptimizerConfig, ends: &[usize]) -> Vec<Vec<u32>> {
        let mut model = model();
        let mut optimizer = Optimizer::for_model(config, &model).unwrap();
        let grads = Tensor::from_slice(
            &(0..model.layout().flat_len()).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>(),
            &[model.layout().flat_len()],
            Device::Cpu,
        )
        .unwrap();
        for step in 0..3 {
            optimizer.set_lr(0.1 / f64::from(step + 1));
            optimizer.begin_step();
            let mut start = 0;
            for &end in ends {
                let own = grads.view().range(start, end).unwrap();
                let scale = UpdateScale::Host(0.5);
                optimizer.step_on(model.weights_mut(), own, scale, start..end, start).unwrap();
                start = end;
            }
        }
        let mut all = vec![bits(model.weights())];
        all.extend(optimizer.state().into_iter().map(|(_, tensor)| bits(tensor)));
        all
    }

    #[test]
    fn updates_by_range_equal_one_update_of_the_whole() {
        for kind in [OptimizerKind::Sgd, OptimizerKind::Adam, OptimizerKind::AdamW] {
            let n = model().layout().flat_len();
            // Cut within segments and at their ends.
            let cuts = [1, 16, 50, n];
            assert_eq!(stepped(&config(kind), &cuts), stepped(&config(kind), &[n]), "{kind}");
        }
    }

    #[test]
    fn a_part_of_the_state_serves_a_part_of_the_weights() {
        for kind in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
            let config = config(kind);
            let (mut whole, mut part) = (model(), model());
            let layout = whole.layout().clone();
            let own = 17..layout.flat_len() - 5;
            let grads = Tensor::full(&[layout.flat_len()], 0.25, DType::F32, Device::Cpu).unwrap();
            let mut all = Optimizer::for_model(&config, &whole).unwrap();
            // Two elements in front belong to another range.
            let groups = ParamGroups::new(&config, &layout).unwrap();
            let mut some = Optimizer::new(&config, groups, own.len() + 2, Device::Cpu).unwrap();
            for _ in 0..2 {
                all.begin_step();
                some.begin_step();
                let scale = UpdateScale::Host(1.0);
                all.step_on(whole.weights_mut(), grads.view(), scale, 0..layout.flat_len(), 0).unwrap();
                let own_grads = grads.view().range(own.start, own.end).unwrap();
                some.step_on(part.weights_mut(), own_grads, scale, own.clone(), 2).unwrap();
            }
            assert_eq!(bits(whole.weights())[own.clone()], bits(part.weights())[own.clone()]);
            assert_eq!(bits(part.weights())[..own.start], bits(model().weights())[..own.start]);
            for ((name, all), (same, some)) in all.state().into_iter().zip(some.state()) {
                assert_eq!(name, same);
                assert_eq!(bits(all)[own.clone()], bits(some)[2..], "{name}");
            }
        }
    }

    #[test]
    fn state_has_names_and_a_frozen_group_stays() {
        let names = |config: &OptimizerConfig| -> Vec<_> {
            let optimizer = Optimizer::for_model(config, &model()).unwrap();
            assert_eq!(
                optimizer.state().len(),
                Optimizer::n_moments(config) + usize::from(config.ema_decay > 0.0)
            );
            optimizer.state().into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&config(OptimizerKind::AdamW)), ["m", "v", "ema"]);
        assert_eq!(names(&OptimizerConfig::new(OptimizerKind::Sgd, 0.1)), ["velocity"]);
        let still = OptimizerConfig { momentum: 0.0, ..OptimizerConfig::new(OptimizerKind::Sgd, 0.1) };
        assert_eq!(names(&still), [""; 0]);

        let mut frozen = config(OptimizerKind::AdamW);
        frozen.groups[0].lr_scale = 0.0;
        let n = model().layout().flat_len();
        let (before, after) = (bits(model().weights()), stepped(&frozen, &[n]).swap_remove(0));
        for slot in model().layout().slots() {
            let is_same = before[slot.range()] == after[slot.range()];
            assert_eq!(is_same, slot.name.starts_with("layers.0."), "{}", slot.name);
        }
    }
}
