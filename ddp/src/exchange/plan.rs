//! The exchange of a run, chosen once from its options: the way to reduce gradients, the division of the update, the gather of weights;
//! with the bytes and the memory of all of it.
//!
//! ```
//! use ddp::exchange::plan::ExchangePlan;
//! use ddp::exchange::shard_plan::Ranks;
//! use ddp::model::BufferPlan;
//! use ddp::nn::{Activation, ModelSpec, Precision};
//! use ddp::prelude::*;
//! use ddp::train::{TrainerOptions, ZeroStage};
//!
//! // Four ranks on GPUs that need not be there.
//! let ranks = Ranks { rank: 0, world_size: 4, shares_memory: false };
//! let spec = ModelSpec::plain(&[64, 128, 10], Activation::Relu);
//! let (device, precision) = (Device::Cuda(0), Precision::F32);
//! let options = TrainerOptions { zero: ZeroStage::Optimizer, ..TrainerOptions::default() };
//! let layout = options.layout(&spec, ranks.world_size);
//! let formats = BufferPlan { spec: &spec, layout: &layout, max_rows: 32, device, precision }.flat_formats();
//! let plan = ExchangePlan::new(&options.exchange(), ranks, &layout, &formats);
//! assert_eq!(plan.describe(1), "reduce-scatter of gradients in 1 bucket, all-gather of weights");
//! assert_eq!(plan.state_len(), layout.flat_len() / 4);
//! let bytes = plan.bytes(1, &[], std::iter::empty());
//! assert_eq!(bytes.sent, bytes.all_reduce, "ZeRO-1 sends no more than an all-reduce");
//! ```

use ddp_kernels::{DType, Device};

use crate::config::{CommDtype, ZeroStage};
use crate::data::order::partition::{PartitionKind, RankPartition};
use crate::exchange::alone::Alone;
use crate::exchange::averaged_weights::AveragedWeights;
use crate::exchange::bucket_plan::{BucketPlan, TAIL_ELEMENTS};
use crate::exchange::buckets::{Buckets, Reduction, Unrounded};
use crate::exchange::fixed_tree::FixedTree;
use crate::exchange::rank_exchange::RankExchange;
use crate::exchange::shard_plan::{Ranks, ShardPlan};
use crate::exchange::way::{Exchange, ring_bytes};
use crate::exchange::weight_gather::ShortGather;
use crate::exchange::whole_parameters::WholeParameters;
use crate::exchange::with_update::WithUpdate;
use crate::exchange::zero2::Zero2;
use crate::model::{FlatFormats, Layer, ParamEntry, ParamLayout};
use crate::optim::param_groups::WholeParameter;

/// Options of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeOptions {
    /// ZeRO stage.
    pub zero: ZeroStage,
    /// Whether each rank with shards also holds a copy of the state of the rank before it, which it updates.
    pub has_copies: bool,
    /// Number format of gradients between GPUs.
    pub comm_dtype: CommDtype,
    /// Whether no step has more than one micro-batch.
    pub has_one_micro_batch: bool,
    /// Micro-shards of a global batch, whose gradients are summed along one fixed tree.
    pub micro_shards: Option<usize>,
    /// Whether buckets are reduced while backward computes.
    pub overlap: bool,
    /// Largest bucket in bytes.
    pub bucket_bytes: usize,
    /// Elements of the flat buffer from which ranks that share memory divide the update between them.
    pub divide_update_from: usize,
    /// Whether ranks with shards of the weights gather them in the format of matmuls, where that is shorter.
    pub gathers_short_weights: bool,
    /// Whether GPUs may update the weights of a bucket while later ones are being reduced: an update needs nothing of all gradients.
    pub updates_buckets: bool,
}

/// Bytes that a step sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeBytes {
    /// Bytes sent by this rank.
    pub sent: u64,
    /// Bytes that a ring all-reduce of the same gradients would send, for comparison.
    pub all_reduce: u64,
}

/// The exchange of one rank, without its memory.
#[derive(Debug)]
pub struct ExchangePlan {
    pub(crate) way: Box<dyn Exchange>,
    /// Lengths of the buckets, compared between ranks at start.
    pub(crate) bucket_lens: Vec<usize>,
    pub(crate) shard_plan: ShardPlan,
    /// Gather of updated weights in a short format, where they are not gathered in f32.
    pub(crate) short_gather: Option<ShortGather>,
    world_size: usize,
}

impl ExchangeOptions {
    /// The same options for ranks on a device like this one: on GPUs no rank updates copies.
    #[must_use]
    pub(crate) fn on(self, device: Device) -> Self {
        ExchangeOptions { has_copies: self.has_copies && device == Device::Cpu, ..self }
    }

    /// Plans which rank updates which weights.
    pub(crate) fn shard_plan(&self, ranks: Ranks, buckets: &BucketPlan, flat_len: usize) -> ShardPlan {
        let Ranks { rank, world_size, .. } = ranks;
        match self.zero {
            // Every rank that sums along the tree holds all gradients.
            ZeroStage::Off if self.micro_shards.is_some() => ShardPlan::whole(flat_len, rank),
            ZeroStage::Off => ShardPlan::new(ranks, flat_len, self.divide_update_from),
            _ if world_size == 1 => ShardPlan::whole(flat_len, rank),
            _ if self.has_copies => ShardPlan::sharded(buckets, rank, world_size).with_copies(1),
            _ => ShardPlan::sharded(buckets, rank, world_size),
        }
    }
}

impl ExchangePlan {
    /// Chooses the exchange of a model with this layout and these formats.
    ///
    /// # Panics
    /// If the number of micro-shards is not a power of two.
    pub fn new(options: &ExchangeOptions, ranks: Ranks, layout: &ParamLayout, formats: &FlatFormats) -> Self {
        let (Ranks { rank, world_size, .. }, flat_len) = (ranks, layout.flat_len());
        let ExchangeOptions { overlap, has_one_micro_batch, .. } = *options;
        let plan = BucketPlan::new(layout, options.bucket_bytes);
        let shard_plan = options.shard_plan(ranks, &plan, flat_len);
        let bucket_lens = plan.lens();
        let buckets = |plan: BucketPlan, reduction| {
            let rounds_in_layers = formats.activations == DType::BF16 && has_one_micro_batch;
            let singles = || {
                Unrounded(if rounds_in_layers {
                    formats.unrounded.clone()
                } else {
                    std::iter::once(0..flat_len).collect()
                })
            };
            let on_gpu = formats.device != Device::Cpu;
            let rounded = (on_gpu && options.comm_dtype == CommDtype::Bf16).then(singles);
            let has_several = reduction == Reduction::ToAll && plan.ranges().len() > 1;
            let updates = on_gpu && overlap && options.updates_buckets && has_several;
            Box::new(Buckets { plan, reduction, rounded, overlap, updates, world_size, flat_len })
        };
        let way: Box<dyn Exchange> = match (options.zero, options.micro_shards) {
            (_, Some(n_shards)) => {
                let kind = PartitionKind::MicroShards { n_shards };
                let params = layout.entries().iter().map(ParamEntry::range).collect();
                let partition = RankPartition { kind, rank, world_size };
                Box::new(FixedTree::new(partition, flat_len + TAIL_ELEMENTS, params))
            }
            _ if world_size == 1 => {
                let updates = formats.device != Device::Cpu && overlap && options.updates_buckets;
                Box::new(Alone::new(layout, updates.then_some(options.bucket_bytes)))
            }
            (ZeroStage::Off, None) if shard_plan.is_divided() => {
                Box::new(WithUpdate { shard_plan: shard_plan.clone(), world_size })
            }
            (ZeroStage::Off, None) => buckets(plan, Reduction::ToAll),
            (ZeroStage::Optimizer, None) => buckets(plan, Reduction::ToOwners),
            (ZeroStage::Gradients, None) => {
                let zero2 = Zero2::new(layout, &plan, rank, world_size, overlap);
                Box::new(zero2.with_copies(shard_plan.copy_of().is_some()))
            }
        };
        let short_gather = ShortGather::new(formats, &shard_plan, world_size);
        let short_gather = short_gather.filter(|_| options.gathers_short_weights);
        ExchangePlan { way, bucket_lens, shard_plan, short_gather, world_size }
    }

    /// The way to exchange gradients.
    pub fn way(&self) -> &dyn Exchange {
        &*self.way
    }

    /// Names the collectives of a step of `n_micro_batches` micro-batches per rank.
    pub fn describe(&self, n_micro_batches: usize) -> String {
        let copies = if self.has_copies() { ", copies of shards to the next rank" } else { "" };
        let weights = if self.gathers_weights() { ", all-gather of weights" } else { "" };
        format!("{}{copies}{weights}", self.way.describe(n_micro_batches))
    }

    /// Bytes that a rank sends in such a step: gradients, sums, gathered weights, what the optimizer needs of `whole` parameters, and what
    /// `layers` exchange within passes.
    pub fn bytes<'a>(
        &self,
        n_micro_batches: usize,
        whole: &[WholeParameter],
        layers: impl Iterator<Item = &'a dyn Layer>,
    ) -> ExchangeBytes {
        let n_ranks = self.world_size;
        let in_single = self.shard_plan.flat_len() * DType::F32.size_bytes();
        let of_weights = if self.gathers_weights() { ring_bytes(n_ranks, self.gathered_bytes()) } else { 0 };
        let sent = self.way.bytes_sent(n_micro_batches)
            + of_weights
            + self.passed_on_bytes()
            + WholeParameters::bytes_sent(whole, &self.shard_plan, n_ranks)
            + RankExchange::bytes_sent(layers, n_ranks, n_micro_batches);
        let tail = TAIL_ELEMENTS * DType::F32.size_bytes();
        ExchangeBytes { sent, all_reduce: 2 * ring_bytes(n_ranks, in_single + tail) }
    }

    /// Bytes of the exchange of gradients on the device of a rank.
    ///
    /// - `exchanged`: bytes allocated for a tensor that collectives exchange in every step
    pub fn gradient_bytes(&self, exchanged: impl Fn(usize) -> usize) -> usize {
        let buffers = self.way.buffers().into_iter();
        let bytes = buffers.map(|buffer| (buffer.len * buffer.dtype.size_bytes(), buffer.is_exchanged));
        bytes.map(|(bytes, is_exchanged)| if is_exchanged { exchanged(bytes) } else { bytes }).sum()
    }

    /// Number of buckets.
    pub fn n_buckets(&self) -> usize {
        self.bucket_lens.len()
    }

    /// Whether ranks hold shards of the optimizer's state, and gather the weights that they update.
    pub fn gathers_weights(&self) -> bool {
        self.shard_plan.is_sharded()
    }

    /// Bytes of all weights in the format in which they are gathered.
    pub fn gathered_bytes(&self) -> usize {
        let in_single = self.shard_plan.flat_len() * DType::F32.size_bytes();
        self.short_gather.as_ref().map_or(in_single, |gather| gather.bytes)
    }

    /// Whether they gather them in a format shorter than f32.
    pub fn gathers_short_weights(&self) -> bool {
        self.short_gather.is_some()
    }

    /// Whether ranks hold copies of the state of another one's shards.
    pub fn has_copies(&self) -> bool {
        self.shard_plan.copy_of().is_some()
    }

    /// Bytes of gradients that a rank passes on to the holder of its copy.
    fn passed_on_bytes(&self) -> u64 {
        let is_needed = self.has_copies() && !self.way.has_all_gradients();
        let n_bytes = self.shard_plan.own_len() * DType::F32.size_bytes();
        if is_needed { n_bytes as u64 } else { 0 }
    }

    /// Elements of each tensor of optimizer state, with those of a copy.
    pub fn state_len(&self) -> usize {
        self.shard_plan.state_len()
    }

    /// Elements of each tensor of optimizer state without copies.
    pub fn own_len(&self) -> usize {
        self.shard_plan.own_len()
    }

    /// Elements (f32) for a moving average of the weights, including the buffers of its evaluations, which the model's file needs too.
    pub fn average_len(&self) -> usize {
        self.state_len() + AveragedWeights::len(self.shard_plan.flat_len())
    }

    /// Elements (f32) for directions of whole matrices, of which ranks update shards.
    pub fn gathered_directions_len(&self) -> usize {
        WholeParameters::gathered_len(&self.shard_plan)
    }
}
