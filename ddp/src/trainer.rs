//! One optimiser step: micro-batches forward and backward, gradients over the ranks, clipping, update.

use ddp_comm::World;
use ddp_kernels::ops::LossSums;
use ddp_kernels::{Tensor, TensorMut};

use crate::batches::Batch;
use crate::buckets::{BucketPlan, LocalGradients, ReducedGradients, StepSums, TAIL_ELEMENTS};
use crate::error::{Error, Result};
use crate::model::{LossHead, Mlp, Optimizer};
use crate::update_plan::UpdatePlan;

pub use crate::model::DropoutStep;

/// Everything that a step needs, made once.
#[derive(Debug)]
pub struct Trainer<'w> {
    world: &'w World,
    model: Mlp,
    loss: LossHead,
    optimizer: Optimizer,
    /// Flat gradients in the weights' layout, and the tail with the step's sums.
    grads: Tensor,
    buckets: BucketPlan,
    updates: UpdatePlan,
    options: TrainerOptions,
    n_steps: u64,
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
    /// Elements of the flat buffer from which ranks that share memory divide the update between them.
    pub divide_update_from: usize,
}

impl Default for TrainerOptions {
    /// No clipping; buckets of 25 MiB, reduced while backward computes; the update divided from 32 MiB of weights on,
    /// which no processor's private cache holds.
    fn default() -> Self {
        TrainerOptions {
            seed: 0,
            clip_grad_norm: 0.0,
            bucket_bytes: 25 << 20,
            overlap: true,
            divide_update_from: 8 << 20,
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

/// This rank's part of one global batch.
pub trait MicroBatches {
    /// How many there are, the same on every rank.
    fn n_micro_batches(&self) -> usize;

    /// Rows of the global batch over all ranks.
    fn global_rows(&self) -> usize;

    /// Micro-batch `index`.
    ///
    /// # Errors
    /// Those of taking the rows.
    fn micro_batch(&mut self, index: usize) -> Result<MicroBatch<'_>>;
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
        let flat_len = model.layout().flat_len();
        let buckets = BucketPlan::new(model.layout(), options.bucket_bytes);
        world.group().agree_lengths(&buckets.lens())?;
        let updates = UpdatePlan::new(world, flat_len, options.divide_update_from);
        let grads = model.weights().new_zeros(&[flat_len + TAIL_ELEMENTS])?;
        Ok(Trainer { world, model, loss, optimizer, grads, buckets, updates, options, n_steps: 0 })
    }

    /// The model.
    pub fn model(&self) -> &Mlp {
        &self.model
    }

    /// The model and its loss, for passes without training.
    pub fn model_and_loss(&mut self) -> (&mut Mlp, &LossHead) {
        (&mut self.model, &self.loss)
    }

    /// Steps taken.
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.optimizer.lr()
    }

    /// One step over a global batch, of which `batches` holds this rank's part.
    ///
    /// # Errors
    /// Those of the operations and collectives, and [`Error::LossNotFinite`], on all ranks alike and before the weights
    /// change.
    pub fn step(&mut self, batches: &mut impl MicroBatches, want_grad_norm: bool) -> Result<StepOutcome> {
        let n_outputs = self.model.spec().n_outputs();
        let expected_weight = self.loss.expected_weight(batches.global_rows(), n_outputs);
        let n_micro = batches.n_micro_batches();
        let mut own = LossSums::default();
        for index in 0..n_micro {
            let batch = batches.micro_batch(index)?;
            own += self.forward(batch, 1.0 / expected_weight)?;
            let is_last = index + 1 == n_micro;
            self.backward(batch, index > 0, is_last.then_some(own))?;
        }
        let flat_len = self.model.layout().flat_len();
        let sums = if self.world.world_size() > 1 {
            let all = self.grads.view().range(flat_len, flat_len + TAIL_ELEMENTS)?;
            let sums = StepSums::load(all.as_slice::<f32>("step", "sums")?);
            LossSums { loss: sums.loss, weight: sums.weight }
        } else {
            own
        };
        if !sums.loss.is_finite() {
            return Err(Error::LossNotFinite { step: self.n_steps + 1, loss: sums.mean() });
        }
        self.update(sums, expected_weight, want_grad_norm)
    }

    /// Outputs and loss of a micro-batch; leaves the gradient of the outputs, `scale` times that of the sum of losses.
    fn forward(&mut self, batch: MicroBatch<'_>, scale: f64) -> Result<LossSums> {
        let n_rows = batch.rows.x.shape().rows_cols().0;
        let dropout = self.dropout(batch.first_row);
        self.model.forward(batch.rows.x, dropout)?;
        let (outputs, d_outputs) = self.model.outputs_and_gradient(n_rows)?;
        Ok(self.loss.apply(outputs, batch.rows.targets, scale, Some(d_outputs))?)
    }

    /// Gradients of a micro-batch. With `step_sums`, it is the step's last: the gradients are reduced over the ranks, all of
    /// them, or those that are updated by all ranks.
    fn backward(
        &mut self,
        batch: MicroBatch<'_>,
        accumulate: bool,
        step_sums: Option<LossSums>,
    ) -> Result<()> {
        let dropout = self.dropout(batch.first_row);
        let Trainer { world, model, grads, buckets, updates, options, .. } = self;
        let x = batch.rows.x;
        if let Some(sums) = step_sums {
            let flat_len = model.layout().flat_len();
            let tail = grads.view_mut().range(flat_len, flat_len + TAIL_ELEMENTS)?;
            StepSums { loss: sums.loss, weight: sums.weight }.store(tail.into_slice("step", "sums")?);
        }
        let is_reduced = step_sums.is_some() && world.world_size() > 1;
        if is_reduced && !updates.is_divided() {
            let grads: TensorMut<'_> = grads.view_mut();
            return world.group().scope(|scope| {
                let mut sink = ReducedGradients::new(scope, buckets, grads, options.overlap)?;
                model.backward(x, dropout, accumulate, &mut sink)?;
                sink.finish()
            });
        }
        model.backward(x, dropout, accumulate, &mut LocalGradients(grads.view_mut()))?;
        if is_reduced { updates.reduce_rest(world, grads) } else { Ok(()) }
    }

    /// Reduces what is not reduced yet, clips and updates.
    fn update(&mut self, sums: LossSums, expected_weight: f64, want_grad_norm: bool) -> Result<StepOutcome> {
        // Class weights make the true divisor known only now.
        let mean_scale = if self.loss.is_weighted() { expected_weight / sums.weight } else { 1.0 };
        let Trainer { world, model, optimizer, grads, updates, options, .. } = self;
        let weights = model.weights_mut();
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
        let scale = mean_scale * clip_scale;
        optimizer.begin_step();
        for block in updates.blocks() {
            if grad_norm.is_none() {
                updates.reduce(world, grads, block)?;
            }
            optimizer.step_on(weights, grads.view(), scale, updates.own_part(block))?;
            updates.gather(world, weights, block)?;
        }
        optimizer.step_on(weights, grads.view(), scale, updates.rest())?;
        if want_grad_norm && grad_norm.is_none() {
            grad_norm = Some(norm(grads)?);
        }
        self.n_steps += 1;
        Ok(StepOutcome { sums, grad_norm })
    }

    fn dropout(&self, first_row: usize) -> Option<DropoutStep> {
        let active = self.model.spec().dropout > 0.0;
        active.then_some(DropoutStep {
            seed: self.options.seed,
            step: self.n_steps,
            first_row: first_row as u64,
        })
    }
}
