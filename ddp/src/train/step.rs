//! Forward, backward and update of one step: run on the CPU, enqueued on a GPU.

use ddp_comm::{Rank, ReduceOp, World};
use ddp_kernels::ops::{self, Input, LossSums, MapOp, StepReport, UpdateInputs};
use ddp_kernels::{DType, MemoryUse, Tensor, TensorRef, memory};

use crate::data::datasets::batch::Batch;
use crate::data::step_rows::{MicroBatch, StepRows};
use crate::exchange::bucket_plan::STEP_VOTE;
use crate::exchange::gradients::{Gradients, Vote};
use crate::exchange::plan::ExchangePlan;
use crate::exchange::rank_exchange::RankExchange;
use crate::exchange::shard_plan::{Shard, ShardPlan};
use crate::exchange::weight_gather::ShortGather;
use crate::exchange::whole_parameters::WholeParameters;
use crate::exchange::{BackwardInputs, MicroStep};
use crate::model::{AllRanks, DropoutStep, LossHead, Network, WeightsMut};
use crate::optim::optimizer::Optimizer;
use crate::optim::update_scale::{DeviceScale, UpdateScale};
use crate::train::error::{Result, TrainError};
use crate::train::gpu_step::GpuStep;
use crate::train::options::TrainerOptions;
use crate::train::step_info::{StepOutcome, StepRequest, StepShape};
use crate::train::withheld::{self, NonFinite, Withheld};

/// Model, loss, gradients and optimiser of one rank.
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
    /// First pass of the optimiser, if it has two.
    whole_parameters: Option<WholeParameters>,
    /// `Σ grads²`, `[1]` f64, on the model's device.
    sum_of_squares: Tensor,
    /// Values that layers exchange within a pass.
    rank_exchange: RankExchange,
    /// This rank's summands of the registered buffers that are means over the ranks.
    shares_of_buffers: Vec<Tensor>,
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
            // Ranks gather them after each update.
            let device = model.device();
            model.move_weights(|len, dtype| {
                world.exchange_zeros(MemoryUse::Parameters, &[len], dtype, device)
            })?;
            // The pool would keep the memory of the old ones.
            memory::empty_cache(device)?;
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
            options,
        })
    }

    /// Whether the update needs the norm of the gradient.
    pub(crate) fn needs_norm(&self, loss_scale: Option<f64>) -> bool {
        let Self { options, .. } = self;
        options.clip_grad_norm > 0.0 || loss_scale.is_some() || options.nonfinite == NonFinite::Withhold
    }

    /// Starts the moving average, if one is kept, at the weights before the first step, which replaces it unless its update is
    /// withheld.
    pub(crate) fn start_average(&mut self) -> Result<()> {
        let Replica { model, optimizer, shard_plan, .. } = self;
        let Some(ema) = optimizer.ema_mut() else { return Ok(()) };
        for Shard { flat, state_start } in shard_plan.own_shards() {
            let average = ema.view_mut().range(state_start, state_start + flat.len())?;
            ops::copy(model.own_weights().view().range(flat.start, flat.end)?, average)?;
        }
        Ok(())
    }

    /// Enqueues a step on the rows in slot `slot` on the GPU's streams; asynchronous.
    pub(crate) fn enqueue(&mut self, gpu: &mut GpuStep, slot: usize, shape: StepShape) -> Result<()> {
        let inputs = gpu.slot(slot);
        let (scalars, group_scalars) = (inputs.scalars().view(), inputs.group_scalars());
        let expected = self.loss.expected_weight(shape.global_rows, self.model.n_outputs());
        let loss_scale = shape.loss_scale.map(f64::from_bits);
        let n_micro_batches = shape.partition.n_micro_batches(shape.global_rows);
        let first_own = shape.partition.first_own_row(shape.global_rows);
        for index in 0..n_micro_batches {
            let positions = shape.partition.micro_batch(shape.global_rows, index);
            let start = shape.partition.n_own_rows_before(shape.global_rows, index);
            let rows = inputs.batch(start..start + positions.len())?;
            // The scalars hold the position of this rank's first row.
            let batch = MicroBatch { first_row: positions.start - first_own, rows };
            let dropout = Some(self.dropout(batch.first_row, 0, Some(scalars)));
            let micro_step = MicroStep { index, is_last: index + 1 == n_micro_batches };
            self.forward(
                batch,
                dropout,
                loss_scale.unwrap_or(1.0) / expected,
                micro_step,
                Vote::Device(scalars),
            )?;
            self.backward(batch, dropout, micro_step, shape.has_norm)?;
        }
        self.average_buffers()?;
        if shape.has_norm {
            self.grads.sum_of_squares(self.world, &mut self.sum_of_squares)?;
        }
        let (clip, needs_norm) = (self.options.clip_grad_norm, self.needs_norm(loss_scale));
        let sharing = Sharing {
            shard_plan: &self.shard_plan,
            short_gather: self.short_gather.as_ref(),
            whole_parameters: self.whole_parameters.as_mut(),
        };
        let Replica { world, model, optimizer, grads, sum_of_squares, .. } = self;
        let squares = shape.has_norm.then(|| sum_of_squares.view());
        let report = StepReport::new(gpu.outcome_of(slot), squares)?;
        let inputs = UpdateInputs {
            scalars,
            sums: grads.tail()?,
            sum_of_squares: needs_norm.then(|| sum_of_squares.view()),
            max_norm: if clip > 0.0 { clip } else { f64::INFINITY },
            report: Some(&report),
        };
        let scale = UpdateScale::Device(DeviceScale { inputs: &inputs, group_scalars });
        update(world, model, optimizer, grads, sharing, scale)?;
        Ok(report.complete(inputs.sums)?)
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

    /// Computes forward and backward of the micro-batches of a step without any effect on it: no rank waits for another. For work that
    /// the first step of a shape needs beforehand.
    pub(crate) fn rehearse(&mut self, gpu: &GpuStep, slot: usize, shape: StepShape) -> Result<()> {
        let inputs = gpu.slot(slot);
        let scalars = inputs.scalars().view();
        let first_own = shape.partition.first_own_row(shape.global_rows);
        // The others have the same matmuls.
        let mut seen = Vec::new();
        for index in 0..shape.partition.n_micro_batches(shape.global_rows) {
            let positions = shape.partition.micro_batch(shape.global_rows, index);
            let kind = (positions.len(), index > 0);
            if seen.contains(&kind) {
                continue;
            }
            seen.push(kind);
            let start = shape.partition.n_own_rows_before(shape.global_rows, index);
            let rows = inputs.batch(start..start + positions.len())?;
            let batch = MicroBatch { first_row: positions.start - first_own, rows };
            let dropout = Some(self.dropout(batch.first_row, 0, Some(scalars)));
            // The last one would be exchanged with its vote.
            let micro_step = MicroStep { index, is_last: false };
            self.model.forward(batch.rows.x, dropout)?;
            self.apply_loss(batch, 1.0, micro_step, Vote::Device(scalars))?;
            let inputs = BackwardInputs { x: batch.rows.x, dropout, micro_step };
            self.grads.rehearse_backward(self.world, &mut self.model, inputs)?;
        }
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

    /// Runs one step on this rank's rows; `step` is its number, from 1.
    pub(crate) fn step_on_cpu(
        &mut self,
        rows: &mut impl StepRows,
        request: StepRequest,
        step: u64,
        loss_scale: Option<f64>,
    ) -> Result<StepOutcome> {
        let n_outputs = self.model.n_outputs();
        let expected_weight = self.loss.expected_weight(rows.global_rows(), n_outputs);
        let n_micro_batches = rows.n_micro_batches();
        for index in 0..n_micro_batches {
            let batch = rows.micro_batch(index)?;
            let dropout = Some(self.dropout(batch.first_row, step - 1, None));
            let scale = loss_scale.unwrap_or(1.0) / expected_weight;
            let micro_step = MicroStep { index, is_last: index + 1 == n_micro_batches };
            self.forward(batch, dropout, scale, micro_step, Vote::Host(request.vote))?;
            self.backward(batch, dropout, micro_step, false)?;
        }
        self.average_buffers()?;
        let tail = self.grads.tail()?.as_slice::<f32>("step", "sums")?;
        let (sums, votes) = (LossSums::load(tail), tail[STEP_VOTE] as u64);
        if let Some(withheld) = withheld::by_loss(&sums, request.loss_limit) {
            let withheld = Some(withheld.check(self.options.nonfinite, step, &sums, None)?);
            self.optimizer.begin_step();
            return Ok(StepOutcome { sums, grad_norm: None, votes, skipped: false, withheld });
        }
        // With row weights the true divisor is known only after the reduction.
        let is_weighted = self.loss.is_weighted(rows.has_weights());
        let mean_scale = if is_weighted { sums.mean_scale(expected_weight) } else { 1.0 };
        let scale = mean_scale / loss_scale.unwrap_or(1.0);
        let Updated { grad_norm, skipped, withheld } =
            self.update_on_cpu(scale, request, loss_scale, sums)?;
        Ok(StepOutcome { sums, grad_norm, votes, skipped, withheld })
    }

    /// Computes outputs and loss of a micro-batch; writes the gradient of the outputs, `scale` times that of the sum of losses,
    /// and adds the sums, and this rank's vote, to the tail.
    fn forward(
        &mut self,
        batch: MicroBatch<'_>,
        dropout: Option<DropoutStep<'_>>,
        scale: f64,
        micro_step: MicroStep,
        vote: Vote<'_>,
    ) -> Result<()> {
        let Replica { world, model, rank_exchange, .. } = self;
        let pass =
            |ranks: Option<&mut dyn AllRanks>| Ok(model.forward_over_ranks(batch.rows.x, dropout, ranks)?);
        rank_exchange.run(world, pass)?;
        self.apply_loss(batch, scale, micro_step, vote)
    }

    /// Computes the loss of the outputs, as [`Replica::forward`] says.
    fn apply_loss(
        &mut self,
        batch: MicroBatch<'_>,
        scale: f64,
        micro_step: MicroStep,
        vote: Vote<'_>,
    ) -> Result<()> {
        let n_rows = batch.rows.x.shape().rows_cols().0;
        let sums = self.grads.sums_output(vote, micro_step)?;
        let (outputs, d_outputs) = self.model.outputs_and_gradient(n_rows)?;
        let Batch { targets, weights, .. } = batch.rows;
        Ok(self.loss.apply(outputs, targets, weights, scale, Some(d_outputs), sums)?)
    }

    /// Computes the gradients of a micro-batch; after the step's last one they are reduced over the ranks, with their squares summed on
    /// the way if the step `has_norm`.
    fn backward(
        &mut self,
        batch: MicroBatch<'_>,
        dropout: Option<DropoutStep<'_>>,
        micro_step: MicroStep,
        has_norm: bool,
    ) -> Result<()> {
        let Replica { world, model, grads, sum_of_squares, rank_exchange, .. } = self;
        let squares = has_norm.then_some(sum_of_squares);
        let inputs = BackwardInputs { x: batch.rows.x, dropout, micro_step };
        let pass = |ranks: Option<&mut dyn AllRanks>| grads.backward(world, model, inputs, squares, ranks);
        Ok(rank_exchange.run(world, pass)?)
    }

    /// Clips and updates, unless the update is withheld or the gradient of a scaled loss is not finite. `scale` turns the
    /// accumulated gradient into that of the mean.
    fn update_on_cpu(
        &mut self,
        scale: f64,
        request: StepRequest,
        loss_scale: Option<f64>,
        sums: LossSums,
    ) -> Result<Updated> {
        let StepRequest { want_grad_norm, loss_limit, .. } = request;
        let clip = self.options.clip_grad_norm;
        let needs_norm = self.needs_norm(loss_scale);
        let Replica {
            world,
            model,
            optimizer,
            grads,
            shard_plan,
            short_gather,
            whole_parameters,
            sum_of_squares,
            options,
            ..
        } = self;
        let mut norm = |grads: &Gradients| {
            grads.sum_of_squares(world, sum_of_squares)?;
            Ok::<_, TrainError>(sum_of_squares.view().as_slice::<f64>("step", "norm")?[0].sqrt() * scale)
        };
        let mut grad_norm = None;
        if needs_norm {
            // The norm is needed before the first weight changes: then all blocks are reduced first.
            if shard_plan.is_divided() {
                for block in shard_plan.blocks() {
                    shard_plan.reduce(world, grads.flat_mut(), block)?;
                }
            }
            grad_norm = Some(norm(grads)?);
        }
        if loss_scale.is_some() && grad_norm.is_some_and(|norm| !norm.is_finite()) {
            return Ok(Updated { grad_norm, skipped: true, withheld: None });
        }
        if let Some(withheld) = withheld::by_gradient(&sums, grad_norm, loss_limit) {
            let step = optimizer.n_steps() + 1;
            let withheld = Some(withheld.check(options.nonfinite, step, &sums, grad_norm)?);
            optimizer.begin_step();
            return Ok(Updated { grad_norm, skipped: false, withheld });
        }
        // As torch.nn.utils.clip_grad_norm_.
        let is_clipped = clip > 0.0;
        let clip_scale = grad_norm.filter(|_| is_clipped).map_or(1.0, |norm| (clip / (norm + 1e-6)).min(1.0));
        let scale = UpdateScale::Host(scale * clip_scale);
        optimizer.begin_step();
        if shard_plan.is_divided() {
            for block in shard_plan.blocks() {
                if grad_norm.is_none() {
                    shard_plan.reduce(world, grads.flat_mut(), block)?;
                }
                let own = shard_plan.own_shard(block);
                let own_grads = grads.of_shard(&own)?;
                let weights = model.weights_mut().range(&own.flat)?;
                optimizer.step_on(weights, own_grads, scale, own.flat, own.state_start)?;
                shard_plan.gather(world, model.weights_mut().master, block)?;
                // The other ranks' shards arrive as f32 weights only.
                model.refresh_compute_weights(block.clone())?;
            }
            let rest = shard_plan.rest();
            let rest_grads = grads.of_shard(&rest)?;
            let weights = model.weights_mut().range(&rest.flat)?;
            optimizer.step_on(weights, rest_grads, scale, rest.flat, rest.state_start)?;
        } else {
            let (short_gather, whole_parameters) = (short_gather.as_ref(), whole_parameters.as_mut());
            let sharing = Sharing { shard_plan, short_gather, whole_parameters };
            update(world, model, optimizer, grads, sharing, scale)?;
        }
        if want_grad_norm && grad_norm.is_none() {
            let norm = norm(grads)?;
            // As on a GPU: known only after the update, but before a checkpoint can save it.
            grad_norm = Some(norm);
            if !norm.is_finite() {
                Withheld::Gradient.check(NonFinite::Fail, optimizer.n_steps(), &sums, grad_norm)?;
            }
        }
        Ok(Updated { grad_norm, skipped: false, withheld: None })
    }

    fn dropout<'a>(&self, first_row: usize, step: u64, scalars: Option<TensorRef<'a>>) -> DropoutStep<'a> {
        let (seed, first_row) = (self.options.seed, first_row as u64);
        DropoutStep { seed, step, first_row, scalars }
    }
}

/// Outcome of the update on the CPU.
struct Updated {
    grad_norm: Option<f64>,
    skipped: bool,
    withheld: Option<Withheld>,
}

/// Division of an update among ranks.
struct Sharing<'a> {
    shard_plan: &'a ShardPlan,
    short_gather: Option<&'a ShortGather>,
    whole_parameters: Option<&'a mut WholeParameters>,
}

/// Updates the weights whose reduced gradients this rank holds: all of them, or its shard of each block, whose weights the ranks
/// then gather while the next block is updated.
///
/// Without a gather in a short format the master weights are sent in f32, and the compute weights are rounded from them again, so that
/// every rank holds the model. It costs as many bytes as the second half of an all-reduce.
fn update(
    world: &World,
    model: &mut Network,
    optimizer: &mut Optimizer,
    grads: &Gradients,
    sharing: Sharing<'_>,
    scale: UpdateScale<'_>,
) -> Result<()> {
    let Sharing { shard_plan, short_gather, whole_parameters } = sharing;
    if let Some(whole_parameters) = whole_parameters {
        let weights = model.own_weights().view();
        let reduced = |shard: &Shard| grads.of_shard(shard);
        whole_parameters.complete(world, weights, optimizer, reduced, shard_plan, scale)?;
    }
    if !shard_plan.is_sharded() {
        let rest = shard_plan.rest();
        let rest_grads = grads.of_shard(&rest)?;
        let weights = model.weights_mut().range(&rest.flat)?;
        return Ok(optimizer.step_on(weights, rest_grads, scale, rest.flat, rest.state_start)?);
    }
    if let Some(short_gather) = short_gather {
        let mut weights = model.weights_mut();
        return world.tensor_group().scope(|scope| {
            for (index, block) in shard_plan.blocks().iter().enumerate() {
                let (mut of_block, after) = weights.split_at(block.len())?;
                weights = after;
                let own = shard_plan.own_shard(block);
                let range = own.flat.start - block.start..own.flat.end - block.start;
                let own_weights = of_block.reborrow().range(&range)?;
                optimizer.step_on(own_weights, grads.of_shard(&own)?, scale, own.flat, own.state_start)?;
                short_gather.start(scope, block, index, of_block)?;
                scope.progress()?;
            }
            Ok(())
        });
    }
    let flat_len = model.layout().flat_len();
    let mut weights = model.weights_mut().master;
    world.tensor_group().scope(|scope| {
        for block in shard_plan.blocks() {
            let (mut of_block, after) = weights.split_at(block.len())?;
            weights = after;
            let own = shard_plan.own_shard(block);
            let master =
                of_block.reborrow().range(own.flat.start - block.start, own.flat.end - block.start)?;
            // The compute weights are rounded from the gathered weights below.
            let own_weights = WeightsMut { master, compute: None };
            optimizer.step_on(own_weights, grads.of_shard(&own)?, scale, own.flat, own.state_start)?;
            scope.all_gather_in_place(of_block)?;
            scope.progress()?;
        }
        Ok::<_, TrainError>(())
    })?;
    Ok(model.refresh_compute_weights(0..flat_len)?)
}
