//! The contract of the ways to exchange gradients.

use std::fmt;
use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::{DType, Device, MemoryUse, Tensor, TensorRef, ops};

use crate::exchange::error::{ExchangeError, Result};
use crate::exchange::shard_plan::{Shard, ShardPlan};
use crate::model::{AllRanks, DropoutStep, GradientSink, GradientWrites, Network};

/// A way to exchange gradients. It plans without memory: `memory` below are the tensors that [`Exchange::buffers`] lists.
pub trait Exchange: fmt::Debug + Send + Sync {
    /// Names the collectives for gradients in a step of `n_micro_batches` micro-batches per rank.
    fn describe(&self, n_micro_batches: usize) -> String;

    /// Bytes of gradients and sums that a rank sends in such a step, counted for ring algorithms.
    fn bytes_sent(&self, n_micro_batches: usize) -> u64;

    /// Its tensors. The first one holds gradients in f32 and after them the tail, the sums of a step, unless another one holds it.
    fn buffers(&self) -> Vec<BufferSize>;

    /// The reductions in buffers that collectives exchange in every step, in order, for a trial before the first step.
    fn reductions(&self) -> Vec<BufferReduction> {
        Vec::new()
    }

    /// Format in which backward writes gradients in micro-batch `index` of a step.
    fn writes(&self, index: usize) -> GradientWrites {
        if index == 0 { GradientWrites::Singles } else { GradientWrites::Accumulated }
    }

    /// Gradients that are written in f32 and then rounded to bf16; None for an exchange in f32.
    fn n_rounded(&self) -> Option<usize> {
        None
    }

    /// Runs backward. After the step's last micro-batch the gradients are reduced over the ranks, except for what is reduced with the
    /// update. In a rehearsal nothing is exchanged, and what it writes, the next step overwrites.
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`] from an operation; [`ExchangeError::Comm`] if a collective fails.
    fn backward(&mut self, memory: &mut [Tensor], pass: Pass<'_>) -> Result<()>;

    /// Whether [`Exchange::backward`] passes each bucket to [`Pass::updates`] once it is reduced.
    fn updates_buckets(&self) -> bool {
        false
    }

    /// Whether [`Exchange::backward`] adds to [`Pass::squares`] after each reduction on `device`.
    fn sums_squares(&self, _device: Device) -> bool {
        false
    }

    /// Whether each micro-batch has a tail of its own, and backward adds these up.
    fn adds_tails(&self) -> bool {
        false
    }

    /// Tensor with the tail of the next micro-batch.
    fn with_tail<'a>(&self, memory: &'a mut [Tensor]) -> &'a mut Tensor {
        &mut memory[0]
    }

    /// Tensor that ends with the reduced tail.
    fn with_sums<'a>(&self, memory: &'a [Tensor]) -> &'a Tensor {
        &memory[0]
    }

    /// Reduced gradients of a shard, in the format in which they were exchanged.
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`] for a range that this rank does not hold.
    fn reduced<'a>(&self, memory: &'a [Tensor], shard: &Shard) -> Result<TensorRef<'a>> {
        Ok(memory[0].view().range(shard.flat.start, shard.flat.end)?)
    }

    /// Whether every rank has all reduced gradients, whoever updates the weights.
    fn has_all_gradients(&self) -> bool {
        false
    }

    /// Passes the reduced gradients of each rank's shards on to the rank that holds a copy of their state, after the step's last
    /// [`Exchange::backward`]. Not needed where every rank has all of them.
    ///
    /// # Errors
    /// [`ExchangeError::Comm`] if a collective fails.
    fn pass_on(&self, _memory: &mut [Tensor], _world: &World, _shard_plan: &ShardPlan) -> Result<()> {
        Ok(())
    }

    /// Completes the sum of squares of the reduced gradients of all ranks in `sum`, `[1]` f64, which the step's last
    /// [`Exchange::backward`] was given.
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`] from an operation; [`ExchangeError::Comm`] if a collective fails.
    fn sum_of_squares(
        &self,
        memory: &[Tensor],
        world: &World,
        shard_plan: &ShardPlan,
        sum: &mut Tensor,
    ) -> Result<()> {
        let is_summed = self.sums_squares(memory[0].device());
        let mut is_first = true;
        let mut add = |shard: Shard, sum: &mut Tensor| -> Result<()> {
            let accumulate = !std::mem::take(&mut is_first);
            Ok(ops::sum_of_squares(self.reduced(memory, &shard)?, sum.view_mut(), accumulate)?)
        };
        for block in shard_plan.blocks().iter().filter(|_| !is_summed) {
            add(shard_plan.own_shard(block), sum)?;
        }
        if !shard_plan.blocks().is_empty() {
            world.tensor_group().all_reduce(ReduceOp::Sum, sum.view_mut())?;
        }
        // All ranks have the same rest.
        let rest = shard_plan.rest();
        if is_summed || rest.flat.is_empty() { Ok(()) } else { add(rest, sum) }
    }
}

/// A tensor of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferSize {
    /// Elements.
    pub len: usize,
    /// Number format.
    pub dtype: DType,
    /// Whether it is memory that collectives exchange in every step (`World::exchange_zeros`).
    pub is_exchanged: bool,
}

impl BufferSize {
    /// Allocates the tensors with zeros.
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`] or [`ExchangeError::Comm`] if the device is out of memory.
    pub fn allocate(buffers: &[BufferSize], world: &World, device: Device) -> Result<Vec<Tensor>> {
        let zeros = |&BufferSize { len, dtype, is_exchanged }: &BufferSize| -> Result<Tensor> {
            if is_exchanged {
                Ok(world.exchange_zeros(MemoryUse::Gradients, &[len], dtype, device)?)
            } else {
                Ok(Tensor::zeros_for(MemoryUse::Gradients, &[len], dtype, device)?)
            }
        };
        buffers.iter().map(zeros).collect()
    }
}

/// Collective that reduces a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// All-reduce: every rank gets the whole bucket.
    ToAll,
    /// Reduce-scatter in place: each rank gets its shard of the bucket; the other shards are undefined.
    ToOwners,
}

/// Reduction of a range of one of the tensors of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferReduction {
    /// Index of the tensor in [`Exchange::buffers`].
    pub buffer: usize,
    /// The range.
    pub range: Range<usize>,
    /// The collective.
    pub reduction: Reduction,
}

/// Update of the weights of a bucket, while later buckets are being reduced.
pub trait UpdateBucket: fmt::Debug {
    /// Updates the weights in the range `bucket` of the flat buffer.
    ///
    /// - `gradients`: its reduced gradients
    /// - `sums`: the sums of the step, reduced
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`] from an operation.
    fn update(
        &mut self,
        model: &mut Network,
        bucket: Range<usize>,
        gradients: TensorRef<'_>,
        sums: TensorRef<'_>,
    ) -> Result<()>;

    /// Called when backward is over and only updates are left of the step.
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`] from an operation.
    fn backward_ended(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Position of a micro-batch within its step.
#[derive(Debug, Clone, Copy)]
pub struct MicroStep {
    /// Index, from 0.
    pub index: usize,
    /// Whether it is the step's last micro-batch.
    pub is_last: bool,
}

/// Inputs of a backward pass.
#[derive(Debug, Clone, Copy)]
pub struct BackwardInputs<'a> {
    /// The micro-batch's features, `[B, N]`.
    pub x: TensorRef<'a>,
    /// Dropout of its forward pass.
    pub dropout: Option<DropoutStep<'a>>,
    /// Its position.
    pub micro_step: MicroStep,
}

/// A backward pass and its exchange.
#[derive(Debug)]
pub struct Pass<'a> {
    /// The ranks.
    pub world: &'a World,
    /// The model after its forward pass.
    pub model: &'a mut Network,
    /// Inputs of the pass.
    pub inputs: BackwardInputs<'a>,
    /// Receives the sum of squares of this rank's shard, if the exchange [sums it](Exchange::sums_squares).
    pub squares: Option<&'a mut Tensor>,
    /// For layers that exchange within the pass.
    pub ranks: Option<&'a mut dyn AllRanks>,
    /// Receives the buckets of the step's last pass, if the exchange [passes them on](Exchange::updates_buckets).
    pub updates: Option<&'a mut dyn UpdateBucket>,
    /// Whether nothing is exchanged.
    pub is_rehearsal: bool,
}

impl Pass<'_> {
    /// Whether the gradients of the step are complete after this pass, and reduced.
    pub(crate) fn completes_step(&self) -> bool {
        self.inputs.micro_step.is_last && !self.is_rehearsal
    }

    /// Runs backward into `sink`.
    pub(crate) fn run<S: GradientSink>(self, writes: GradientWrites, sink: &mut S) -> Result<()>
    where
        ExchangeError: From<S::Error>,
    {
        let BackwardInputs { x, dropout, .. } = self.inputs;
        let accumulate = writes == GradientWrites::Accumulated;
        Ok(self.model.backward_over_ranks(x, dropout, accumulate, self.ranks, sink)?)
    }
}

/// Bytes that a rank sends to reduce-scatter or all-gather `bytes` over a ring: all shards but one.
pub(crate) fn ring_bytes(world_size: usize, bytes: usize) -> u64 {
    (world_size as u64 - 1) * bytes as u64 / world_size as u64
}

/// `1 bucket`, `2 buckets`.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
