//! Runs optimizer steps: forward and backward of the micro-batches, gradient reduction over the ranks, clipping, update.
//!
//! On the CPU a step is complete when [`Trainer::step`] returns. On a GPU it is enqueued by then, and its outcome is read
//! while the next one computes: [`Trainer::outcome`] returns outcomes in order, on both.

mod state;
mod after_loss;
mod twin;

use std::collections::VecDeque;

use ddp_comm::World;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, KernelError, Tensor, TensorRef, ops};

pub(crate) use self::state::StateToSave;
pub(crate) use self::twin::{Named, StepValues};
use crate::config::OptimizerConfig;
use crate::config::precision::Precision;
pub use crate::data::step_rows::{MicroBatch, StepRows};
use crate::data::{PartitionKind, step_rows};
use crate::exchange::ExchangeError;
use crate::exchange::averaged_weights::AveragedWeights;
pub use crate::exchange::plan::ExchangeBytes;
use crate::exchange::plan::ExchangePlan;
use crate::exchange::replica_check::{ReplicaCheck, ReplicaDifferences};
use crate::exchange::shard_plan::Ranks;
pub use crate::exchange::shard_plan::StateShard;
pub use crate::model::DropoutStep;
use crate::model::layer::Sizes;
use crate::model::{LossHead, Network, PassRows, Sequential, fingerprint_of};
use crate::optim::loss_scaler::LossScaler;
use crate::optim::optimizer::Optimizer;
use crate::optim::param_groups::ParamGroups;
use crate::train::error::{Result, TrainError};
use crate::train::eval_votes::Until;
use crate::train::gpu_step::{GpuStep, N_SLOTS};
pub use crate::train::options::{GraphMode, NonFinite, TrainerOptions};
use crate::train::statistics::StatisticsRows;
use crate::train::step::{Replica, StepPurpose, UpdatePlace, Within};
use crate::train::step_info::PlannedStep;
pub use crate::train::step_info::{StepInfo, StepOutcome, StepRequest, Withheld};
use crate::train::step_inputs::{Rows, ScalarsMemory, StepInputs};
use crate::train::step_times::StepTimes;
use crate::train::stop_signals::StopSignals;

/// Model, optimizer and buffers of a run, allocated once.
///
/// ```
/// use std::sync::Arc;
///
/// use ddp::data::{BatchPlan, DataLoader, LoaderOptions, TensorDataset};
/// use ddp::nn::{LossHead, Precision, Sequential, Sizes};
/// use ddp::optim::{OptimizerConfig, OptimizerKind};
/// use ddp::prelude::*;
/// use ddp::train::{Trainer, TrainerOptions};
///
/// let world = World::single();
/// let x = Tensor::randn(&[64, 3], DType::F32, Device::Cpu, 1)?;
/// let rows = Arc::new(TensorDataset::new(&x, &x.sum(1)?)?);
/// let sizes = Sizes { max_rows: 16, device: Device::Cpu, precision: Precision::F32 };
/// let (layers, sgd) = (Sequential::new(3).linear(1), OptimizerConfig::new(OptimizerKind::Sgd, 0.1));
/// let mut trainer =
///     Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &sgd, TrainerOptions::default())?;
/// let plan = BatchPlan { n_epochs: Some(20), ..BatchPlan::new(16) };
/// let mut loader = DataLoader::new(&world, rows, &plan, LoaderOptions::new(Device::Cpu))?;
/// let mut loss = f64::NAN;
/// while let Some(mut batch) = loader.next_step()? {
///     loss = trainer.step_and_wait(&mut batch, false)?.sums.mean();
/// }
/// assert!(loss < 1e-3, "{loss}");
/// # Ok::<(), ddp::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias("DDP", "DistributedDataParallel"))]
pub struct Trainer<'w> {
    replica: Replica<'w>,
    n_steps: u64,
    /// Unread outcomes of steps.
    done: VecDeque<(StepInfo, StepOutcome)>,
    /// Inputs, graphs and outcomes of steps on a GPU.
    gpu: Option<GpuStep>,
    /// Scalars of steps on the CPU.
    scalars: ScalarsMemory,
    /// Loss scaler of a run in f16.
    scaler: Option<LossScaler>,
    averaged: AveragedWeights,
    /// Allocated for the first comparison of replicas.
    replica_check: Option<ReplicaCheck>,
    /// The last step that was begun on the CPU.
    planned: Option<PlannedStep>,
    /// The step that this rank has completed alone after a loss.
    completed_alone: Option<PlannedStep>,
}

impl<'w> Trainer<'w> {
    /// Creates a trainer before its first step. All ranks compare their models, weights, losses, optimizers and options, and take over the
    /// registered buffers of rank 0.
    ///
    /// - `model`: with the layout of [`TrainerOptions::layout`]
    /// - `optimizer`: with state of [`TrainerOptions::state_len`]
    ///
    /// # Errors
    /// `TrainError::Exchange` for a model in f64 and for options that exclude each other; `TrainError::Comm` if the ranks hold something else;
    /// `TrainError::Kernel` if the device is out of memory, and for an optimizer that was made for a model with other parameters.
    ///
    /// # Panics
    /// If the number of micro-shards is not a power of two, or less than the number of ranks.
    pub fn new(
        world: &'w World,
        model: Network,
        loss: LossHead,
        optimizer: Optimizer,
        options: TrainerOptions,
    ) -> Result<Self> {
        let mut options = options;
        options.check(model.device(), optimizer.kind())?;
        optimizer.check_model(&model)?;
        let group = world.tensor_group();
        let is_on_cpu = model.device() == Device::Cpu;
        if options.zero_copies && is_on_cpu && world.world_size() > 1 && !group.shares_memory() {
            return Err(ExchangeError::CopiesByMessages { transport: group.transport() }.into());
        }
        match model.precision() {
            Precision::F64 => return Err(ExchangeError::Double.into()),
            Precision::F16 if options.loss_scaling.is_none() => {
                let problem = "gradients in f16 without loss scaling: small ones would be 0";
                let remedy =
                    "`loss_scaling: Some(LossScalerConfig::default())` in the options, or Precision::Bf16";
                return Err(KernelError::misuse("Trainer::new", problem, remedy).into());
            }
            _ => {}
        }
        if options.micro_shards.is_some() && model.exchanged_len() > 0 {
            return Err(ExchangeError::TreeOfStatistics.into());
        }
        let mut gpu = match model.device() {
            Device::Cpu => None,
            Device::Cuda(index) => Some(GpuStep::new(Gpu::get(index)?, &options)?),
        };
        if optimizer.has_first_pass() {
            // Its second pass needs what all ranks have reduced, so that reducing and updating block by block saves nothing.
            options.divide_update_from = usize::MAX;
        }
        let formats = model.flat_formats();
        let mut exchange = options.exchange().on(model.device());
        exchange.updates_buckets &= !optimizer.has_first_pass();
        let exchange = ExchangePlan::new(&exchange, Ranks::of(world), model.layout(), &formats);
        let buffers = model.named_buffers().into_iter().map(|(_, values)| values.numel());
        let lens: Vec<_> = exchange.bucket_lens.iter().copied().chain(buffers).collect();
        world.group().agree_lengths(&lens)?;
        if world.world_size() > 1 {
            let mut alike = held_alike(&model, &loss, &optimizer, &options)?;
            let of_gpu = gpu.iter().flat_map(GpuStep::held_alike);
            alike.extend(of_gpu.map(|(key, value)| (key.to_owned(), value)));
            world.agree(&alike)?;
        }
        let scalars = ScalarsMemory::new(optimizer.group_lrs().len(), Device::Cpu)?;
        let mut replica = Replica::new(world, model, loss, optimizer, exchange, options)?;
        if let Some(gpu) = &mut gpu {
            gpu.try_exchange(&mut replica)?;
        }
        Ok(Trainer {
            replica,
            n_steps: 0,
            done: VecDeque::with_capacity(1),
            gpu,
            scalars,
            scaler: options.loss_scaling.map(LossScaler::new),
            averaged: AveragedWeights::default(),
            replica_check: None,
            planned: None,
            completed_alone: None,
        })
    }

    /// Creates a trainer of these layers, with initial weights from [`TrainerOptions::seed`], whatever the options: with the layout and
    /// the length of the state that they need. Collective.
    ///
    /// - `sizes`: the most rows of a micro-batch, this rank's device, and the number formats
    ///
    /// On several GPUs, [`World::connect_device`] comes first.
    ///
    /// # Errors
    /// Same as [`Trainer::new`]; `TrainError::Optim` for parameter groups that fit no parameter.
    ///
    /// # Panics
    /// Same as [`Trainer::new`] and [`Network::from_layers`].
    pub fn for_layers(
        world: &'w World,
        layers: Sequential,
        sizes: Sizes,
        loss: LossHead,
        optimizer: &OptimizerConfig,
        options: TrainerOptions,
    ) -> Result<Self> {
        layers.check()?;
        let (n_features, layers) = (layers.n_features(), layers.into_layers());
        let layout = options.layout_of_layers(&layers, world.world_size());
        let state_len = options.state_len(world, &layout);
        let mut model = Network::from_parts(layers, layout, n_features, sizes)?;
        model.initialize(options.seed)?;
        let groups = ParamGroups::new(optimizer, model.layout())?;
        let optimizer = Optimizer::new(optimizer, groups, state_len, sizes.device)?.only_for(&model);
        Self::new(world, model, loss, optimizer, options)
    }

    /// Updates the weights on one GPU beside backward, whose matmuls leave `n_free` multiprocessors free for it, or after backward
    /// (None), and computes the gradients of weights beside those of inputs or between them, in place of what was chosen by time in the
    /// first step. For tests.
    #[doc(hidden)]
    pub fn place_update(&mut self, n_free: Option<u32>, is_beside: bool) -> Result<()> {
        self.replica.update_place =
            n_free.map_or(UpdatePlace::AfterBackward, |n_free| UpdatePlace::BesideBackward { n_free });
        Ok(self.replica.model.set_beside(is_beside)?)
    }

    /// The model.
    pub fn model(&self) -> &Network {
        &self.replica.model
    }

    /// The model, for predictions: [`Network::predict`].
    pub fn model_mut(&mut self) -> &mut Network {
        &mut self.replica.model
    }

    /// The mean loss of rows that are not trained on: [`Network::loss`] by the trainer's own loss, on this rank alone. Waits for the device.
    ///
    /// # Errors
    /// Same as [`Network::loss`].
    pub fn loss<'a>(&mut self, rows: impl Into<PassRows<'a>>) -> Result<f64> {
        Ok(self.replica.model.loss(rows, &self.replica.loss)?)
    }

    /// The model and its loss, for use outside training. Parameters are frozen before: [`Network::freeze`], [`Optimizer::for_model`],
    /// [`Trainer::new`].
    pub fn model_and_loss(&mut self) -> (&mut Network, &LossHead) {
        (&mut self.replica.model, &self.replica.loss)
    }

    /// Completes the master weights on all ranks, where they were gathered in another format
    /// ([`TrainerOptions::gathers_short_weights`]); else does nothing. Collective.
    ///
    /// # Errors
    /// `TrainError::Comm` if a collective fails.
    pub fn gather_weights(&mut self) -> Result<()> {
        self.replica.gather_weights()
    }

    /// Sets the weights, flat in the layout's order, from any device. The optimizer's state is unchanged.
    ///
    /// # Errors
    /// See [`Network::set_weights`].
    pub fn set_weights(&mut self, weights: TensorRef<'_>) -> Result<()> {
        // Also the mark of weights that were not finite.
        self.replica.grads.clear()?;
        Ok(self.replica.model.set_weights(weights)?)
    }

    /// Sets the saved buffers that layers registered, by name, from any device. Returns what differs between their names, shapes and
    /// dtypes and the model's; nothing is set then.
    ///
    /// # Errors
    /// `TrainError::Kernel` from the copies.
    pub fn set_buffers(&mut self, buffers: &[(String, Tensor)]) -> Result<Vec<String>> {
        Ok(self.replica.model.set_saved_buffers(buffers)?)
    }

    /// Steps enqueued so far, without skipped ones.
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// Resumes after this many steps.
    pub fn set_n_steps(&mut self, n_steps: u64) {
        self.n_steps = n_steps;
        self.replica.optimizer.set_n_steps(n_steps);
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.replica.optimizer.lr()
    }

    /// Sets the learning rate of the next step.
    pub fn set_lr(&mut self, lr: f64) {
        self.replica.optimizer.set_lr(lr);
    }

    /// Sets the learning rate of the next step by the schedule of each group that has one; see [`Optimizer::set_group_lrs`].
    ///
    /// # Panics
    /// If they are not as many as groups have a schedule.
    pub fn set_group_lrs(&mut self, lrs: &[f64]) {
        self.replica.optimizer.set_group_lrs(lrs);
    }

    /// Times of the parts of the steps that were measured so far.
    pub fn times(&self) -> StepTimes {
        self.gpu.as_ref().map_or_else(|| self.replica.clock.times(), GpuStep::times)
    }

    /// Prepares a trace of the next steps, which times them by the host's clock. Returns the largest error of the device's times in s,
    /// where steps on a GPU can be timed; waits for the steps in flight.
    ///
    /// # Errors
    /// `TrainError::Kernel`, also for failed work of these steps.
    pub(crate) fn begin_trace(&mut self) -> Result<Option<f64>> {
        self.gpu.as_mut().map_or(Ok(None), GpuStep::begin_trace)
    }

    /// Bytes that this rank sends in a step of `n_micro_batches` micro-batches per rank.
    pub fn exchange_bytes(&self, n_micro_batches: usize) -> ExchangeBytes {
        let Replica { model, optimizer, .. } = &self.replica;
        self.exchange().bytes(n_micro_batches, optimizer.whole(), model.layers())
    }

    /// The plan of the exchange.
    pub fn exchange(&self) -> &ExchangePlan {
        self.replica.grads.plan()
    }

    /// Whether steps are captured as graphs, unless a capture fails.
    pub fn uses_graphs(&self) -> bool {
        self.gpu.as_ref().is_some_and(GpuStep::uses_graphs)
    }

    /// Steps that were captured as graphs; 0 on the CPU.
    pub fn n_graphs(&self) -> usize {
        self.gpu.as_ref().map_or(0, GpuStep::n_graphs)
    }

    /// The optimizer's state tensors on this rank by name, including the averaged weights if kept. [`Trainer::state_shards`] of all
    /// ranks says which elements are valid.
    pub fn state(&self) -> Vec<(&'static str, &Tensor)> {
        self.replica.optimizer.state()
    }

    /// Mutable [`Trainer::state`].
    pub fn state_mut(&mut self) -> Vec<(&'static str, &mut Tensor)> {
        self.replica.optimizer.state_mut()
    }

    /// Shards of the state that this rank stores: each element of the flat buffer belongs to one rank.
    pub fn state_shards(&self) -> Vec<StateShard> {
        self.replica.shard_plan.shards_to_store()
    }

    /// Shards of the state that this rank restores: all that it holds.
    pub fn state_shards_to_restore(&self) -> Vec<StateShard> {
        self.replica.shard_plan.shards_to_restore()
    }

    /// Gathers the moving average of the weights in their layout; returns the weights themselves before the first step, and None if
    /// no average is kept. Collective.
    ///
    /// # Errors
    /// `TrainError::Kernel` if the device is out of memory; `TrainError::Comm` if a collective fails.
    pub fn averaged_weights(&mut self) -> Result<Option<&Tensor>> {
        self.gather_weights()?;
        let Replica { world, model, optimizer, shard_plan, .. } = &self.replica;
        Ok(self.averaged.gather(world, model, optimizer, shard_plan)?)
    }

    /// Runs `body` on the model with the averaged weights, if kept, and then restores the weights bit for bit. Collective.
    ///
    /// # Errors
    /// The error of `body`, with the weights restored; see also [`Trainer::averaged_weights`].
    pub fn with_averaged<R>(&mut self, body: impl FnOnce(&mut Network, &LossHead) -> Result<R>) -> Result<R> {
        self.with_averaged_over(None, None, body)
    }

    /// [`Trainer::with_averaged`] with the statistics that the averaged weights have on these rows, in place of those of the steps.
    /// Collective.
    ///
    /// - `signals`: those that stop the computation of the statistics
    ///
    /// # Errors
    /// Same as [`Trainer::with_averaged`]; `TrainError::Data` if the rows cannot be read; `TrainError::EvaluationStopped` after a signal.
    pub fn with_averaged_over<R>(
        &mut self,
        statistics: Option<&StatisticsRows>,
        signals: Option<&StopSignals>,
        body: impl FnOnce(&mut Network, &LossHead) -> Result<R>,
    ) -> Result<R> {
        self.gather_weights()?;
        let Replica { world, model, optimizer, shard_plan, loss, rank_exchange, .. } = &mut self.replica;
        if !self.averaged.swap_in(world, model, optimizer, shard_plan)? {
            return body(model, loss);
        }
        let result = match statistics {
            Some(rows) => {
                let kept = model.copy_of_buffers()?;
                let renewed = rows.renew(Until { world, signals }, model, rank_exchange);
                let result = renewed.and_then(|()| body(model, loss));
                model.restore_buffers(&kept)?;
                result
            }
            None => body(model, loss),
        };
        self.averaged.swap_out(model)?;
        result
    }

    /// Compares what all ranks hold alike, weights and optimizer state, by fingerprints; returns the differences, the same on all
    /// ranks. Collective; on a GPU the host waits for the steps in flight.
    ///
    /// # Errors
    /// `TrainError::Kernel`, also for failed work of these steps; `TrainError::Comm` if a collective fails.
    pub fn compare_replicas(&mut self) -> Result<Option<ReplicaDifferences>> {
        self.gather_weights()?;
        // Until all agree, this rank's bits may be the wrong ones: none to save after a loss.
        self.replica.within = Within::Comparison;
        let Replica { world, model, optimizer, shard_plan, .. } = &self.replica;
        let check = match &mut self.replica_check {
            Some(check) => check,
            none => none.insert(ReplicaCheck::new(model, optimizer, shard_plan)?),
        };
        let differences = check.compare(world, model, optimizer)?;
        if differences.is_none() {
            self.replica.within = Within::Nothing;
        }
        Ok(differences)
    }

    /// Copies what differs from a rank of its majority to all ranks; does nothing for a parameter without one. Collective.
    ///
    /// # Errors
    /// `TrainError::Kernel`; `TrainError::Comm` if a collective fails.
    pub fn repair_replicas(&mut self, differences: &ReplicaDifferences) -> Result<()> {
        let Replica { world, model, optimizer, .. } = &mut self.replica;
        let Some(check) = &self.replica_check else { return Ok(()) };
        check.repair(world, model, optimizer, differences)?;
        self.replica.within = Within::Nothing;
        Ok(())
    }

    /// Runs or enqueues one step over a global batch, of which `rows` holds this rank's rows. [`Trainer::outcome`] returns its
    /// outcome. Where the loss is scaled, the host waits for the step.
    ///
    /// # Errors
    /// [`DataError::RowsElsewhere`](crate::data::DataError::RowsElsewhere) and
    /// [`DataError::RowsOfOtherRanks`](crate::data::DataError::RowsOfOtherRanks) for rows that were loaded for another device than the
    /// model's, or divided among other ranks than the trainer's, before anything is computed; `TrainError::Kernel`, `TrainError::Comm`; `TrainError::LossNotFinite`, on all ranks alike and before
    /// the weights change, with [`NonFinite::Fail`], on a GPU of an earlier step whose outcome is unread; `TrainError::Optim` if the loss scaler gives up;
    /// `TrainError::OneMicroBatchOnly` despite [`TrainerOptions::has_one_micro_batch`], where gradients are written in bf16.
    pub fn step(&mut self, rows: &mut impl StepRows, request: StepRequest) -> Result<()> {
        step_rows::check_device(rows, self.model().device())?;
        step_rows::check_ranks(rows, self.replica.world.world_size())?;
        self.replica.optimizer.check_step(&self.replica.model)?;
        if let Some(n_shards) = self.replica.options.micro_shards
            && rows.partition().kind != (PartitionKind::MicroShards { n_shards })
        {
            return Err(ExchangeError::TreeOfOtherRows { n_shards }.into());
        }
        let (step, n_micro_batches) = (self.n_steps + 1, rows.n_micro_batches());
        if n_micro_batches > 1 && !self.replica.grads.can_accumulate() {
            return Err(TrainError::OneMicroBatchOnly { step, n_micro_batches });
        }
        let info = StepInfo { step, n_rows: rows.global_rows(), lr: self.lr() };
        if self.n_steps == 0 {
            self.replica.start_average()?;
        }
        let planned = self.replica.plan(rows, request, info, self.scaler.as_ref().map(LossScaler::scale));
        self.replica.begin_step(step)?;
        match &mut self.gpu {
            Some(gpu) => {
                // A step takes the place of the outcome of the one before the last.
                let nonfinite = self.replica.options.nonfinite;
                self.done.extend(gpu.outcome(self.replica.world, nonfinite, N_SLOTS - 1)?);
                gpu.enqueue(&mut self.replica, rows, planned)?;
                self.replica.within = Within::Nothing;
            }
            None => {
                self.planned = Some(planned);
                let outcome = self.run_on_cpu(rows, planned)?;
                self.done.push_back((info, outcome));
            }
        }
        self.count_step()
    }

    /// Counts the step that was run or enqueued, unless it is skipped, and scales the loss of the next one.
    fn count_step(&mut self) -> Result<()> {
        self.n_steps += 1;
        let Some(scaler) = &mut self.scaler else { return Ok(()) };
        if let Some(gpu) = &mut self.gpu {
            self.done.extend(gpu.outcome(self.replica.world, self.replica.options.nonfinite, 0)?);
        }
        let outcome = self.done.back().map(|(_, outcome)| outcome);
        if outcome.is_some_and(|outcome| outcome.withheld.is_some()) {
            // Such a step says nothing about the scale.
            return Ok(());
        }
        let skipped = outcome.is_some_and(|outcome| outcome.skipped);
        if skipped {
            self.n_steps -= 1;
            self.replica.optimizer.set_n_steps(self.n_steps);
        }
        Ok(scaler.update(!skipped)?)
    }

    /// Runs a step and decides on its outcome.
    fn run_on_cpu(&mut self, rows: &mut dyn StepRows, step: PlannedStep) -> Result<StepOutcome> {
        let Trainer { replica, scalars, .. } = self;
        ops::begin_step(Some(scalars.begin(step.scalars, replica.optimizer.group_lrs())?), None)?;
        let inputs = StepInputs { rows: Rows::Host(rows), scalars, outcome: None };
        replica.step(inputs, step.shape, StepPurpose::Update)?;
        let (sums, squares) = replica.results(step.shape)?;
        step.outcome(sums, squares, replica.options.nonfinite)
    }

    /// Runs one step and returns its outcome; on a GPU the host waits for it.
    ///
    /// # Errors
    /// See [`Trainer::step`] and [`Trainer::outcome`].
    pub fn step_and_wait(&mut self, rows: &mut impl StepRows, want_grad_norm: bool) -> Result<StepOutcome> {
        self.step(rows, StepRequest { want_grad_norm, ..StepRequest::default() })?;
        let mut last = None;
        while let Some((_, outcome)) = self.outcome(true)? {
            last = Some(outcome);
        }
        Ok(last.expect("a step was enqueued"))
    }

    /// Returns the oldest unread outcome. On a GPU the newest step keeps computing unless `all` is set; the host waits for the
    /// others.
    ///
    /// # Errors
    /// `TrainError::LossNotFinite`, on all ranks alike, with [`NonFinite::Fail`]; on a GPU any error of the step's work.
    pub fn outcome(&mut self, all: bool) -> Result<Option<(StepInfo, StepOutcome)>> {
        if let Some(outcome) = self.done.pop_front() {
            return Ok(Some(outcome));
        }
        match &mut self.gpu {
            Some(gpu) => {
                let Replica { world, options, .. } = &self.replica;
                gpu.outcome(world, options.nonfinite, if all { 0 } else { N_SLOTS - 1 })
            }
            None => Ok(None),
        }
    }

    /// Waits for all enqueued steps and drops their outcomes, also those of steps that are not finite.
    ///
    /// # Errors
    /// On a GPU any other error of their work.
    pub fn discard_outcomes(&mut self) -> Result<()> {
        loop {
            match self.outcome(true) {
                Ok(None) => return Ok(()),
                Err(error) if !error.is_failure() => return Err(error),
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }
}
/// Values that a step must find equal on all ranks, by name.
fn held_alike(
    model: &Network,
    loss: &LossHead,
    optimizer: &Optimizer,
    options: &TrainerOptions,
) -> Result<Vec<(String, String)>> {
    let TrainerOptions {
        seed,
        clip_grad_norm,
        comm_dtype,
        zero,
        zero_copies,
        micro_shards,
        loss_scaling,
        nonfinite,
        ..
    } = options;
    let config = optimizer.config();
    let weights = fingerprint_of(model)?
        .map_or("unknown".to_owned(), |hash| format!("{hash:016x} (a hash of all weights)"));
    let entries = [
        (
            "the model's parameters",
            format!("{:016x} (a hash of their names, shapes and what is frozen)", model.layout().identity()),
        ),
        ("precision", model.precision().name().to_owned()),
        ("loss", loss.kind()),
        ("optimizer.lr", optimizer.lr().to_string()),
        ("optimizer", format!("{config:?}")),
        ("seed of dropout", seed.to_string()),
        ("clip_grad_norm", clip_grad_norm.to_string()),
        (
            "comm_dtype, zero, zero_copies and micro_shards",
            format!("{comm_dtype:?}, {zero:?}, {zero_copies:?}, {micro_shards:?}"),
        ),
        ("loss_scaling and nonfinite", format!("{loss_scaling:?}, {nonfinite:?}")),
        ("weights", weights),
    ];
    Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}
