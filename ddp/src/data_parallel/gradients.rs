//! The gradients of a step: where they lie, and how those of one rank become those of all.
//!
//! Behind the gradients stands the tail with the step's sums ([`TAIL_ELEMENTS`]): of losses and weights, and of the ranks' votes.

use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::ops::{self, STEP_SCALARS_EXTRA};
use ddp_kernels::{DType, Device, MemoryUse, Tensor, TensorMut, TensorRef};

use crate::config::{CommDtype, ZeroStage};
use crate::data::order::partition::{PartitionKind, RankPartition};
use crate::data_parallel::bucket_reducer::{
    CompressedGradients, LocalGradients, ReducedGradients, Reduction, decompress,
};
use crate::data_parallel::buckets::{BucketPlan, STEP_VOTE, TAIL_ELEMENTS};
use crate::data_parallel::error::Result;
use crate::data_parallel::fixed_tree::TreeSum;
use crate::data_parallel::shard_plan::{Shard, ShardPlan};
use crate::data_parallel::zero2::{BucketBuffers, ShardedGradients};
use crate::model::{DropoutStep, Mlp, ParamSlot};

/// Gradients, and how they are reduced.
#[derive(Debug)]
pub(crate) struct Gradients {
    /// All gradients in the weights' layout, or only this rank's parts of them; behind them the tail.
    sums: Tensor,
    /// Elements before the tail.
    len: usize,
    exchange: Exchange,
    buckets: BucketPlan,
    /// Whether ranks update weights for each other.
    gathers_weights: bool,
    /// Where each parameter's gradients lie.
    params: Vec<Range<usize>>,
    overlap: bool,
    /// A rank's vote in all of its micro-shards but the first, `[1]`.
    no_vote: Tensor,
}

/// How gradients become those of all ranks.
#[derive(Debug)]
enum Exchange {
    /// They are: there is one rank.
    Alone,
    /// Bucket by bucket while backward computes; as they are or rounded into a buffer of their own.
    Buckets(Reduction, Option<Tensor>),
    /// Block by block with the update, but for what is behind the blocks.
    WithUpdate,
    /// In every pass, and no rank keeps more than its parts.
    EveryMicroBatch(Box<BucketBuffers>),
    /// Along a fixed tree of micro-shards, each of which is a pass.
    Tree(Box<TreeSum>),
}

/// The settings of the exchange of gradients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExchangeOptions {
    pub(crate) zero: ZeroStage,
    /// Number format of gradients between GPUs.
    pub(crate) comm_dtype: CommDtype,
    /// Micro-shards of a global batch, whose gradients are summed along one fixed tree.
    pub(crate) micro_shards: Option<usize>,
    /// Whether buckets are reduced while backward computes.
    pub(crate) overlap: bool,
}

/// What a step sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeBytes {
    /// By this rank.
    pub sent: u64,
    /// By a rank that all-reduces the same gradients over a ring, to compare.
    pub all_reduce: u64,
}

/// Which of a step's passes it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MicroStep {
    /// Its number, from 0.
    pub(crate) index: usize,
    /// Whether it is the step's last.
    pub(crate) is_last: bool,
}

/// A rank's vote in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Vote<'a> {
    Host(u32),
    /// Among the scalars on the device.
    Device(TensorRef<'a>),
}

impl Gradients {
    /// Zeros for `model`, to be reduced as `options` and `updates` say.
    pub(crate) fn new(
        world: &World,
        model: &Mlp,
        buckets: BucketPlan,
        shard_plan: &ShardPlan,
        options: ExchangeOptions,
    ) -> Result<Self> {
        let (layout, device) = (model.layout(), model.device());
        let is_alone = world.world_size() == 1;
        let zeros = |n: usize, dtype| Tensor::zeros_for(MemoryUse::Gradients, &[n], dtype, device);
        let keeps_parts = options.zero == ZeroStage::Gradients && !is_alone;
        let len = if keeps_parts { shard_plan.state_len() } else { layout.flat_len() };
        let is_rounded = device != Device::Cpu && options.comm_dtype == CommDtype::Bf16;
        let wire = || is_rounded.then(|| zeros(layout.flat_len(), DType::BF16)).transpose();
        let exchange = match options.zero {
            _ if options.micro_shards.is_some() => {
                let n_shards = options.micro_shards.unwrap_or(1);
                let partition = RankPartition {
                    kind: PartitionKind::MicroShards { n_shards },
                    rank: world.rank().0,
                    world_size: world.world_size(),
                };
                Exchange::Tree(Box::new(TreeSum::new(&partition, len + TAIL_ELEMENTS, device)?))
            }
            _ if is_alone => Exchange::Alone,
            ZeroStage::Off if shard_plan.is_divided() => Exchange::WithUpdate,
            ZeroStage::Off => Exchange::Buckets(Reduction::ToAll, wire()?),
            ZeroStage::Optimizer => Exchange::Buckets(Reduction::ToOwners, wire()?),
            ZeroStage::Gradients => {
                Exchange::EveryMicroBatch(Box::new(BucketBuffers::new(world, layout, &buckets, device)?))
            }
        };
        let sums = zeros(len + TAIL_ELEMENTS, DType::F32)?;
        let no_vote = zeros(1, DType::F32)?;
        let params = layout.slots().iter().map(ParamSlot::range).collect();
        let (gathers_weights, overlap) = (shard_plan.is_sharded(), options.overlap);
        Ok(Gradients { sums, len, exchange, buckets, gathers_weights, params, overlap, no_vote })
    }

    /// Where a pass leaves its sums of losses and weights, and whether it adds to what is there.
    pub(crate) fn tail_mut(&mut self, micro_step: MicroStep) -> Result<(TensorMut<'_>, bool)> {
        let Gradients { sums, len, exchange, .. } = self;
        let (grads, accumulate) = match exchange {
            Exchange::Tree(tree) => (tree.leaf(sums), false),
            _ => (sums.view_mut(), micro_step.index > 0),
        };
        Ok((grads.range(*len, *len + TAIL_ELEMENTS)?, accumulate))
    }

    /// The step's sums.
    pub(crate) fn tail(&self) -> Result<TensorRef<'_>> {
        Ok(self.sums.view().range(self.len, self.len + TAIL_ELEMENTS)?)
    }

    /// The reduced gradients of what this rank updates.
    pub(crate) fn of_shard(&self, part: &Shard) -> Result<TensorRef<'_>> {
        let start = match self.exchange {
            Exchange::EveryMicroBatch(_) => part.state_start,
            _ => part.flat.start,
        };
        Ok(self.sums.view().range(start, start + part.flat.len())?)
    }

    /// All gradients and the tail, where they are reduced with the update.
    pub(crate) fn flat_mut(&mut self) -> &mut Tensor {
        &mut self.sums
    }

    /// Puts this rank's vote into the tail, before the pass goes backward.
    pub(crate) fn vote(&mut self, vote: Vote<'_>, micro_step: MicroStep) -> Result<()> {
        let Gradients { sums, len, exchange, no_vote, .. } = self;
        let (grads, votes) = match exchange {
            // Each micro-shard has a tail, and the sum over all of them has one vote of this rank.
            Exchange::Tree(tree) => (tree.leaf(sums), micro_step.index == 0),
            _ if micro_step.is_last => (sums.view_mut(), true),
            _ => return Ok(()),
        };
        let place = grads.range(*len + STEP_VOTE, *len + STEP_VOTE + 1)?;
        match vote {
            _ if !votes => ops::copy(no_vote.view(), place)?,
            Vote::Host(vote) => place.into_slice::<f32>("step", "vote")?[0] = vote as f32,
            Vote::Device(scalars) => {
                ops::cast(scalars.range(STEP_SCALARS_EXTRA, STEP_SCALARS_EXTRA + 1)?, place)?;
            }
        }
        Ok(())
    }

    /// Bytes that this rank sends in a step of so many passes a rank, by the count of a ring: gradients, sums, and the weights that
    /// ranks update for each other.
    pub(crate) fn exchange_bytes(
        &self,
        world_size: usize,
        flat_len: usize,
        n_micro_batches: usize,
    ) -> ExchangeBytes {
        let (n, f32_bytes) = (world_size as u64, size_of::<f32>() as u64);
        // Of a buffer of so many bytes, once around the ring but for one hop.
        let once = |bytes: u64| (n - 1) * bytes / n;
        let (flat, tail) = (f32_bytes * flat_len as u64, f32_bytes * TAIL_ELEMENTS as u64);
        let all_reduce = 2 * once(flat + tail);
        let sent = match &self.exchange {
            Exchange::Alone => 0,
            Exchange::Buckets(Reduction::ToAll, None) | Exchange::WithUpdate => all_reduce,
            Exchange::Buckets(Reduction::ToAll, Some(_)) => once(flat) + 2 * once(tail),
            Exchange::Buckets(Reduction::ToOwners, None) => 2 * once(flat) + 2 * once(tail),
            Exchange::Buckets(Reduction::ToOwners, Some(_)) => once(flat / 2) + once(flat) + 2 * once(tail),
            Exchange::EveryMicroBatch(_) => (n_micro_batches as u64 + 1) * once(flat) + 2 * once(tail),
            Exchange::Tree(tree) => tree.exchange_bytes() + if self.gathers_weights { once(flat) } else { 0 },
        };
        ExchangeBytes { sent, all_reduce }
    }

    /// The gradients of a pass of `model` over `x`, added to those of the passes before it. Behind the step's last pass they are
    /// reduced over the ranks, but for what is reduced with the update.
    pub(crate) fn backward(
        &mut self,
        world: &World,
        model: &mut Mlp,
        x: TensorRef<'_>,
        dropout: Option<DropoutStep<'_>>,
        micro_step: MicroStep,
        shard_plan: &ShardPlan,
    ) -> Result<()> {
        let accumulate = micro_step.index > 0;
        let Gradients { sums, len, exchange, buckets, overlap, .. } = self;
        let (len, overlap) = (*len, *overlap);
        let group = world.tensor_group();
        match exchange {
            Exchange::EveryMicroBatch(buffers) => {
                let (parts, tail) = sums.view_mut().split_at(len)?;
                let lent = buffers.lend(parts);
                group.scope(|scope| {
                    if micro_step.is_last {
                        scope.all_reduce(ReduceOp::Sum, tail)?;
                    }
                    let mut sink = ShardedGradients::new(scope, lent, accumulate, overlap);
                    // What a buffer holds is another bucket's.
                    model.backward(x, dropout, false, &mut sink)?;
                    sink.finish()
                })
            }
            Exchange::Buckets(reduction, wire) if micro_step.is_last => {
                let reduction = *reduction;
                let Some(wire) = wire else {
                    let grads = sums.view_mut();
                    return group.scope(|scope| {
                        let mut sink = ReducedGradients::new(scope, buckets, grads, overlap, reduction)?;
                        model.backward(x, dropout, accumulate, &mut sink)?;
                        sink.finish()
                    });
                };
                let (grads, tail) = sums.view_mut().split_at(len)?;
                let wire_grads = wire.view_mut();
                group.scope(|scope| {
                    let mut sink = CompressedGradients::new(
                        scope, buckets, grads, tail, wire_grads, overlap, reduction,
                    )?;
                    model.backward(x, dropout, accumulate, &mut sink)?;
                    sink.finish()
                })?;
                shard_plan.own_shards().try_for_each(|part| decompress(wire, sums, part.flat))
            }
            Exchange::Tree(tree) => {
                model.backward(x, dropout, false, &mut LocalGradients(tree.leaf(sums)))?;
                tree.push(sums)?;
                if micro_step.is_last { tree.exchange(world, sums) } else { Ok(()) }
            }
            Exchange::Alone | Exchange::Buckets(..) | Exchange::WithUpdate => {
                model.backward(x, dropout, accumulate, &mut LocalGradients(sums.view_mut()))?;
                match exchange {
                    Exchange::WithUpdate if micro_step.is_last => shard_plan.reduce_rest(world, sums),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The sum of squares of the reduced gradients, all ranks' parts together, into `sum`, `[1]` f64 where the group exchanges
    /// tensors.
    pub(crate) fn sum_of_squares(
        &self,
        world: &World,
        shard_plan: &ShardPlan,
        sum: &mut Tensor,
    ) -> Result<()> {
        if let Exchange::Tree(_) = self.exchange {
            // Parameter by parameter, whatever stands between them: that depends on the number of ranks.
            for (index, param) in self.params.iter().enumerate() {
                let grads = self.sums.view().range(param.start, param.end)?;
                ops::sum_of_squares(grads, sum.view_mut(), index > 0)?;
            }
            return Ok(());
        }
        let mut is_first = true;
        let mut add = |part: Shard, sum: &mut Tensor| -> Result<()> {
            let accumulate = !std::mem::take(&mut is_first);
            Ok(ops::sum_of_squares(self.of_shard(&part)?, sum.view_mut(), accumulate)?)
        };
        for block in shard_plan.blocks() {
            add(shard_plan.own_shard(block), sum)?;
        }
        if !shard_plan.blocks().is_empty() {
            world.tensor_group().all_reduce(ReduceOp::Sum, sum.view_mut())?;
        }
        // All ranks have the same of the rest.
        let rest = shard_plan.rest();
        if rest.flat.is_empty() { Ok(()) } else { add(rest, sum) }
    }
}
