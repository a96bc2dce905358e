//! Gradients of a step: their flat buffer and their reduction over the ranks.
//!
//! After the gradients comes the tail with the step's sums ([`TAIL_ELEMENTS`]): of losses, weights and the ranks' votes.
//!
//! Bytes that a rank of four sends per step:
//!
//! ```
//! use ddp::exchange::gradients::{ExchangeBytes, ExchangeWay};
//!
//! let (world_size, flat_len, weight_bytes) = (4, 1000, 4000);
//! let bytes = |way| ExchangeBytes::new(way, world_size, flat_len, weight_bytes);
//! let sharded = bytes(ExchangeWay::ReduceScatter { is_rounded: false });
//! assert_eq!(sharded.sent, sharded.all_reduce, "ZeRO-1 sends no more than an all-reduce");
//! let rounded = bytes(ExchangeWay::ReduceScatter { is_rounded: true });
//! assert!(rounded.sent < rounded.all_reduce);
//! ```

use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::ops::{self, STEP_SCALARS_EXTRA, SumsOutput};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorRef};

use crate::config::{CommDtype, ZeroStage};
use crate::data::order::partition::{PartitionKind, RankPartition};
use crate::exchange::bucket_reducer::{CompressedGradients, ReducedGradients, Reduction};
use crate::exchange::buckets::{BucketPlan, STEP_VOTE, TAIL_ELEMENTS};
use crate::exchange::error::Result;
use crate::exchange::fixed_tree::TreeSum;
use crate::exchange::shard_plan::{Shard, ShardPlan};
use crate::exchange::wire::{LocalWire, Wire};
use crate::exchange::zero2::{BucketBuffers, ShardedGradients};
use crate::model::{AllRanks, DropoutStep, LocalGradients, Network, ParamEntry};

/// Gradients of one rank and their exchange.
#[derive(Debug)]
pub(crate) struct Gradients {
    /// Gradients in f32: all of them in the weights' layout, only this rank's shards, or only those that are rounded for an exchange in
    /// bf16; followed by the tail.
    sums: Tensor,
    /// Elements before the tail.
    len: usize,
    exchange: Exchange,
    buckets: BucketPlan,
    /// Whether ranks gather weights that other ranks updated.
    gathers_weights: bool,
    /// Range of each parameter's gradients.
    params: Vec<Range<usize>>,
    overlap: bool,
    /// Zero, `[1]` f64: a rank's vote in all of its micro-shards but the first.
    no_vote: Tensor,
}

/// Reduction of the gradients over the ranks.
#[derive(Debug)]
enum Exchange {
    /// No reduction: there is one rank.
    Alone,
    /// Bucket by bucket while backward computes; in f32, or in bf16 in a separate buffer, which then holds the reduced gradients.
    Buckets(Reduction, Option<Wire>),
    /// Block by block with the update; the range after the blocks before it.
    WithUpdate,
    /// In every micro-batch; each rank keeps only its shards (ZeRO-2).
    EveryMicroBatch(Box<BucketBuffers>),
    /// Along a fixed tree of micro-shards, each of which is a micro-batch.
    Tree(Box<TreeSum>),
}

/// Options of the gradient exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExchangeOptions {
    pub(crate) zero: ZeroStage,
    /// Number format of gradients between GPUs.
    pub(crate) comm_dtype: CommDtype,
    /// Whether no step has more than one micro-batch.
    pub(crate) has_one_micro_batch: bool,
    /// Micro-shards of a global batch, whose gradients are summed along one fixed tree.
    pub(crate) micro_shards: Option<usize>,
    /// Whether buckets are reduced while backward computes.
    pub(crate) overlap: bool,
}

/// Bytes that a step sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeBytes {
    /// Bytes sent by this rank.
    pub sent: u64,
    /// Bytes that a ring all-reduce of the same gradients would send, for comparison.
    pub all_reduce: u64,
}

/// Settings of the gradient exchange that decide how many bytes a step sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeWay {
    /// Not at all: there is one rank.
    Alone,
    /// Every rank gets all sums; `is_rounded`: in bf16.
    AllReduce {
        /// Whether gradients travel in bf16.
        is_rounded: bool,
    },
    /// Each rank gets the sums of its shards, and all ranks gather the weights.
    ReduceScatter {
        /// Whether gradients travel in bf16.
        is_rounded: bool,
    },
    /// A reduce-scatter per micro-batch, and all ranks gather the weights.
    EveryMicroBatch {
        /// Micro-batches of a rank.
        n_micro_batches: usize,
    },
    /// Along a fixed tree.
    Tree {
        /// Bytes sent for the tree.
        sent: u64,
        /// Whether all ranks gather the weights.
        gathers_weights: bool,
    },
}

impl ExchangeBytes {
    /// The bytes of a step that exchanges `flat_len` gradients and the sums this way, counted for ring algorithms.
    ///
    /// - `weight_bytes`: of all weights, if ranks gather them
    pub fn new(way: ExchangeWay, world_size: usize, flat_len: usize, weight_bytes: usize) -> Self {
        let (n, f32_bytes) = (world_size as u64, size_of::<f32>() as u64);
        // A reduce-scatter or all-gather over a ring sends all shards but one.
        let once = |bytes: u64| (n - 1) * bytes / n;
        let (flat, tail) = (f32_bytes * flat_len as u64, f32_bytes * TAIL_ELEMENTS as u64);
        let all_reduce = 2 * once(flat + tail);
        let weights = once(weight_bytes as u64);
        let sent = match way {
            ExchangeWay::Alone => 0,
            ExchangeWay::AllReduce { is_rounded: false } => all_reduce,
            ExchangeWay::AllReduce { is_rounded: true } => once(flat) + 2 * once(tail),
            ExchangeWay::ReduceScatter { is_rounded: false } => once(flat) + weights + 2 * once(tail),
            ExchangeWay::ReduceScatter { is_rounded: true } => once(flat / 2) + weights + 2 * once(tail),
            ExchangeWay::EveryMicroBatch { n_micro_batches } => {
                n_micro_batches as u64 * once(flat) + weights + 2 * once(tail)
            }
            ExchangeWay::Tree { sent, gathers_weights } => sent + if gathers_weights { weights } else { 0 },
        };
        ExchangeBytes { sent, all_reduce }
    }
}

/// Position of a micro-batch within its step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MicroStep {
    /// Index, from 0.
    pub(crate) index: usize,
    /// Whether it is the step's last micro-batch.
    pub(crate) is_last: bool,
}

/// Inputs of a backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackwardInputs<'a> {
    /// The micro-batch's features, `[B, N]`.
    pub(crate) x: TensorRef<'a>,
    pub(crate) dropout: Option<DropoutStep<'a>>,
    pub(crate) micro_step: MicroStep,
}

/// A rank's vote in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Vote<'a> {
    Host(u32),
    /// Among the scalars on the device.
    Device(TensorRef<'a>),
}

impl Gradients {
    /// Allocates zeroed gradients for `model`, to be reduced as `options` and `shard_plan` say.
    pub(crate) fn new(
        world: &World,
        model: &Network,
        buckets: BucketPlan,
        shard_plan: &ShardPlan,
        options: ExchangeOptions,
    ) -> Result<Self> {
        let (layout, device) = (model.layout(), model.device());
        let is_alone = world.world_size() == 1;
        let keeps_shards = options.zero == ZeroStage::Gradients && !is_alone;
        let len = if keeps_shards { shard_plan.state_len() } else { layout.flat_len() };
        let is_rounded = device != Device::Cpu && options.comm_dtype == CommDtype::Bf16;
        let wire = || is_rounded.then(|| Wire::new(world, model, !options.has_one_micro_batch)).transpose();
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
        let len = match &exchange {
            Exchange::Buckets(_, Some(wire)) => wire.unrounded.len(),
            _ => len,
        };
        let kind = MemoryUse::Gradients;
        let sums = match &exchange {
            Exchange::Alone | Exchange::Tree(_) => {
                Tensor::zeros_for(kind, &[len + TAIL_ELEMENTS], DType::F32, device)?
            }
            _ => world.exchange_zeros(kind, &[len + TAIL_ELEMENTS], DType::F32, device)?,
        };
        let no_vote = Tensor::zeros_for(kind, &[1], DType::F64, device)?;
        let params = layout.entries().iter().map(ParamEntry::range).collect();
        let (gathers_weights, overlap) = (shard_plan.is_sharded(), options.overlap);
        Ok(Gradients { sums, len, exchange, buckets, gathers_weights, params, overlap, no_vote })
    }

    /// Destination of the sums of a micro-batch, with this rank's vote.
    pub(crate) fn sums_output<'a>(
        &'a mut self,
        vote: Vote<'a>,
        micro_step: MicroStep,
    ) -> Result<SumsOutput<'a>> {
        let Gradients { sums, len, exchange, no_vote, .. } = self;
        let (grads, accumulate, votes) = match exchange {
            // Each micro-shard has a tail, and their sum must hold this rank's vote once.
            Exchange::Tree(tree) => (tree.leaf(sums), false, Some(micro_step.index == 0)),
            _ => (sums.view_mut(), micro_step.index > 0, micro_step.is_last.then_some(true)),
        };
        let mut tail = grads.range(*len, *len + TAIL_ELEMENTS)?;
        let extra = match (votes, vote) {
            (None, _) => None,
            (Some(false), _) => Some(no_vote.view()),
            (Some(true), Vote::Device(scalars)) => {
                Some(scalars.range(STEP_SCALARS_EXTRA, STEP_SCALARS_EXTRA + 1)?)
            }
            (Some(true), Vote::Host(vote)) => {
                tail.reborrow().into_slice::<f32>("step", "vote")?[STEP_VOTE] = vote as f32;
                None
            }
        };
        Ok(SumsOutput { tail, accumulate, extra })
    }

    /// The step's sums.
    pub(crate) fn tail(&self) -> Result<TensorRef<'_>> {
        Ok(self.sums.view().range(self.len, self.len + TAIL_ELEMENTS)?)
    }

    /// Reduced gradients of a shard, in the format in which they were exchanged.
    pub(crate) fn of_shard(&self, shard: &Shard) -> Result<TensorRef<'_>> {
        let (gradients, start) = match &self.exchange {
            Exchange::EveryMicroBatch(_) => (&self.sums, shard.state_start),
            Exchange::Buckets(_, Some(wire)) => (&wire.grads, shard.flat.start),
            _ => (&self.sums, shard.flat.start),
        };
        Ok(gradients.view().range(start, start + shard.flat.len())?)
    }

    /// All gradients and the tail, where they are reduced with the update.
    pub(crate) fn flat_mut(&mut self) -> &mut Tensor {
        &mut self.sums
    }

    /// Bytes that this rank sends in a step of `n_micro_batches` micro-batches per rank, counted for ring algorithms: gradients, sums and
    /// gathered weights, which take `weight_bytes`.
    pub(crate) fn exchange_bytes(
        &self,
        world_size: usize,
        flat_len: usize,
        n_micro_batches: usize,
        weight_bytes: usize,
    ) -> ExchangeBytes {
        let way = match &self.exchange {
            Exchange::Alone => ExchangeWay::Alone,
            Exchange::WithUpdate => ExchangeWay::AllReduce { is_rounded: false },
            Exchange::Buckets(Reduction::ToAll, wire) => {
                ExchangeWay::AllReduce { is_rounded: wire.is_some() }
            }
            Exchange::Buckets(Reduction::ToOwners, wire) => {
                ExchangeWay::ReduceScatter { is_rounded: wire.is_some() }
            }
            Exchange::EveryMicroBatch(_) => ExchangeWay::EveryMicroBatch { n_micro_batches },
            Exchange::Tree(tree) => {
                ExchangeWay::Tree { sent: tree.exchange_bytes(), gathers_weights: self.gathers_weights }
            }
        };
        ExchangeBytes::new(way, world_size, flat_len, weight_bytes)
    }

    /// Computes the gradients of a micro-batch and adds them to those of earlier micro-batches. After the step's last one they are
    /// reduced over the ranks, except for what is reduced with the update.
    ///
    /// - `squares`: receives the sum of squares of this rank's shard, if the exchange can sum it
    /// - `ranks`: for layers that exchange within the pass
    pub(crate) fn backward(
        &mut self,
        world: &World,
        model: &mut Network,
        inputs: BackwardInputs<'_>,
        shard_plan: &ShardPlan,
        squares: Option<&mut Tensor>,
        ranks: Option<&mut dyn AllRanks>,
    ) -> Result<()> {
        let BackwardInputs { x, dropout, micro_step } = inputs;
        let squares = squares.filter(|_| self.sums_squares_in_exchange());
        let accumulate = micro_step.index > 0;
        let Gradients { sums, len, exchange, buckets, overlap, .. } = self;
        let (len, overlap) = (*len, *overlap);
        let group = world.tensor_group();
        match exchange {
            Exchange::EveryMicroBatch(buffers) => {
                let (shards, tail) = sums.view_mut().split_at(len)?;
                let lent = buffers.lend(shards);
                group.scope(|scope| {
                    let tail = micro_step.is_last.then_some(tail);
                    let mut sink = ShardedGradients::new(scope, lent, tail, accumulate, overlap);
                    // The buffers hold other buckets, so nothing accumulates in them.
                    model.backward_over_ranks(x, dropout, false, ranks, &mut sink)?;
                    sink.finish()
                })
            }
            Exchange::Buckets(reduction, wire) if micro_step.is_last => {
                let reduction = *reduction;
                let Some(wire) = wire else {
                    let grads = sums.view_mut();
                    return group.scope(|scope| {
                        if let Some(squares) = squares {
                            scope.sum_squares_into(squares.view_mut());
                        }
                        let mut sink = ReducedGradients::new(scope, buckets, grads, overlap, reduction)?;
                        model.backward_over_ranks(x, dropout, accumulate, ranks, &mut sink)?;
                        sink.finish()
                    });
                };
                let (singles, tail) = sums.view_mut().split_at(len)?;
                group.scope(|scope| {
                    if let Some(squares) = squares {
                        scope.sum_squares_into(squares.view_mut());
                    }
                    let mut sink =
                        CompressedGradients::new(scope, buckets, singles, tail, wire, overlap, reduction)?;
                    model.backward_over_ranks(x, dropout, accumulate, ranks, &mut sink)?;
                    sink.finish()
                })
            }
            Exchange::Tree(tree) => {
                model.backward_over_ranks(x, dropout, false, ranks, &mut LocalGradients(tree.leaf(sums)))?;
                tree.push(sums)?;
                if micro_step.is_last { tree.exchange(world, sums) } else { Ok(()) }
            }
            Exchange::Alone | Exchange::Buckets(..) | Exchange::WithUpdate => {
                model.backward_over_ranks(
                    x,
                    dropout,
                    accumulate,
                    ranks,
                    &mut LocalGradients(sums.view_mut()),
                )?;
                match exchange {
                    Exchange::WithUpdate if micro_step.is_last => shard_plan.reduce_rest(world, sums),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Computes the gradients of a micro-batch as [`Gradients::backward`] does, without any exchange between the ranks. What it
    /// writes, the next step overwrites. Does nothing where the exchange needs memory for that and there is none.
    pub(crate) fn rehearse_backward(
        &mut self,
        model: &mut Network,
        inputs: BackwardInputs<'_>,
    ) -> Result<()> {
        let BackwardInputs { x, dropout, micro_step } = inputs;
        match &mut self.exchange {
            Exchange::EveryMicroBatch(_) | Exchange::Tree(_) => {
                let (n, device) = (model.layout().flat_len() + TAIL_ELEMENTS, model.device());
                match Tensor::zeros_for(MemoryUse::Workspace, &[n], DType::F32, device) {
                    Err(KernelError::OutOfMemory { .. }) => {}
                    scratch => {
                        model.backward(x, dropout, false, &mut LocalGradients(scratch?.view_mut()))?;
                    }
                }
            }
            Exchange::Buckets(_, Some(wire)) if wire.is_written_by_layers() => {
                let singles = self.sums.view_mut().range(0, self.len)?;
                model.backward(x, dropout, false, &mut LocalWire { singles, wire })?;
            }
            Exchange::Alone | Exchange::Buckets(..) | Exchange::WithUpdate => {
                let accumulate = micro_step.index > 0;
                model.backward(x, dropout, accumulate, &mut LocalGradients(self.sums.view_mut()))?;
            }
        }
        Ok(())
    }

    /// Whether a step can have several micro-batches.
    pub(crate) fn can_accumulate(&self) -> bool {
        !matches!(&self.exchange, Exchange::Buckets(_, Some(wire)) if wire.is_written_by_layers())
    }

    /// Whether [`Gradients::backward`] sums the squares of buckets after their reduction: on GPUs. On the CPU one pass over all of
    /// them follows, whose order of summation does not depend on the buckets.
    fn sums_squares_in_exchange(&self) -> bool {
        matches!(self.exchange, Exchange::Buckets(..)) && self.sums.device() != Device::Cpu
    }

    /// Completes the sum of squares of the reduced gradients of all ranks in `sum`, `[1]` f64, which the step's last
    /// [`Gradients::backward`] was given.
    pub(crate) fn sum_of_squares(
        &self,
        world: &World,
        shard_plan: &ShardPlan,
        sum: &mut Tensor,
    ) -> Result<()> {
        if let Exchange::Tree(_) = self.exchange {
            // Per parameter, without the gaps between them, which depend on the number of ranks.
            for (index, param) in self.params.iter().enumerate() {
                let grads = self.sums.view().range(param.start, param.end)?;
                ops::sum_of_squares(grads, sum.view_mut(), index > 0)?;
            }
            return Ok(());
        }
        let in_exchange = self.sums_squares_in_exchange();
        let mut is_first = true;
        let mut add = |shard: Shard, sum: &mut Tensor| -> Result<()> {
            let accumulate = !std::mem::take(&mut is_first);
            Ok(ops::sum_of_squares(self.of_shard(&shard)?, sum.view_mut(), accumulate)?)
        };
        for block in shard_plan.blocks().iter().filter(|_| !in_exchange) {
            add(shard_plan.own_shard(block), sum)?;
        }
        if !shard_plan.blocks().is_empty() {
            world.tensor_group().all_reduce(ReduceOp::Sum, sum.view_mut())?;
        }
        // All ranks have the same rest.
        let rest = shard_plan.rest();
        if in_exchange || rest.flat.is_empty() { Ok(()) } else { add(rest, sum) }
    }
}
