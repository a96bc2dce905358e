//! The optimizer: one fused update of the flat buffers, or of a range of them, followed by the moving average of the weights.
//!
//! LAMB and Muon have a first pass, after which norms or directions of whole parameters are completed (in exchange,
//! `whole_parameters.rs`), by the need that `kernels` states for the optimizer (`WholeNeed`).
//!
//! A skipped step changes neither weights nor state; the direction that Muon keeps between its passes is not state. ZeRO shards
//! the state.
//!
//! One step of SGD in a training loop without a trainer:
//!
//! ```
//! use ddp::nn::{Activation, ModelSpec, Network, Precision};
//! use ddp::optim::{Optimizer, OptimizerConfig, OptimizerKind, UpdateScale};
//! use ddp::prelude::*;
//! let mut model = Network::new(ModelSpec::plain(&[3, 2], Activation::Relu), 1, Device::Cpu, Precision::F32)?;
//! let (before, n) = (model.weights().to_vec::<f32>()?, model.layout().flat_len());
//! let sgd = OptimizerConfig { momentum: 0.0, weight_decay: 0.0, ..OptimizerConfig::new(OptimizerKind::Sgd, 0.1) };
//! let mut optimizer = Optimizer::for_model(&sgd, &model)?;
//! let gradients = Tensor::full(&[n], 2.0, DType::F32, Device::Cpu)?;
//! optimizer.begin_step();
//! optimizer.step_on(model.weights_mut(), gradients.view(), UpdateScale::Host(0.5), 0..n, 0)?;
//! // The learning rate times the scaled gradient, 0.1 · 0.5 · 2.
//! let after = model.weights().to_vec::<f32>()?;
//! assert!(before.iter().zip(after).all(|(before, after)| (before - after - 0.1).abs() < 1e-6));
//! # Ok::<(), ddp::optim::OptimError>(())
//! ```

mod first_pass;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use ddp_kernels::ops::{
    self, Average, MAX_SEGMENTS, OptimizerParams, OptimizerTensors, STEP_SCALARS_LEN, UpdateInputs,
    UpdateSegment, WholeNeed,
};
use ddp_kernels::{DType, Device, IntoDevice, KernelError, MemoryUse, Tensor, TensorMut, TensorRef};

use super::param_groups::{ParamGroups, Segment, WholeParameter};
use super::update_scale::{DeviceScale, UpdateScale};
use crate::config::{OptimizerConfig, OptimizerKind};
use crate::model::{GradientSums, Network, WeightsMut};
use crate::optim::error::Result;
use crate::storage::named_tensors::NamedTensors;

/// Name of the number of steps in a state dict.
const N_STEPS: &str = "n_steps";

/// The optimizer with its state, for all weights or for the shards that this rank updates.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    groups: ParamGroups,
    /// State tensors, by name.
    state: Vec<(&'static str, Tensor)>,
    /// Moving average of the weights, if one is kept.
    ema: Option<Tensor>,
    /// The learning rate of the next step.
    lr: f64,
    /// The learning rate of each group's schedule.
    group_lrs: Vec<f64>,
    /// Norms of whole parameters, f64 (LAMB: two sums for each; Muon: two scalars for the work on a matrix).
    norms: Option<Tensor>,
    /// Workspace in which matrices are orthogonalized (Muon).
    workspace: Option<Tensor>,
    /// Number of steps taken.
    n_steps: u64,
    /// Number of the step of the last [`Optimizer::first_pass`].
    first_passed: u64,
    /// Whether rates were set for the schedules of all groups that have one.
    has_group_lrs: bool,
    /// The parameters of the model that it was made for, if it was made for one.
    layout: Option<u64>,
}

impl Optimizer {
    /// Creates the optimizer of `config` before its first step.
    ///
    /// - `groups`: the settings of each range of the flat buffers
    /// - `state_len`: elements (f32) of each state tensor: the number of all weights, or of the weights in this rank's shards
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`], [`KernelError::DeviceUnavailable`].
    pub fn new(
        config: &OptimizerConfig,
        groups: ParamGroups,
        state_len: usize,
        device: Device,
    ) -> Result<Self, KernelError> {
        Self::with_state_of(DType::F32, config, groups, state_len, device)
    }

    fn with_state_of(
        dtype: DType,
        config: &OptimizerConfig,
        groups: ParamGroups,
        state_len: usize,
        device: Device,
    ) -> Result<Self, KernelError> {
        let zeros = |kind| Tensor::zeros_for(kind, &[state_len], dtype, device);
        let names = config.kind.state_names(&config.params());
        let state = names.iter().map(|name| Ok((*name, zeros(MemoryUse::Optimizer)?)));
        let state = state.collect::<Result<_, KernelError>>()?;
        let ema = (config.ema_decay > 0.0).then(|| zeros(MemoryUse::Average)).transpose()?;
        let memory = |n: usize, dtype| {
            (n > 0).then(|| Tensor::zeros_for(MemoryUse::Optimizer, &[n], dtype, device)).transpose()
        };
        let norms = memory(groups.norms_len(), DType::F64)?;
        let workspace = memory(groups.workspace_len(), DType::F32)?;
        let n_schedules = config.groups.iter().filter(|group| group.schedule.is_some()).count();
        Ok(Optimizer {
            config: config.clone(),
            groups,
            state,
            ema,
            lr: config.lr,
            group_lrs: vec![config.lr; n_schedules],
            norms,
            workspace,
            n_steps: 0,
            first_passed: 0,
            has_group_lrs: n_schedules == 0,
            layout: None,
        })
    }

    /// Bytes, besides the state and the average, that steps over whole parameters with these groups need.
    pub fn scratch_bytes(groups: &ParamGroups) -> usize {
        groups.norms_len() * DType::F64.size_bytes() + groups.workspace_len() * DType::F32.size_bytes()
    }

    /// [`OptimizerParams::beta_powers`] in step `step`.
    pub(crate) fn beta_powers(&self, step: u64) -> [f64; 2] {
        self.config.params().beta_powers(step)
    }

    /// Number of state tensors of the optimizer of `config`, without the averaged weights.
    pub fn n_moments(config: &OptimizerConfig) -> usize {
        config.kind.state_names(&config.params()).len()
    }

    /// Creates the optimizer of `config` for all weights of `model`, before its first step; its state is f64 for a model in f64.
    ///
    /// # Errors
    /// [`OptimError::Setting`](super::OptimError::Setting) for a setting that a config refuses too; see [`ParamGroups::new`] and
    /// [`Optimizer::new`].
    pub fn for_model(config: &OptimizerConfig, model: &Network) -> Result<Self> {
        let (layout, dtype) = (model.layout(), model.precision().master());
        let groups = ParamGroups::new(config, layout)?;
        let optimizer = Self::with_state_of(dtype, config, groups, layout.flat_len(), model.device())?;
        Ok(optimizer.only_for(model))
    }

    /// The optimizer, which now refuses models with other parameters than `model`, or with other frozen ones.
    pub(crate) fn only_for(self, model: &Network) -> Self {
        Optimizer { layout: Some(model.layout().identity()), ..self }
    }

    /// AdamW for `model` with its usual settings: [`Optimizer::for_model`] sets others.
    ///
    /// # Errors
    /// Same as [`Optimizer::for_model`].
    ///
    /// Source: `torch.optim.AdamW`.
    pub fn adamw(model: &Network, lr: f64) -> Result<Self> {
        Self::for_model(&OptimizerConfig::new(OptimizerKind::AdamW, lr), model)
    }

    /// Adam for `model` with its usual settings.
    ///
    /// # Errors
    /// Same as [`Optimizer::for_model`].
    ///
    /// Source: `torch.optim.Adam`.
    pub fn adam(model: &Network, lr: f64) -> Result<Self> {
        Self::for_model(&OptimizerConfig::new(OptimizerKind::Adam, lr), model)
    }

    /// SGD with this momentum for `model`.
    ///
    /// # Errors
    /// Same as [`Optimizer::for_model`].
    ///
    /// Source: `torch.optim.SGD`.
    pub fn sgd(model: &Network, lr: f64, momentum: f64) -> Result<Self> {
        Self::for_model(&OptimizerConfig { momentum, ..OptimizerConfig::new(OptimizerKind::Sgd, lr) }, model)
    }

    /// Checks that the optimizer was created for a model with these parameters, if [`Optimizer::for_model`] created it.
    ///
    /// # Errors
    /// [`KernelError::Misuse`].
    pub(crate) fn check_model(&self, model: &Network) -> Result<(), KernelError> {
        if self.layout.is_none_or(|layout| layout == model.layout().identity()) {
            return Ok(());
        }
        let problem =
            "the optimizer belongs to a model with other parameters, or with other frozen parameters";
        let remedy = "create it with `Optimizer::for_model(&config, &model)`, after `freeze` and `unfreeze`";
        Err(KernelError::misuse("step", problem, remedy))
    }

    /// Checks that the optimizer can take a step of this model: [`Optimizer::check_model`], and rates for the schedules of groups.
    ///
    /// # Errors
    /// [`KernelError::Misuse`].
    pub(crate) fn check_step(&self, model: &Network) -> Result<(), KernelError> {
        self.check_model(model)?;
        if self.layout.is_none() || self.has_group_lrs {
            return Ok(());
        }
        let problem = "a group of parameters has a schedule of its own, and no rate was set by it";
        let remedy = "before each step: `set_group_lrs(&[rate])`, in the order of the groups with a schedule, such as `Schedule::lr(step)`";
        Err(KernelError::misuse("step", problem, remedy))
    }

    /// Its settings.
    pub(crate) fn config(&self) -> &OptimizerConfig {
        &self.config
    }

    /// The update rule.
    pub fn kind(&self) -> OptimizerKind {
        self.config.kind
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.lr
    }

    /// Sets the learning rate of the next step. A step with [`UpdateScale::Device`] reads the rate from the device instead.
    pub fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    /// The learning rate of the next step for the schedule of each group that has one, in the order of the groups, without the
    /// groups' factors.
    pub fn group_lrs(&self) -> &[f64] {
        &self.group_lrs
    }

    /// Sets [`Optimizer::group_lrs`]; initially each is `optimizer.lr`.
    ///
    /// # Panics
    /// If their number differs from the number of groups with a schedule.
    pub fn set_group_lrs(&mut self, lrs: &[f64]) {
        self.group_lrs.copy_from_slice(lrs);
        self.has_group_lrs = true;
    }

    /// Whether a step has a first pass over all ranges, followed by the update once the norms or directions of whole parameters
    /// are known.
    pub fn has_first_pass(&self) -> bool {
        !self.groups.whole().is_empty()
    }

    /// The parameters whose update depends on all of their elements.
    pub(crate) fn whole(&self) -> &[WholeParameter] {
        self.groups.whole()
    }

    /// The scalars of the current step for a segment.
    fn numbers<'a>(&self, segment: &Segment, scale: UpdateScale<'a>) -> Result<Numbers<'a>, KernelError> {
        let Segment { lr_scale, weight_decay, schedule, whole, .. } = *segment;
        let (grad_scale, inputs) = match scale {
            UpdateScale::Host(grad_scale) => (grad_scale, None),
            UpdateScale::Device(DeviceScale { inputs, group_scalars }) => {
                let own = match schedule.zip(group_scalars) {
                    Some((n, all)) => all.range(n * STEP_SCALARS_LEN, (n + 1) * STEP_SCALARS_LEN)?,
                    None => inputs.scalars,
                };
                (1.0, Some(UpdateInputs { scalars: own, ..*inputs }))
            }
        };
        let matrix = whole.and_then(|whole| self.groups.whole()[whole].matrix);
        let need = self.config.kind.whole_need();
        let kind = match self.config.kind {
            _ if need == Some(WholeNeed::Directions) && matrix.is_none() => OptimizerKind::AdamW,
            kind => kind,
        };
        let params = OptimizerParams {
            lr: schedule.map_or(self.lr, |schedule| self.group_lrs[schedule]),
            lr_scale,
            weight_decay,
            // Same as torch.optim.Muon with its "original" adjustment.
            direction_scale: matrix.map_or(1.0, |[rows, cols]| (rows as f64 / cols as f64).max(1.0).sqrt()),
            step: self.n_steps,
            grad_scale,
            ..self.config.params()
        };
        Ok(Numbers { kind, params, inputs })
    }

    /// Number of steps begun so far.
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

    /// Takes a step by the mean gradient of the rows that were added to `grads`, which then begins anew; without rows, nothing changes. For an
    /// optimizer of all weights ([`Optimizer::for_model`]).
    ///
    /// [`Optimizer::set_lr`] sets the learning rate. A moving average of the weights starts from the weights after the first step.
    ///
    /// # Errors
    /// [`KernelError::Misuse`], before anything changes, if optimizer or sums are those of another model, if the rows are a share of those of
    /// several ranks and the sums were not reduced, for a learning rate that is negative or not finite, for a loss that is not finite
    /// ([`GradientSums::allow_non_finite`]), for schedules of groups before [`Optimizer::set_group_lrs`], and for LAMB and Muon, whose steps
    /// only a trainer takes; [`KernelError::Cuda`] from earlier work on a GPU.
    #[doc(alias("zero_grad"))]
    pub fn step(&mut self, model: &mut Network, grads: &mut GradientSums) -> Result<(), KernelError> {
        self.check_step(model)?;
        if self.has_first_pass() {
            let problem = format!("`{}` needs the norms or directions of whole parameters", self.config.kind);
            return Err(KernelError::misuse(
                "step",
                problem,
                "train with a `Trainer`, or take another optimizer",
            ));
        }
        if let Some(lr) =
            std::iter::once(&self.lr).chain(&self.group_lrs).find(|lr| !(lr.is_finite() && **lr >= 0.0))
        {
            let problem = format!("the learning rate is {lr}; the weights are unchanged");
            return Err(KernelError::misuse("step", problem, "a finite number of 0 or above"));
        }
        let scale = grads.scale_of_step(model)?;
        if scale > 0.0 {
            let len = model.layout().flat_len();
            self.begin_step();
            self.step_on(model.weights_mut(), grads.flat().view(), UpdateScale::Host(scale), 0..len, 0)?;
        }
        grads.begin_step();
        Ok(())
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

    /// Copies the state to `device`, with the number of steps: what a safetensors file holds and [`Optimizer::load_state_dict`] reads.
    ///
    /// # Errors
    /// [`KernelError`] for a device that is unavailable or out of memory.
    ///
    /// Source: `torch.optim.Optimizer.state_dict`.
    pub fn state_dict(&self, device: impl IntoDevice) -> Result<BTreeMap<String, Tensor>, KernelError> {
        let device = device.into_device()?;
        let n_steps = Tensor::from_slice(&[self.n_steps as i64], &[1], device)?;
        let mut state = BTreeMap::from([(N_STEPS.to_owned(), n_steps)]);
        for (name, values) in self.state() {
            state.insert(name.to_owned(), values.to(device)?);
        }
        Ok(state)
    }

    /// Copies the tensors of [`Optimizer::state_dict`], on any device, and the number of steps: the next step is that of the optimizer they
    /// were taken from.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for names that only one side has; [`KernelError`] from the copies.
    pub fn load_state_dict(&mut self, state: &(impl NamedTensors + ?Sized)) -> Result<(), KernelError> {
        const OP: &str = "load_state_dict";
        let mut given = state.named_tensors();
        given.sort_by_key(|(name, _)| *name);
        let names = |own: &[&str], given: &[(&str, &Tensor)]| {
            let given: Vec<_> = given.iter().map(|(name, _)| *name).collect();
            (own != given)
                .then(|| format!("it has {}, and the optimizer {}", given.join(", "), own.join(", ")))
        };
        let mut own: Vec<_> = self.state().iter().map(|(name, _)| *name).chain([N_STEPS]).collect();
        own.sort_unstable();
        if let Some(problem) = names(&own, &given) {
            return Err(KernelError::misuse(OP, problem, "the state of an optimizer of the same kind"));
        }
        for (name, values) in given {
            match self.state_mut().into_iter().find(|(own, _)| *own == name) {
                Some((_, own)) => ops::copy(values.view(), own.view_mut())?,
                None => self.n_steps = values.to_vec::<i64>()?.first().map_or(0, |n| *n as u64),
            }
        }
        Ok(())
    }

    /// The moving average of the weights, if one is kept: `state_len` elements, zeros before the first step.
    pub fn ema(&self) -> Option<&Tensor> {
        self.ema.as_ref()
    }

    /// Mutable [`Optimizer::ema`].
    pub fn ema_mut(&mut self) -> Option<&mut Tensor> {
        self.ema.as_mut()
    }

    /// Applies the current step to a range of the flat buffers.
    ///
    /// - `weights`, `grads`: weights and gradients of exactly `range`
    /// - `state_start`: start of the state of `range` in the state tensors
    ///
    /// On a GPU, one launch for up to [`MAX_SEGMENTS`] segments of the groups within the range, which also updates the average.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if `grads` and `range` differ in length.
    ///
    /// # Panics
    /// Before the first [`Optimizer::begin_step`]; if the optimizer has a first pass that this step has not run: only a trainer takes such
    /// steps.
    pub fn step_on(
        &mut self,
        mut weights: WeightsMut<'_>,
        grads: TensorRef<'_>,
        scale: UpdateScale<'_>,
        range: Range<usize>,
        state_start: usize,
    ) -> Result<(), KernelError> {
        assert!(self.n_steps > 0, "`begin_step` comes before the updates of a step: it counts the steps");
        let is_ready = !self.has_first_pass() || self.first_passed == self.n_steps;
        assert!(is_ready, "{} needs its first pass over all parameters", self.config.kind);
        let mut parts = self.groups.within(range.clone()).peekable();
        while let Some((mut part, segment)) = parts.next() {
            let Numbers { kind, params, inputs } = self.numbers(&segment, scale)?;
            let (mut joined, mut n_joined) = ([UpdateSegment::default(); MAX_SEGMENTS], 0);
            let mut join =
                |part: &Range<usize>, start: usize, Segment { lr_scale, weight_decay, .. }: Segment| {
                    joined[n_joined] = UpdateSegment { end: part.end - start, lr_scale, weight_decay };
                    n_joined += 1;
                    n_joined < MAX_SEGMENTS
                };
            let mut has_room = join(&part, part.start, segment);
            while let Some((next, other)) = parts.next_if(|(_, next)| has_room && next.joins(&segment)) {
                has_room = join(&next, part.start, other);
                part.end = next.end;
            }
            let at = part.start - range.start..part.end - range.start;
            // For a whole range the gradients are passed unchanged, so that the operation rejects a wrong length.
            let is_whole = at == (0..range.len());
            let state_range = state_start + at.start..state_start + at.end;
            let mut state = self.state.iter_mut().map(|(_, tensor)| slice(tensor.view_mut(), &state_range));
            let mut state = || state.next().transpose();
            let (decay, warms_up, step) = (self.config.ema_decay, self.config.ema_warmup, self.n_steps);
            let norms = match (&self.norms, segment.whole) {
                (Some(norms), Some(whole)) if self.config.kind.whole_need() == Some(WholeNeed::Norms) => {
                    Some(norms.view().range(2 * whole, 2 * whole + 2)?)
                }
                _ => None,
            };
            let average = self.ema.as_mut().map(|ema| {
                let ema = slice(ema.view_mut(), &state_range)?;
                Ok::<_, KernelError>(Average { ema, decay, warms_up, step })
            });
            let of_segment = weights.reborrow().range(&at)?;
            let tensors = OptimizerTensors {
                master_weights: of_segment.master,
                grads: if is_whole { grads } else { grads.range(at.start, at.end)? },
                state: [state()?, state()?],
                average: average.transpose()?,
                compute_weights: of_segment.compute,
                norms,
            };
            match &joined[..n_joined] {
                [_] => ops::optimizer_step(kind, &params, tensors, inputs.as_ref())?,
                all => ops::optimizer_step_by_segment(kind, &params, all, tensors, inputs.as_ref())?,
            }
        }
        Ok(())
    }
}

/// Update of a segment in one step.
struct Numbers<'a> {
    kind: OptimizerKind,
    params: OptimizerParams,
    inputs: Option<UpdateInputs<'a>>,
}

fn slice<'a>(tensor: TensorMut<'a>, range: &Range<usize>) -> Result<TensorMut<'a>, KernelError> {
    tensor.range(range.start, range.end)
}
