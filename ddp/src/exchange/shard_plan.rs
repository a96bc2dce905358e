//! Assignment of weights and optimizer state to ranks: which rank reduces, updates and stores which shard.
//!
//! After an all-reduce every rank holds every gradient and updates all weights by itself. Two plans divide the update:
//!
//! - ranks that share memory share its bandwidth too, and reduction and update of a large model are bound by memory traffic:
//!   the ranks go through the flat buffer block by block, each reduces and updates its shard of a block, and they gather
//!   the block's weights while it is in cache. The weights get the same bits either way;
//! - with ZeRO each rank holds the optimizer state of its own shard of every bucket only; with copies also that of the rank before it, which
//!   it updates by the same gradients, so that the state survives the loss of one of the two.
//!
//! Source: ZeRO, arXiv:1910.02054.
//!
//! ```
//! use ddp::exchange::bucket_plan::BucketPlan;
//! use ddp::exchange::shard_plan::ShardPlan;
//! use ddp::nn::{Activation, ModelSpec, ParamLayout};
//!
//! let layout = ParamLayout::shared_by(&ModelSpec::plain(&[64, 128, 10], Activation::Relu), 2);
//! let buckets = BucketPlan::new(&layout, 25 << 20);
//! let plans = [0, 1].map(|rank| ShardPlan::sharded(&buckets, rank, 2));
//! let updated: Vec<_> = plans.iter().flat_map(|plan| plan.own_shards()).map(|shard| shard.flat).collect();
//! let half = layout.flat_len() / 2;
//! assert_eq!(updated, [0..half, half..2 * half]);
//! assert!(plans.iter().all(|plan| plan.state_len() == half));
//! ```

use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::{Tensor, TensorMut};

use crate::exchange::bucket_plan::BucketPlan;
use crate::exchange::error::Result;

/// Elements of a rank's shard of a block: with weights, gradients and optimizer state it fits a second-level cache.
const SHARD_ELEMENTS: usize = 32 << 10;
/// Alignment of shards in elements: cache lines.
const ALIGN_ELEMENTS: usize = 16;

/// The ranks of a run as one of them sees them; none needs to be running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Whether they share memory: the ranks of one host that compute on the CPU.
    pub shares_memory: bool,
}

impl Ranks {
    /// The ranks of `world`.
    pub fn of(world: &World) -> Self {
        let shares_memory = world.tensor_group().shares_memory();
        Ranks { rank: world.rank().0, world_size: world.world_size(), shares_memory }
    }
}

/// Division of the flat buffer of weights over the ranks for the update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// Ranges of equal shards, one per rank in rank order; empty where every rank updates all weights.
    blocks: Vec<Range<usize>>,
    /// The range after the blocks, which all ranks update.
    rest: Range<usize>,
    /// Index of this rank's shard in each block.
    index: usize,
    /// Shards per block.
    n_shards: usize,
    /// Whether state is held for this rank's shards only, packed one after the other.
    is_sharded: bool,
    /// Index of the shards of another rank, of whose state this rank holds a copy, after its own.
    copied: Option<usize>,
}

/// A range of the flat buffer that this rank updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Range of the flat buffer.
    pub flat: Range<usize>,
    /// Start of its state in the state tensors.
    pub state_start: usize,
}

/// A range of the flat buffer whose state a rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateShard {
    /// Range of the flat buffer.
    pub flat: Range<usize>,
    /// Start in the state tensors.
    pub offset: usize,
}

impl From<Shard> for StateShard {
    fn from(shard: Shard) -> Self {
        StateShard { flat: shard.flat, offset: shard.state_start }
    }
}

impl ShardPlan {
    /// Plans the update of `flat_len` elements: divided on ranks that share memory, from `divide_from` elements on.
    pub fn new(ranks: Ranks, flat_len: usize, divide_from: usize) -> Self {
        let Ranks { rank, world_size, shares_memory } = ranks;
        Self::divided(flat_len, rank, if shares_memory && flat_len >= divide_from { world_size } else { 1 })
    }

    /// Plan in which every rank updates the whole flat buffer.
    pub fn whole(flat_len: usize, rank: usize) -> Self {
        Self::divided(flat_len, rank, 1)
    }

    /// Plan in which each rank updates its shard of each bucket and holds the state of that shard only.
    ///
    /// # Panics
    /// If a bucket is not divisible by the number of ranks: the layout was made for another world size.
    pub fn sharded(buckets: &BucketPlan, index: usize, n_shards: usize) -> Self {
        let blocks = buckets.without_tail().ranges().to_vec();
        assert!(
            blocks.iter().all(|block| block.len().is_multiple_of(n_shards)),
            "a layout for {n_shards} ranks"
        );
        let end = blocks.last().map_or(0, |last| last.end);
        ShardPlan { blocks, rest: end..end, index, n_shards, is_sharded: true, copied: None }
    }

    /// The same plan in which each rank also holds a copy of the state of the rank `distance` before it, if there are several with shards.
    #[must_use]
    pub fn with_copies(self, distance: usize) -> Self {
        let before = (self.index + self.n_shards - distance) % self.n_shards;
        ShardPlan { copied: (self.is_sharded && self.n_shards > 1).then_some(before), ..self }
    }

    fn divided(flat_len: usize, index: usize, n_shards: usize) -> Self {
        let (mut blocks, mut start) = (Vec::new(), 0);
        let shard_len = |start: usize| match n_shards {
            1 => 0,
            _ => ((flat_len - start) / n_shards).min(SHARD_ELEMENTS) / ALIGN_ELEMENTS * ALIGN_ELEMENTS,
        };
        while shard_len(start) > 0 {
            let end = start + shard_len(start) * n_shards;
            blocks.push(start..end);
            start = end;
        }
        ShardPlan { blocks, rest: start..flat_len, index, n_shards, is_sharded: false, copied: None }
    }

    /// Whether each rank updates a shard of each block, but holds state for all weights. Then [`ShardPlan::reduce`]
    /// replaces the all-reduce.
    pub fn is_divided(&self) -> bool {
        !self.blocks.is_empty() && !self.is_sharded
    }

    /// Whether each rank holds the state of its shards only.
    pub fn is_sharded(&self) -> bool {
        self.is_sharded
    }

    /// The blocks that are divided over the ranks.
    pub fn blocks(&self) -> &[Range<usize>] {
        &self.blocks
    }

    /// This rank's shard of a block.
    pub fn own_shard(&self, block: &Range<usize>) -> Shard {
        let flat = self.shard_of(self.index, block);
        // The shards of all earlier blocks together are `n_shards` times smaller than those blocks.
        let state_start = if self.is_sharded { block.start / self.n_shards } else { flat.start };
        Shard { flat, state_start }
    }

    /// The shard of another rank of a block, of whose state this rank holds a copy.
    pub fn copied_shard(&self, block: &Range<usize>) -> Option<Shard> {
        let state_start = self.own_len() + block.start / self.n_shards;
        self.copied.map(|index| Shard { flat: self.shard_of(index, block), state_start })
    }

    /// The shards of a block, in the order of the ranks.
    pub fn shards_of(&self, block: &Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let block = block.clone();
        (0..self.n_shards).map(move |index| self.shard_of(index, &block))
    }

    /// The elements of a block that belong to the shards of this index.
    fn shard_of(&self, index: usize, block: &Range<usize>) -> Range<usize> {
        let len = block.len() / self.n_shards;
        block.start + index * len..block.start + (index + 1) * len
    }

    /// The rank of whose state this rank holds a copy.
    pub fn copy_of(&self) -> Option<usize> {
        self.copied
    }

    /// The range that all ranks update.
    pub fn rest(&self) -> Shard {
        Shard { flat: self.rest.clone(), state_start: self.rest.start }
    }

    /// All ranges that this rank updates, in order.
    pub fn own_shards(&self) -> impl Iterator<Item = Shard> + '_ {
        let rest = (!self.rest.is_empty()).then(|| self.rest());
        self.blocks.iter().map(|block| self.own_shard(block)).chain(rest)
    }

    /// All ranges whose state this rank holds as a copy, in order.
    pub fn copied_shards(&self) -> impl Iterator<Item = Shard> + '_ {
        self.blocks.iter().filter_map(|block| self.copied_shard(block))
    }

    /// Elements of the flat buffer.
    pub fn flat_len(&self) -> usize {
        self.rest.end
    }

    /// Elements of each state tensor.
    pub fn state_len(&self) -> usize {
        self.own_len() * if self.copied.is_some() { 2 } else { 1 }
    }

    /// Elements of each state tensor without copies.
    pub fn own_len(&self) -> usize {
        if self.is_sharded { self.rest.end / self.n_shards } else { self.rest.end }
    }

    /// Shards of the state that this rank stores: each element of the flat buffer belongs to one rank.
    pub fn shards_to_store(&self) -> Vec<StateShard> {
        let shards = self.blocks.iter().map(|block| self.own_shard(block));
        // All ranks have the same state of the rest.
        let rest = (self.index == 0 && !self.rest.is_empty()).then(|| self.rest());
        shards.chain(rest).map(StateShard::from).collect()
    }

    /// Shards of the state that this rank stores after a loss, together with the other `ranks` that are left: its own, and those of the rank
    /// whose copy it holds, if that one is lost.
    pub fn shards_to_store_with(&self, ranks: &[usize]) -> Vec<StateShard> {
        let is_lost = self.copied.is_some_and(|rank| !ranks.contains(&rank));
        let copies = self.copied_shards().filter(|_| is_lost);
        self.shards_to_store().into_iter().chain(copies.map(StateShard::from)).collect()
    }

    /// Shards of the state that this rank restores: all that it holds.
    pub fn shards_to_restore(&self) -> Vec<StateShard> {
        if self.is_sharded {
            self.shards_to_store_with(&[])
        } else {
            vec![StateShard { flat: 0..self.rest.end, offset: 0 }]
        }
    }

    /// Reduce-scatters a block of the gradients in place.
    pub fn reduce(&self, world: &World, grads: &mut Tensor, block: &Range<usize>) -> Result<()> {
        let block = grads.view_mut().range(block.start, block.end)?;
        Ok(world.group().reduce_scatter_in_place(ReduceOp::Sum, block)?)
    }

    /// All-gathers a block in place.
    pub fn gather(&self, world: &World, flat: TensorMut<'_>, block: &Range<usize>) -> Result<()> {
        let block = flat.range(block.start, block.end)?;
        Ok(world.tensor_group().all_gather_in_place(block)?)
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;
    use proptest::prelude::*;

    use super::*;
    use crate::model::{ModelSpec, ParamLayout};

    proptest! {
        #[test]
        fn each_element_is_updated_by_one_rank_or_by_all(flat_len in 0usize..300_000, n_shards in 1usize..9) {
            let mut n_updates = vec![0; flat_len];
            let mut n_stored = vec![0; flat_len];
            for index in 0..n_shards {
                let plan = ShardPlan::divided(flat_len, index, n_shards);
                plan.own_shards().flat_map(|shard| shard.flat).for_each(|element| n_updates[element] += 1);
                plan.shards_to_store().into_iter().flat_map(|shard| shard.flat).for_each(|i| n_stored[i] += 1);
            }
            let plan = ShardPlan::divided(flat_len, 0, n_shards);
            prop_assert!(n_shards == 1 || plan.rest().flat.len() < n_shards * ALIGN_ELEMENTS);
            for (element, n) in n_updates.into_iter().enumerate() {
                prop_assert_eq!(n, if plan.rest().flat.contains(&element) { n_shards } else { 1 });
            }
            prop_assert!(n_stored.iter().all(|&n| n == 1));
        }

        #[test]
        fn sharded_state_is_held_once_and_without_gaps(
            dims in prop::collection::vec(1usize..60, 2..6), n_shards in 1usize..9, cap_bytes in 1usize..20_000,
        ) {
            let layout = ParamLayout::shared_by(&ModelSpec::plain(&dims, Activation::Relu), n_shards);
            let mut n_updates = vec![0; layout.flat_len()];
            for index in 0..n_shards {
                let plan = ShardPlan::sharded(&BucketPlan::new(&layout, cap_bytes), index, n_shards);
                prop_assert_eq!(plan.state_len() * n_shards, layout.flat_len());
                prop_assert_eq!(plan.shards_to_store(), plan.shards_to_restore());
                let mut end = 0;
                for shard in plan.shards_to_store() {
                    prop_assert_eq!(shard.offset, end);
                    end += shard.flat.len();
                    shard.flat.for_each(|element| n_updates[element] += 1);
                }
                prop_assert_eq!(end, plan.state_len());
            }
            prop_assert!(n_updates.iter().all(|&n| n == 1));
        }
    }

    #[test]
    fn each_shard_is_held_twice_where_ranks_hold_copies() {
        let layout = ParamLayout::shared_by(&ModelSpec::plain(&[7, 60, 5], Activation::Relu), 3);
        for distance in [1, 2] {
            let plan =
                |rank| ShardPlan::sharded(&BucketPlan::new(&layout, 500), rank, 3).with_copies(distance);
            let mut n_holders = vec![0; layout.flat_len()];
            for rank in 0..3 {
                let plan = plan(rank);
                assert_eq!(
                    (plan.copy_of(), plan.state_len()),
                    (Some((rank + 3 - distance) % 3), 2 * plan.own_len())
                );
                let mut offsets = vec![0; plan.state_len()];
                for StateShard { flat, offset } in plan.shards_to_restore() {
                    offsets[offset..offset + flat.len()].iter_mut().for_each(|n| *n += 1);
                    flat.for_each(|element| n_holders[element] += 1);
                }
                assert!(offsets.iter().all(|&n| n == 1));
            }
            assert!(n_holders.iter().all(|&n| n == 2));
            for lost in 0..3 {
                let left: Vec<usize> = (0..3).filter(|rank| *rank != lost).collect();
                let mut n_stored = vec![0; layout.flat_len()];
                let stored = left.iter().flat_map(|&rank| plan(rank).shards_to_store_with(&left));
                stored.for_each(|shard| shard.flat.for_each(|element| n_stored[element] += 1));
                assert!(n_stored.iter().all(|&n| n == 1), "without rank {lost}");
            }
        }
        let alone = ShardPlan::sharded(&BucketPlan::new(&layout, 500), 0, 1).with_copies(1);
        assert_eq!(alone.copy_of(), None);
    }

    #[test]
    fn a_world_of_one_updates_all() {
        let plan = ShardPlan::new(Ranks::of(&World::single()), 1 << 22, 0);
        assert_eq!((plan.rest().flat, plan.is_divided()), (0..1 << 22, false));
    }
}
