//! Gather of updated weights: in f32, or in the format of matmuls, where that is shorter.
//!
//! In a short format each rank writes the copy of its own shards with the update, and the ranks gather those. The few weights that
//! passes read in f32 (norms, the bias of the last layer) are broadcast by the ranks that hold them. The other ranks' master weights
//! stay as they were, until something reads all of them.
//!
//! Source: PyTorch FSDP, `MixedPrecision(param_dtype)`, which gathers parameters in that format and keeps sharded ones in f32.

use std::ops::Range;

use ddp_comm::{Rank, Scope};
use ddp_kernels::{DType, Device, TensorMut};

use crate::exchange::error::{ExchangeError, Result};
use crate::exchange::shard_plan::ShardPlan;
use crate::model::{FlatFormats, WeightsMut};

/// The gather in a short format.
#[derive(Debug, Clone)]
pub(crate) struct ShortGather {
    /// For each block: the weights that passes read in f32 and the rank that updates them, in order.
    master_reads: Vec<Vec<(Rank, Range<usize>)>>,
    /// Bytes of all weights that are gathered.
    pub(crate) bytes: usize,
}

impl ShortGather {
    /// The gather of weights of these formats by `n_ranks` ranks; None where they are gathered in f32: on the CPU, in precisions whose
    /// matmuls read f32, without shards, and where a short format saves nothing.
    pub(crate) fn new(formats: &FlatFormats, shard_plan: &ShardPlan, n_ranks: usize) -> Option<Self> {
        let FlatFormats { device, activations, master_reads: reads, .. } = formats;
        let (flat_len, f32_bytes) = (shard_plan.flat_len(), DType::F32.size_bytes());
        let n_reads: usize = reads.iter().map(ExactSizeIterator::len).sum();
        let bytes = flat_len * activations.size_bytes() + n_reads * f32_bytes;
        let is_shorter = *activations != DType::F32 && bytes < flat_len * f32_bytes;
        if !shard_plan.is_sharded() || *device == Device::Cpu || !is_shorter {
            return None;
        }
        let of_block = |block: &Range<usize>| {
            let len = block.len() / n_ranks;
            let shards = (0..n_ranks).map(|rank| {
                let start = block.start + rank * len;
                (Rank(rank), start..start + len)
            });
            let within = |(rank, shard): (Rank, Range<usize>)| {
                let part = move |read: &Range<usize>| read.start.max(shard.start)..read.end.min(shard.end);
                reads.iter().map(part).filter(|part| !part.is_empty()).map(move |part| (rank, part))
            };
            shards.flat_map(within).collect()
        };
        Some(ShortGather { master_reads: shard_plan.blocks().iter().map(of_block).collect(), bytes })
    }

    /// The weights of block `index` that are exchanged in f32.
    pub(crate) fn master_reads(&self, index: usize) -> impl Iterator<Item = &Range<usize>> {
        self.master_reads[index].iter().map(|(_, range)| range)
    }

    /// Starts to gather block `index`, of which each rank has updated its shard.
    pub(crate) fn start<'env>(
        &self,
        scope: &mut Scope<'env>,
        block: &Range<usize>,
        index: usize,
        weights: WeightsMut<'env>,
    ) -> Result<()> {
        let WeightsMut { master, compute } = weights;
        scope.together(|scope| {
            if let Some(compute) = compute {
                scope.all_gather_in_place(compute)?;
            }
            let (mut start, mut rest): (usize, TensorMut<'env>) = (block.start, master);
            for (owner, range) in &self.master_reads[index] {
                let (_, after) = rest.split_at(range.start - start)?;
                let (read, after) = after.split_at(range.len())?;
                scope.broadcast(*owner, read)?;
                (start, rest) = (range.end, after);
            }
            Ok::<_, ExchangeError>(())
        })
    }
}
