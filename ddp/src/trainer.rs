//! One optimiser step: micro-batches forward and backward, gradients over the ranks, clipping, update.
//!
//! On the CPU a step is over when [`Trainer::step`] returns. On a GPU it has been asked for then, and its outcome is read
//! while the next one computes: [`Trainer::outcome`] gives outcomes in order, on both.

use std::collections::VecDeque;
use std::ops::Range;

use ddp_comm::World;
use ddp_kernels::cuda::{Gpu, Graph};
use ddp_kernels::ops::{self, LossSums, StepScalars, SumsOutput, UpdateInputs};
use ddp_kernels::{DType, Device, MemoryUse, Tensor, TensorMut, TensorRef};

use crate::batches::Batch;
use crate::buckets::{BucketPlan, TAIL_ELEMENTS};
use crate::config::CommDtype;
use crate::device_rows::{DeviceRows, DeviceShape};
use crate::error::{Error, Result};
use crate::gpu_step::{GpuStep, GraphPlan, N_SLOTS, StepShape};
use crate::gradient_exchange::{CompressedGradients, LocalGradients, ReducedGradients, decompress};
use crate::model::{LossHead, Mlp, Optimizer, UpdateScale};
use crate::shard::{RankCut, micro_range};
use crate::update_plan::UpdatePlan;

pub use crate::gpu_step::StepAbout;
pub use crate::model::DropoutStep;

/// Everything that a step needs, made once.
#[derive(Debug)]
pub struct Trainer<'w> {
    parts: Parts<'w>,
    n_steps: u64,
    /// Outcomes of steps on the CPU that nobody has read.
    done: VecDeque<(StepAbout, StepOutcome)>,
    /// What steps on a GPU need.
    gpu: Option<GpuStep>,
}

/// What a step computes with.
#[derive(Debug)]
struct Parts<'w> {
    world: &'w World,
    model: Mlp,
    loss: LossHead,
    optimizer: Optimizer,
    /// Flat gradients in the weights' layout, and the tail with the step's sums.
    grads: Tensor,
    /// The gradients as they travel, where that is in another format.
    wire: Option<Tensor>,
    buckets: BucketPlan,
    updates: UpdatePlan,
    options: TrainerOptions,
}

/// Whether steps on a GPU are captured once and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum GraphMode {
    /// Where the driver and NCCL can; else kernel by kernel.
    #[default]
    Auto,
    /// Always; where that is not possible, it is an error.
    On,
    /// Never.
    Off,
}

/// What the config says of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainerOptions {
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Largest norm of the gradient; 0 for any.
    pub clip_grad_norm: f64,
    /// Largest bucket in bytes.
    pub bucket_bytes: usize,
    /// Whether buckets are reduced while backward computes.
    pub overlap: bool,
    /// Number format of gradients between GPUs.
    pub comm_dtype: CommDtype,
    /// Elements of the flat buffer from which ranks that share memory divide the update between them.
    pub divide_update_from: usize,
    /// Whether steps on a GPU are graphs.
    pub graph: GraphMode,
}

impl Default for TrainerOptions {
    /// No clipping; buckets of 32 MiB, reduced while backward computes; the update divided from 32 MiB of weights on,
    /// which no processor's private cache holds.
    fn default() -> Self {
        TrainerOptions {
            seed: 0,
            clip_grad_norm: 0.0,
            bucket_bytes: 32 << 20,
            overlap: true,
            comm_dtype: CommDtype::F32,
            divide_update_from: 8 << 20,
            graph: GraphMode::Auto,
        }
    }
}

/// One rank's part of a global batch.
#[derive(Debug, Clone, Copy)]
pub struct MicroBatch<'a> {
    /// Its rows; there may be none.
    pub rows: Batch<'a>,
    /// Place of its first row in the global batch.
    pub first_row: usize,
}

/// This rank's rows of one global batch.
pub trait StepRows {
    /// How global batches are cut into this rank's passes.
    fn cut(&self) -> RankCut;

    /// Rows of the global batch over all ranks.
    fn global_rows(&self) -> usize;

    /// How many passes this rank makes over its rows.
    fn n_micro_batches(&self) -> usize {
        self.cut().n_passes(self.global_rows())
    }

    /// Places of this rank's rows in the global batch.
    fn own_rows(&self) -> Range<usize> {
        self.cut().own_rows(self.global_rows())
    }

    /// Whether rows have weights.
    fn has_weights(&self) -> bool;

    /// Micro-batch `index`, in host memory.
    ///
    /// # Errors
    /// Those of taking the rows.
    fn micro_batch(&mut self, index: usize) -> Result<MicroBatch<'_>>;

    /// What the rows look like on their way to a GPU.
    fn device_shape(&self) -> DeviceShape;

    /// Puts all of this rank's rows on their way to `to`, made for rows of [`StepRows::device_shape`].
    ///
    /// # Errors
    /// Those of taking the rows and of the copies.
    fn send(&mut self, to: &mut DeviceRows) -> Result<()>;
}

/// What a step came to, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Sums over the rows of all ranks.
    pub sums: LossSums,
    /// 2-norm of the gradient before clipping, where it was asked for or needed.
    pub grad_norm: Option<f64>,
}

impl<'w> Trainer<'w> {
    /// A trainer before its first step. All ranks compare their buckets.
    ///
    /// # Errors
    /// As making tensors, and those of the comparison.
    pub fn new(
        world: &'w World,
        model: Mlp,
        loss: LossHead,
        optimizer: Optimizer,
        options: TrainerOptions,
    ) -> Result<Self> {
        let (flat_len, device) = (model.layout().flat_len(), model.device());
        let buckets = BucketPlan::new(model.layout(), options.bucket_bytes);
        world.group().agree_lengths(&buckets.lens())?;
        let updates = UpdatePlan::new(world, flat_len, options.divide_update_from);
        let zeros = |n: usize, dtype| Tensor::zeros_for(MemoryUse::Gradients, &[n], dtype, device);
        let grads = zeros(flat_len + TAIL_ELEMENTS, DType::F32)?;
        let gpu = match device {
            Device::Cpu => None,
            Device::Cuda(index) => Some(GpuStep::new(Gpu::get(index)?, options.graph)?),
        };
        let is_compressed = gpu.is_some() && world.world_size() > 1 && options.comm_dtype == CommDtype::Bf16;
        let wire = if is_compressed { Some(zeros(flat_len, DType::BF16)?) } else { None };
        let parts = Parts { world, model, loss, optimizer, grads, wire, buckets, updates, options };
        Ok(Trainer { parts, n_steps: 0, done: VecDeque::with_capacity(1), gpu })
    }

    /// The model.
    pub fn model(&self) -> &Mlp {
        &self.parts.model
    }

    /// The model and its loss, for passes without training.
    pub fn model_and_loss(&mut self) -> (&mut Mlp, &LossHead) {
        (&mut self.parts.model, &self.parts.loss)
    }

    /// Steps that were asked for.
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.parts.optimizer.lr()
    }

    /// Steps that were captured as graphs; 0 on the CPU.
    pub fn n_graphs(&self) -> usize {
        self.gpu.as_ref().map_or(0, GpuStep::n_graphs)
    }

    /// One step over a global batch, of which `rows` holds this rank's part. [`Trainer::outcome`] tells what it came to.
    ///
    /// # Errors
    /// Those of the operations and collectives; on the CPU also [`Error::LossNotFinite`], on all ranks alike and before the
    /// weights change.
    pub fn step(&mut self, rows: &mut impl StepRows, want_grad_norm: bool) -> Result<()> {
        let about = StepAbout { step: self.n_steps + 1, n_rows: rows.global_rows(), lr: self.lr() };
        if self.gpu.is_some() {
            self.step_on_gpu(rows, want_grad_norm, about)?;
        } else {
            let outcome = self.parts.step_on_cpu(rows, want_grad_norm, self.n_steps)?;
            self.done.push_back((about, outcome));
        }
        self.n_steps += 1;
        Ok(())
    }

    /// One step, and what it came to; on a GPU the host waits for it.
    ///
    /// # Errors
    /// As [`Trainer::step`] and [`Trainer::outcome`].
    pub fn step_and_wait(&mut self, rows: &mut impl StepRows, want_grad_norm: bool) -> Result<StepOutcome> {
        self.step(rows, want_grad_norm)?;
        let mut last = None;
        while let Some((_, outcome)) = self.outcome(true)? {
            last = Some(outcome);
        }
        Ok(last.expect("a step was asked for"))
    }

    /// What the oldest step came to that nobody has asked about. On a GPU the newest step is left to compute, unless `all`
    /// are asked for, and the host waits for the others.
    ///
    /// # Errors
    /// [`Error::LossNotFinite`], on all ranks alike; on a GPU whatever went wrong in the work of the step.
    pub fn outcome(&mut self, all: bool) -> Result<Option<(StepAbout, StepOutcome)>> {
        match &mut self.gpu {
            Some(gpu) => gpu.outcome(self.parts.world, if all { 0 } else { N_SLOTS - 1 }),
            None => Ok(self.done.pop_front()),
        }
    }

    fn step_on_gpu(
        &mut self,
        rows: &mut impl StepRows,
        want_grad_norm: bool,
        about: StepAbout,
    ) -> Result<()> {
        let Trainer { parts, gpu: Some(gpu), .. } = self else { return Ok(()) };
        let slot = (self.n_steps % N_SLOTS as u64) as usize;
        let own = rows.own_rows();
        let shape = StepShape {
            own_rows: own.len(),
            global_rows: rows.global_rows(),
            n_micro: rows.n_micro_batches(),
            has_norm: want_grad_norm || parts.options.clip_grad_norm > 0.0,
        };
        let expected = parts.loss.expected_weight(shape.global_rows, parts.model.spec().n_outputs());
        let scalars = StepScalars {
            lr: about.lr,
            step: about.step,
            seed: parts.options.seed,
            first_row: own.start as u64,
            expected_weight: match parts.loss.is_weighted(rows.has_weights()) {
                true => expected,
                false => 0.0,
            },
            ..StepScalars::default()
        };
        gpu.send(slot, rows, scalars)?;
        parts.optimizer.begin_step();
        match gpu.graph_plan(shape, slot) {
            GraphPlan::Eager => parts.ask(gpu, slot, shape)?,
            GraphPlan::Replay => gpu.replay(shape, slot)?,
            GraphPlan::Capture => {
                let captured = Graph::capture(gpu.gpu(), || parts.ask(gpu, slot, shape));
                match gpu.keep(shape, slot, captured)? {
                    true => gpu.replay(shape, slot)?,
                    false => parts.ask(gpu, slot, shape)?,
                }
            }
        }
        let flat_len = parts.model.layout().flat_len();
        gpu.asked(slot, &parts.grads, flat_len, (shape.has_norm, scalars.expected_weight), about)
    }
}

impl Parts<'_> {
    /// Puts a step on the rows in slot `slot` into the GPU's streams; nothing waits.
    fn ask(&mut self, gpu: &mut GpuStep, slot: usize, shape: StepShape) -> Result<()> {
        let (inputs, squares) = gpu.slot_and_squares(slot);
        let scalars = inputs.scalars().view();
        let expected = self.loss.expected_weight(shape.global_rows, self.model.spec().n_outputs());
        for index in 0..shape.n_micro {
            let rows = micro_range(0..shape.own_rows, index, shape.n_micro);
            // The place of this rank's first row is among the scalars.
            let batch = MicroBatch { first_row: rows.start, rows: inputs.batch(rows)? };
            let dropout = self.dropout(batch.first_row, 0, Some(scalars));
            self.forward(batch, dropout, 1.0 / expected, index > 0)?;
            self.backward(batch, dropout, index > 0, index + 1 == shape.n_micro)?;
        }
        let flat_len = self.model.layout().flat_len();
        let (grads, sums) = split_tail(self.grads.view(), flat_len)?;
        if shape.has_norm {
            ops::sum_of_squares(grads, squares.view_mut(), false)?;
        }
        let is_clipped = self.options.clip_grad_norm > 0.0;
        let inputs = UpdateInputs {
            scalars,
            sums,
            sum_of_squares: is_clipped.then(|| squares.view()),
            max_norm: self.options.clip_grad_norm,
        };
        let weights = self.model.weights_mut();
        Ok(self.optimizer.step_on(weights, grads, UpdateScale::Device(&inputs), 0..flat_len, 0)?)
    }

    fn step_on_cpu(
        &mut self,
        rows: &mut impl StepRows,
        want_grad_norm: bool,
        n_steps: u64,
    ) -> Result<StepOutcome> {
        let n_outputs = self.model.spec().n_outputs();
        let expected_weight = self.loss.expected_weight(rows.global_rows(), n_outputs);
        let n_micro = rows.n_micro_batches();
        for index in 0..n_micro {
            let batch = rows.micro_batch(index)?;
            let dropout = self.dropout(batch.first_row, n_steps, None);
            self.forward(batch, dropout, 1.0 / expected_weight, index > 0)?;
            self.backward(batch, dropout, index > 0, index + 1 == n_micro)?;
        }
        let (_, tail) = split_tail(self.grads.view(), self.model.layout().flat_len())?;
        let sums = LossSums::load(tail.as_slice::<f32>("step", "sums")?);
        if !sums.loss.is_finite() {
            return Err(Error::LossNotFinite { step: n_steps + 1, loss: sums.mean() });
        }
        // Weights make the true divisor known only now.
        let mean_scale = match self.loss.is_weighted(rows.has_weights()) {
            true => sums.mean_scale(expected_weight),
            false => 1.0,
        };
        self.update_on_cpu(sums, mean_scale, want_grad_norm)
    }

    /// Outputs and loss of a micro-batch; leaves the gradient of the outputs, `scale` times that of the sum of losses, and
    /// the sums in the tail.
    fn forward(
        &mut self,
        batch: MicroBatch<'_>,
        dropout: Option<DropoutStep<'_>>,
        scale: f64,
        accumulate: bool,
    ) -> Result<()> {
        let n_rows = batch.rows.x.shape().rows_cols().0;
        self.model.forward(batch.rows.x, dropout)?;
        let flat_len = self.model.layout().flat_len();
        let tail = self.grads.view_mut().range(flat_len, flat_len + TAIL_ELEMENTS)?;
        let (outputs, d_outputs) = self.model.outputs_and_gradient(n_rows)?;
        let sums = SumsOutput { tail, accumulate };
        let Batch { targets, weights, .. } = batch.rows;
        Ok(self.loss.apply(outputs, targets, weights, scale, Some(d_outputs), sums)?)
    }

    /// Gradients of a micro-batch. In the step's last one they are reduced over the ranks: all of them, or those that are
    /// updated by all ranks.
    fn backward(
        &mut self,
        batch: MicroBatch<'_>,
        dropout: Option<DropoutStep<'_>>,
        accumulate: bool,
        is_last: bool,
    ) -> Result<()> {
        let Parts { world, model, grads, wire, buckets, updates, options, .. } = self;
        let x = batch.rows.x;
        let is_reduced = is_last && world.world_size() > 1;
        if !is_reduced || updates.is_divided() {
            model.backward(x, dropout, accumulate, &mut LocalGradients(grads.view_mut()))?;
            return if is_reduced { updates.reduce_rest(world, grads) } else { Ok(()) };
        }
        let group = world.tensor_group();
        let Some(wire) = wire else {
            let grads: TensorMut<'_> = grads.view_mut();
            return group.scope(|scope| {
                let mut sink = ReducedGradients::new(scope, buckets, grads, options.overlap)?;
                model.backward(x, dropout, accumulate, &mut sink)?;
                sink.finish()
            });
        };
        let flat_len = model.layout().flat_len();
        let (main, tail) = grads.view_mut().split_at(flat_len)?;
        let travelling = wire.view_mut();
        group.scope(|scope| {
            let both = (main, tail);
            let mut sink = CompressedGradients::new(scope, buckets, both, travelling, options.overlap)?;
            model.backward(x, dropout, accumulate, &mut sink)?;
            sink.finish()
        })?;
        decompress(wire, grads.view_mut().range(0, flat_len)?)
    }

    /// Reduces what is not reduced yet, clips and updates. `mean_scale` makes the mean's gradient of the gradient.
    fn update_on_cpu(
        &mut self,
        sums: LossSums,
        mean_scale: f64,
        want_grad_norm: bool,
    ) -> Result<StepOutcome> {
        let Parts { world, model, optimizer, grads, updates, options, .. } = self;
        let norm =
            |grads: &Tensor| Ok::<_, Error>(updates.sum_of_squares(world, grads.view())?.sqrt() * mean_scale);
        // Clipping needs the norm before the first weight changes: then all blocks are reduced first.
        let clip = options.clip_grad_norm;
        let mut grad_norm = None;
        if clip > 0.0 {
            for block in updates.blocks() {
                updates.reduce(world, grads, block)?;
            }
            grad_norm = Some(norm(grads)?);
        }
        // As torch.nn.utils.clip_grad_norm_.
        let clip_scale = grad_norm.map_or(1.0, |norm| (clip / (norm + 1e-6)).min(1.0));
        let scale = UpdateScale::Host(mean_scale * clip_scale);
        optimizer.begin_step();
        for block in updates.blocks() {
            if grad_norm.is_none() {
                updates.reduce(world, grads, block)?;
            }
            let own = updates.own_part(block);
            let own_grads = grads.view().range(own.start, own.end)?;
            optimizer.step_on(model.weights_mut(), own_grads, scale, own.clone(), own.start)?;
            updates.gather(world, model.weights_mut().0, block)?;
            // Of the others' parts only the weights have come.
            model.refresh_working_copy(block.clone())?;
        }
        let rest = updates.rest();
        let rest_grads = grads.view().range(rest.start, rest.end)?;
        optimizer.step_on(model.weights_mut(), rest_grads, scale, rest.clone(), rest.start)?;
        if want_grad_norm && grad_norm.is_none() {
            grad_norm = Some(norm(grads)?);
        }
        Ok(StepOutcome { sums, grad_norm })
    }

    fn dropout<'a>(
        &self,
        first_row: usize,
        step: u64,
        scalars: Option<TensorRef<'a>>,
    ) -> Option<DropoutStep<'a>> {
        let (seed, first_row) = (self.options.seed, first_row as u64);
        (self.model.spec().dropout > 0.0).then_some(DropoutStep { seed, step, first_row, scalars })
    }
}

/// The gradients and the step's sums behind them.
fn split_tail(grads: TensorRef<'_>, flat_len: usize) -> Result<(TensorRef<'_>, TensorRef<'_>)> {
    Ok((grads.range(0, flat_len)?, grads.range(flat_len, flat_len + TAIL_ELEMENTS)?))
}
