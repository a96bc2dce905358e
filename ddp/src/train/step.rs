//! Forward, backward and update of one step: [`Replica::step`], the same on every device. On the CPU it computes; on a GPU it enqueues.

use ddp_comm::{Rank, ReduceOp, World};
use ddp_kernels::cuda::{Gpu, Mapped};
use ddp_kernels::ops::{self, Input, MapOp, STEP_SUMS_LEN, StepReport, StepScalars, UpdateInputs};
use ddp_kernels::{DType, Device, MemoryUse, Tensor, TensorRef, memory};

use crate::config::ZeroStage;
use crate::data::datasets::batch::Batch;
use crate::data::step_rows::StepRows;
use crate::exchange::gradients::Gradients;
use crate::exchange::plan::ExchangePlan;
use crate::exchange::rank_exchange::RankExchange;
use crate::exchange::shard_plan::{Shard, ShardPlan};
use crate::exchange::trial::{ExchangeTrial, TrialFailure};
use crate::exchange::weight_gather::ShortGather;
use crate::exchange::whole_parameters::WholeParameters;
use crate::exchange::{BackwardInputs, MicroStep, UpdateBucket};
use crate::model::{AllRanks, DropoutStep, LossHead, Network};
use crate::optim::optimizer::Optimizer;
use crate::optim::update_scale::{DeviceScale, UpdateScale};
use crate::train::bucket_updates::BucketUpdates;
use crate::train::error::Result;
use crate::train::options::TrainerOptions;
use crate::train::step_info::{PlannedStep, StepInfo, StepRequest, StepShape};
use crate::train::step_inputs::{ScalarsMemory, StepInputs};
use crate::train::step_times::{HostClock, STEP_END, StepPart};
use crate::train::update::{Sharing, update, update_by_block};

/// Purpose of running a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepPurpose {
    /// To update the weights. Collective.
    Update,
    /// To have computed forward and backward of its shape once: no rank waits for another, and what is written, the next step
    /// overwrites, except for running statistics of layers.
    Rehearsal,
}

/// Place of the host within a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Within {
    /// Between two steps.
    Nothing,
    /// Before the update: weights and optimizer state are those of the step before.
    Gradients,
    /// The same, when this rank has all that its update needs and waits for the others to have it too.
    Prepared,
    /// Some of them may be updated. On a GPU its gate tells what is.
    Update,
    /// The ranks may hold different bits.
    Comparison,
}

/// Model, loss, gradients and optimizer of one rank.
#[derive(Debug)]
pub(crate) struct Replica<'w> {
    pub(crate) world: &'w World,
    pub(crate) model: Network,
    pub(crate) loss: LossHead,
    pub(crate) optimizer: Optimizer,
    pub(crate) grads: Gradients,
    pub(crate) shard_plan: ShardPlan,
    /// Gather of updated weights in a short format, where they are not gathered in f32.
    pub(crate) short_gather: Option<ShortGather>,
    /// First pass of the optimizer, if it has two.
    whole_parameters: Option<WholeParameters>,
    /// `Σ grads²`, `[1]` f64, on the model's device.
    sum_of_squares: Tensor,
    /// Values that layers exchange within a pass.
    pub(crate) rank_exchange: RankExchange,
    /// This rank's summands of the registered buffers that are means over the ranks.
    shares_of_buffers: Vec<Tensor>,
    /// Place within the step under way, for the loss of another rank in it.
    pub(crate) within: Within,
    /// Blocks whose shards the update under way has updated.
    n_updated: usize,
    /// The registered buffers before the steps under way, by their number, where another rank may be lost in them.
    buffers_before: Vec<Vec<Tensor>>,
    /// Where one GPU updates the weights of steps without a norm.
    pub(crate) update_place: UpdatePlace,
    /// Measures the parts of steps on the CPU.
    pub(crate) clock: HostClock,
    pub(crate) options: TrainerOptions,
}

impl<'w> Replica<'w> {
    pub(crate) fn new(
        world: &'w World,
        mut model: Network,
        loss: LossHead,
        mut optimizer: Optimizer,
        exchange: ExchangePlan,
        options: TrainerOptions,
    ) -> Result<Self> {
        if world.world_size() > 1 {
            for buffer in model.buffers_mut() {
                world.tensor_group().broadcast(Rank(0), buffer.view_mut())?;
            }
        }
        let (shard_plan, short_gather) = (exchange.shard_plan.clone(), exchange.short_gather.clone());
        if shard_plan.is_sharded() && world.registers_buffers() {
            move_to_exchanged(world, &mut model)?;
        }
        let grads = Gradients::new(world, &model, exchange)?;
        let sum_of_squares = Tensor::zeros_for(MemoryUse::Workspace, &[1], DType::F64, model.device())?;
        let whole_parameters = WholeParameters::new(&mut optimizer, &shard_plan)?;
        let rank_exchange = RankExchange::new(world, &model)?;
        let shares_of_buffers =
            model.averaged_buffers_mut().map(|buffer| buffer.zeros_like()).collect::<Result<_, _>>()?;
        Ok(Replica {
            world,
            model,
            loss,
            optimizer,
            grads,
            shard_plan,
            short_gather,
            whole_parameters,
            sum_of_squares,
            rank_exchange,
            shares_of_buffers,
            within: Within::Nothing,
            n_updated: 0,
            buffers_before: Vec::new(),
            update_place: UpdatePlace::AfterBackward,
            clock: HostClock::new(),
            options,
        })
    }

    /// Tries the collectives of a step ([`ExchangeTrial`]); on success, everything is as before. Collective.
    pub(crate) fn try_exchange(&mut self, gpu: &'static Gpu, graphs: bool) -> Result<Option<TrialFailure>> {
        let Replica { world, model, grads, shard_plan, short_gather, .. } = self;
        let mut trial = ExchangeTrial {
            world,
            gpu,
            grads,
            model,
            shard_plan,
            short_gather: short_gather.as_ref(),
            rare: Vec::new(),
        };
        let failure = trial.run(graphs)?;
        if failure.is_none() {
            self.grads.clear()?;
            self.complete_weights()?;
        }
        Ok(failure)
    }

    /// Allocates what ranks exchange again, after a trial that failed and after their devices were joined anew. Collective.
    pub(crate) fn renew_exchange(&mut self) -> Result<()> {
        let Replica { world, model, grads, shard_plan, .. } = self;
        grads.renew(world)?;
        if shard_plan.is_sharded() {
            move_to_exchanged(world, model)?;
        }
        self.complete_weights()
    }

    /// Gathers the weights of which each rank has its shards, if they are sharded.
    fn complete_weights(&mut self) -> Result<()> {
        if !self.shard_plan.is_sharded() {
            return Ok(());
        }
        self.model.set_has_whole_weights(false);
        self.gather_weights()?;
        Ok(self.model.refresh_compute_weights(0..self.shard_plan.flat_len())?)
    }

    /// Plans the step over these rows.
    pub(crate) fn plan(
        &self,
        rows: &dyn StepRows,
        request: StepRequest,
        info: StepInfo,
        loss_scale: Option<f64>,
    ) -> PlannedStep {
        let (global_rows, partition) = (rows.global_rows(), rows.partition());
        let StepRequest { want_grad_norm, vote, loss_limit, is_timed } = request;
        let (is_weighted, divisor) =
            (self.loss.is_weighted(rows.has_weights()), self.expected_weight(global_rows));
        let scalars = StepScalars {
            lr: info.lr,
            step: info.step,
            seed: self.options.seed,
            first_row: partition.first_own_row(global_rows) as u64,
            // Weights of rows or classes: the true divisor is known only after the reduction.
            expected_weight: if is_weighted { divisor } else { 0.0 },
            unscale: loss_scale.map_or(1.0, |scale| 1.0 / scale),
            beta_powers: self.optimizer.beta_powers(info.step),
            extra: f64::from(vote),
            loss_limit,
        };
        let shape = StepShape {
            own_rows: rows.n_own_rows(),
            global_rows,
            partition,
            has_norm: want_grad_norm || self.needs_norm(loss_scale.is_some()),
            loss_scale: loss_scale.map(f64::to_bits),
            is_timed,
            is_traced: false,
        };
        let divisor = (!is_weighted).then_some(divisor);
        PlannedStep { info, shape, scalars, max_norm: self.options.max_norm(), divisor }
    }

    /// Whether the update needs the norm of the gradient.
    fn needs_norm(&self, is_scaled: bool) -> bool {
        is_scaled || self.options.needs_norm()
    }

    /// Expected sum of the weights of the rows of a global batch: the divisor of the gradients.
    fn expected_weight(&self, global_rows: usize) -> f64 {
        self.options.mean_weight * self.loss.expected_weight(global_rows, self.model.n_outputs())
    }

    /// Starts the moving average, if one is kept, at the weights before the first step, which replaces it unless its update is
    /// withheld.
    pub(crate) fn start_average(&mut self) -> Result<()> {
        let Replica { model, optimizer, shard_plan, .. } = self;
        let Some(ema) = optimizer.ema_mut() else { return Ok(()) };
        for Shard { flat, state_start } in shard_plan.own_shards().chain(shard_plan.copied_shards()) {
            let average = ema.view_mut().range(state_start, state_start + flat.len())?;
            ops::copy(model.own_weights().view().range(flat.start, flat.end)?, average)?;
        }
        Ok(())
    }

    /// Begins step `step`, from 1, which is then computed or replayed.
    ///
    /// # Errors
    /// `TrainError::Kernel` from a copy.
    pub(crate) fn begin_step(&mut self, step: u64) -> Result<()> {
        self.optimizer.set_n_steps(step);
        if self.short_gather.is_some() {
            self.model.set_has_whole_weights(false);
        }
        if let Some(place) = self.place_of_buffers(step) {
            self.model.copy_buffers_to(&mut self.buffers_before[place])?;
        }
        self.within = Within::Gradients;
        Ok(())
    }

    /// Lets the steps from now on be undone, of which up to `n_in_flight` are under way at a time.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`].
    pub(crate) fn prepare_to_undo(&mut self, n_in_flight: usize) -> Result<()> {
        if self.buffers_before.is_empty() {
            let copies = (0..n_in_flight).map(|_| self.model.copy_of_buffers());
            self.buffers_before = copies.collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// Undoes the passes of the step `step` and of those after it, whose updates were not applied.
    ///
    /// # Errors
    /// `TrainError::Kernel` from a copy.
    pub(crate) fn undo_passes(&mut self, step: u64) -> Result<()> {
        self.within = Within::Nothing;
        self.optimizer.set_n_steps(step - 1);
        if let Some(place) = self.place_of_buffers(step) {
            self.model.restore_buffers(&self.buffers_before[place])?;
        }
        Ok(())
    }

    /// The place of the registered buffers before step `step` among the copies.
    fn place_of_buffers(&self, step: u64) -> Option<usize> {
        Some(step.checked_rem(self.buffers_before.len() as u64)? as usize)
    }

    /// Computes one step; on a GPU asynchronous: enqueues it or adds it to the graph that is being captured, waits for nothing and
    /// allocates nothing.
    pub(crate) fn step(
        &mut self,
        mut inputs: StepInputs<'_>,
        shape: StepShape,
        purpose: StepPurpose,
    ) -> Result<()> {
        let (memory, outcome) = (inputs.scalars, inputs.outcome);
        let scalars = memory.view();
        let is_placed = self.world.world_size() > 1 || self.update_place != UpdatePlace::AfterBackward;
        // Buffers that are means over the ranks belong to the step, and are averaged before its update.
        let updates = is_placed && self.shares_of_buffers.is_empty() && self.updates_buckets(shape, purpose);
        let loss_scale = shape.loss_scale.map_or(1.0, f64::from_bits);
        let scale = loss_scale / self.expected_weight(shape.global_rows);
        let n_micro_batches = shape.partition.n_micro_batches(shape.global_rows);
        for index in 0..n_micro_batches {
            self.begin(StepPart::Data)?;
            let batch = inputs.micro_batch(shape, index)?;
            let micro_step = MicroStep { index, is_last: index + 1 == n_micro_batches };
            // Seed and step are among the scalars.
            let first_row = batch.first_row as u64;
            let dropout = Some(DropoutStep { seed: 0, step: 0, first_row, scalars: Some(scalars) });
            let pass = BackwardInputs { x: batch.rows.x, dropout, micro_step };
            self.begin(StepPart::Forward)?;
            self.forward(pass, purpose)?;
            self.loss(batch.rows, scale, scalars, micro_step)?;
            let with_update = updates && micro_step.is_last;
            self.begin(StepPart::Backward)?;
            self.backward(pass, shape.has_norm, purpose, with_update.then_some((memory, outcome)))?;
        }
        if purpose == StepPurpose::Rehearsal {
            return Ok(());
        }
        self.begin(StepPart::Update)?;
        self.average_buffers()?;
        if !updates {
            if shape.has_norm {
                self.sum_squares()?;
            }
            self.pass_on_gradients()?;
            (self.within, self.n_updated) = (Within::Update, 0);
            self.update(memory, outcome, shape, true)?;
        }
        self.within = Within::Nothing;
        self.end_step()
    }

    /// Begins a part of a step.
    fn begin(&mut self, part: StepPart) -> Result<()> {
        match self.model.device() {
            Device::Cpu => self.clock.begin(part, self.world),
            // Rows are there.
            Device::Cuda(_) if part == StepPart::Data => {}
            Device::Cuda(index) => drop(Gpu::get(index)?.mark(part as u8)?),
        }
        Ok(())
    }

    /// Ends the last part of a step.
    fn end_step(&mut self) -> Result<()> {
        match self.model.device() {
            Device::Cpu => self.clock.end_step(self.world),
            Device::Cuda(index) => drop(Gpu::get(index)?.mark(STEP_END)?),
        }
        Ok(())
    }

    /// Whether the weights of each bucket are updated as soon as its gradients are reduced: where the update needs nothing of all
    /// gradients.
    pub(crate) fn updates_buckets(&self, shape: StepShape, purpose: StepPurpose) -> bool {
        purpose == StepPurpose::Update
            && !shape.has_norm
            && self.whole_parameters.is_none()
            && !self.optimizer.has_first_pass()
            && self.grads.plan().way().updates_buckets()
    }

    /// The sums of the last step and its sum of squares, where it has one, in host memory; on the CPU.
    pub(crate) fn results(&self, shape: StepShape) -> Result<(&[f32], Option<f64>)> {
        let squares = self.sum_of_squares.view().as_slice::<f64>("step", "sum_of_squares")?[0];
        Ok((self.grads.tail()?.as_slice("step", "sums")?, shape.has_norm.then_some(squares)))
    }

    /// Computes the outputs of a micro-batch.
    fn forward(&mut self, inputs: BackwardInputs<'_>, purpose: StepPurpose) -> Result<()> {
        let Replica { world, model, rank_exchange, .. } = self;
        let mut pass = |ranks: Option<&mut dyn AllRanks>| {
            model.forward_over_ranks(inputs.x, inputs.dropout, ranks)?;
            Ok(())
        };
        match purpose {
            StepPurpose::Update => rank_exchange.run(world, pass)?,
            StepPurpose::Rehearsal => pass(None)?,
        }
        Ok(())
    }

    /// Computes the loss of the outputs; writes their gradient, `scale` times that of the sum of losses, and adds the sums, and this
    /// rank's vote, to the tail.
    fn loss(
        &mut self,
        rows: Batch<'_>,
        scale: f64,
        scalars: TensorRef<'_>,
        micro_step: MicroStep,
    ) -> Result<()> {
        let Batch { targets, weights, .. } = rows;
        let sums = self.grads.sums_output(scalars, micro_step)?;
        let (outputs, d_outputs) = self.model.outputs_and_gradient()?;
        Ok(self.loss.apply(outputs, targets, weights, scale, Some(d_outputs), sums)?)
    }

    /// Computes the gradients of a micro-batch; after the step's last one they are reduced over the ranks, with their squares summed on
    /// the way if the step `has_norm`.
    ///
    /// - `update`: scalars and memory for the outcome of a step whose buckets are updated on the way
    fn backward(
        &mut self,
        inputs: BackwardInputs<'_>,
        has_norm: bool,
        purpose: StepPurpose,
        update: Option<(&ScalarsMemory, Option<&Mapped>)>,
    ) -> Result<()> {
        let n_blocks = self.blocks_next_to_backward(inputs.micro_step);
        let Replica { world, model, optimizer, grads, sum_of_squares, rank_exchange, .. } = self;
        let outcome = update.and_then(|(_, outcome)| outcome);
        let report = outcome.map(|to| StepReport::new(to, None)).transpose()?;
        let mut updates =
            update.map(|(scalars, _)| BucketUpdates { optimizer, scalars, report: report.as_ref() });
        let updates = updates.as_mut().map(|updates| updates as &mut dyn UpdateBucket);
        let device = model.device();
        let pass = || -> Result<()> {
            if purpose == StepPurpose::Rehearsal {
                return Ok(grads.rehearse_backward(world, model, inputs)?);
            }
            let squares = has_norm.then_some(sum_of_squares);
            let pass = |ranks: Option<&mut dyn AllRanks>| {
                grads.backward(world, model, inputs, squares, ranks, updates)
            };
            Ok(rank_exchange.run(world, pass)?)
        };
        match device {
            Device::Cuda(index) if n_blocks > 0 => Gpu::get(index)?.next_to_collectives(n_blocks, pass),
            Device::Cuda(_) | Device::Cpu => pass(),
        }
    }

    /// Thread blocks of the collectives that reduce gradients while backward computes others, or multiprocessors that are left free for
    /// the update next to it; 0 where there is neither.
    fn blocks_next_to_backward(&self, micro_step: MicroStep) -> u32 {
        let TrainerOptions { overlap, zero, .. } = self.options;
        let reduces = micro_step.is_last || zero == ZeroStage::Gradients;
        match self.update_place {
            // Also where the norm of a step that is logged keeps its update after backward: bits do not depend on what is logged.
            UpdatePlace::BesideBackward { n_free } if micro_step.is_last => n_free,
            UpdatePlace::BesideBackward { .. } => 0,
            UpdatePlace::AfterBackward if overlap && reduces => self.world.collective_blocks(),
            UpdatePlace::AfterBackward => 0,
        }
    }

    /// Sums the squares of the reduced gradients.
    fn sum_squares(&mut self) -> Result<()> {
        let Replica { world, grads, shard_plan, sum_of_squares, .. } = self;
        if shard_plan.is_divided() {
            for block in shard_plan.blocks() {
                shard_plan.reduce(world, grads.flat_mut(), block)?;
            }
        }
        Ok(grads.sum_of_squares(world, sum_of_squares)?)
    }

    /// Completes a rehearsed step on the CPU with `gradients` in place of its own, flat in the layout's order.
    pub(crate) fn update_by(
        &mut self,
        gradients: &[f32],
        inputs: &StepInputs<'_>,
        shape: StepShape,
    ) -> Result<()> {
        let n = gradients.len();
        let flat = self.grads.flat_mut().view_mut().range(0, n)?;
        ops::copy(TensorRef::from_slice(gradients, &[n])?, flat)?;
        if shape.has_norm {
            self.sum_squares()?;
        }
        self.update(inputs.scalars, inputs.outcome, shape, true)
    }

    /// Passes the gradients of shards on to the ranks that hold copies of their state, and waits until all have them: once a rank updates
    /// anything, each can [complete](Replica::complete_update) the step alone.
    fn pass_on_gradients(&mut self) -> Result<()> {
        if self.shard_plan.copy_of().is_none() {
            return Ok(());
        }
        self.grads.pass_on(self.world)?;
        self.within = Within::Prepared;
        Ok(self.world.tensor_group().barrier()?)
    }

    /// Completes the update of this rank's shards and copies, without the other ranks: their weights are not gathered.
    pub(crate) fn complete_update(&mut self, scalars: &ScalarsMemory, shape: StepShape) -> Result<()> {
        if self.within == Within::Prepared {
            self.n_updated = 0;
        }
        self.update(scalars, None, shape, false)?;
        self.within = Within::Nothing;
        Ok(())
    }

    /// Updates the weights, unless the step's sums withhold the update; `gathers` is false for what is left of an update without the others.
    fn update(
        &mut self,
        memory: &ScalarsMemory,
        outcome: Option<&Mapped>,
        shape: StepShape,
        gathers: bool,
    ) -> Result<()> {
        let (max_norm, needs_norm) = (self.options.max_norm(), self.needs_norm(shape.loss_scale.is_some()));
        let sharing = Sharing {
            shard_plan: &self.shard_plan,
            short_gather: self.short_gather.as_ref(),
            whole_parameters: self.whole_parameters.as_mut(),
            n_updated: &mut self.n_updated,
            gathers,
        };
        let Replica { world, model, optimizer, grads, sum_of_squares, .. } = self;
        let squares = sum_of_squares.view();
        let report = |to| StepReport::new(to, shape.has_norm.then_some(squares));
        let report = outcome.map(report).transpose()?;
        let update_inputs = |sums| UpdateInputs {
            scalars: memory.view(),
            sums,
            sum_of_squares: needs_norm.then_some(squares),
            max_norm,
            report: report.as_ref(),
        };
        let group_scalars = memory.group_scalars();
        if sharing.shard_plan.is_divided() {
            // The gradients are written meanwhile.
            let mut sums = [0f32; STEP_SUMS_LEN];
            sums.copy_from_slice(grads.tail()?.as_slice("step", "sums")?);
            let inputs = &update_inputs(TensorRef::from_slice(&sums, &[STEP_SUMS_LEN])?);
            let scale = UpdateScale::Device(DeviceScale { inputs, group_scalars });
            return update_by_block(
                world,
                model,
                optimizer,
                grads,
                sharing.shard_plan,
                shape.has_norm,
                scale,
            );
        }
        let inputs = &update_inputs(grads.tail()?);
        let scale = UpdateScale::Device(DeviceScale { inputs, group_scalars });
        update(world, model, optimizer, grads, sharing, scale)?;
        report.as_ref().map_or(Ok(()), |report| Ok(report.complete(inputs.sums)?))
    }

    /// Completes the master weights on all ranks. Collective.
    pub(crate) fn gather_weights(&mut self) -> Result<()> {
        let Replica { world, model, shard_plan, .. } = self;
        if model.has_whole_weights() {
            return Ok(());
        }
        for block in shard_plan.blocks() {
            shard_plan.gather(world, model.weights_mut().master, block)?;
        }
        model.set_has_whole_weights(true);
        Ok(())
    }

    /// Replaces the registered buffers that layers update on their own rows by their means over the ranks.
    fn average_buffers(&mut self) -> Result<()> {
        let n_ranks = self.world.world_size();
        if n_ranks == 1 {
            return Ok(());
        }
        let Replica { world, model, shares_of_buffers: shares, .. } = self;
        for (buffer, share) in model.averaged_buffers_mut().zip(&mut *shares) {
            // In this order nothing overflows.
            let share_of_mean = (1.0 / n_ranks as f64).into();
            ops::map(MapOp::Mul, Input::Tensor(buffer.view()), share_of_mean, share.view_mut())?;
        }
        if !shares.is_empty() {
            let group = world.tensor_group();
            let mut sum = |share: &mut Tensor| group.all_reduce(ReduceOp::Sum, share.view_mut());
            group.together(|| shares.iter_mut().try_for_each(&mut sum))?;
        }
        for (buffer, share) in model.averaged_buffers_mut().zip(&*shares) {
            ops::copy(share.view(), buffer.view_mut())?;
        }
        Ok(())
    }
}

/// Where one GPU updates the weights of steps whose update needs nothing of all gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpdatePlace {
    /// After backward.
    AfterBackward,
    /// Beside backward, which computes the gradients of other buckets: as soon as a bucket is finished.
    BesideBackward {
        /// Multiprocessors that the matmuls of backward leave free for it.
        n_free: u32,
    },
}

/// Moves the weights to memory that ranks exchange: they gather them after each update.
fn move_to_exchanged(world: &World, model: &mut Network) -> Result<()> {
    let device = model.device();
    model.move_weights(|len, dtype| world.exchange_zeros(MemoryUse::Parameters, &[len], dtype, device))?;
    // The pool would keep the memory of the old ones.
    Ok(memory::empty_cache_of(device)?)
}
