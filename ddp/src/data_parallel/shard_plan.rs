//! Who reduces and updates which weights, and who holds which part of the optimiser's state.
//!
//! After an all-reduce every rank holds every gradient and updates all weights by itself. Two plans divide the update:
//!
//! - where ranks share memory they share its bandwidth too, and a large model's reduction and update are nothing but memory
//!   traffic: there the ranks go through the flat buffer block by block, each reduces and updates its part of a block, and
//!   they gather the block's weights while it is in cache. The weights get the same bits either way;
//! - with ZeRO each rank holds the optimiser's state of its part of every bucket alone.
//!
//! Source: ZeRO, arXiv:1910.02054.

use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::Tensor;

use crate::data_parallel::buckets::BucketPlan;
use crate::data_parallel::error::Result;

/// Elements of a rank's part of a block: with weights, gradients and optimiser state it fits a second-level cache.
const PART_ELEMENTS: usize = 32 << 10;
/// Parts begin at multiples of this many elements: cache lines.
const ALIGN_ELEMENTS: usize = 16;

/// How the flat buffer of weights is divided over the ranks for the update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// Ranges of equal parts, one a rank in rank order; none where every rank updates all.
    blocks: Vec<Range<usize>>,
    /// Behind the blocks: what all ranks update.
    rest: Range<usize>,
    /// This rank, and how many parts a block has.
    part: usize,
    n_parts: usize,
    /// Whether state is held for the own parts alone, one behind the other.
    is_sharded: bool,
}

/// A range of the flat buffer that this rank updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Which.
    pub flat: Range<usize>,
    /// Where its state begins in the tensors of state.
    pub state_start: usize,
}

/// A range of the flat buffer whose state a rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateShard {
    /// Which.
    pub flat: Range<usize>,
    /// Where it begins in the tensors of state.
    pub offset: usize,
}

impl ShardPlan {
    /// The plan for a flat buffer of `flat_len` elements, divided where that is worth it: on ranks that share memory,
    /// from `divide_from` elements on.
    pub fn new(world: &World, flat_len: usize, divide_from: usize) -> Self {
        let divides =
            world.world_size() > 1 && world.tensor_group().shares_memory() && flat_len >= divide_from;
        let n_parts = if divides { world.world_size() } else { 1 };
        Self::divided(flat_len, world.rank().0, n_parts)
    }

    /// The plan for a flat buffer all of which every rank updates.
    pub fn whole(flat_len: usize, rank: usize) -> Self {
        Self::divided(flat_len, rank, 1)
    }

    /// Each rank updates its part of each bucket and holds the state of that alone.
    ///
    /// # Panics
    /// If the ranks cannot share a bucket evenly: its layout was not made for so many.
    pub fn sharded(buckets: &BucketPlan, part: usize, n_parts: usize) -> Self {
        let blocks = buckets.without_tail().ranges().to_vec();
        assert!(
            blocks.iter().all(|block| block.len().is_multiple_of(n_parts)),
            "a layout for {n_parts} ranks"
        );
        let end = blocks.last().map_or(0, |last| last.end);
        ShardPlan { blocks, rest: end..end, part, n_parts, is_sharded: true }
    }

    fn divided(flat_len: usize, part: usize, n_parts: usize) -> Self {
        let (mut blocks, mut start) = (Vec::new(), 0);
        let part_len = |start: usize| match n_parts {
            1 => 0,
            _ => ((flat_len - start) / n_parts).min(PART_ELEMENTS) / ALIGN_ELEMENTS * ALIGN_ELEMENTS,
        };
        while part_len(start) > 0 {
            let end = start + part_len(start) * n_parts;
            blocks.push(start..end);
            start = end;
        }
        ShardPlan { blocks, rest: start..flat_len, part, n_parts, is_sharded: false }
    }

    /// Whether each rank updates a part, and none of them holds state of its parts alone. Then
    /// [`ShardPlan::reduce_rest`] and [`ShardPlan::reduce`] take the place of an all-reduce.
    pub fn is_divided(&self) -> bool {
        !self.blocks.is_empty() && !self.is_sharded
    }

    /// Whether each rank holds the state of its parts alone.
    pub fn is_sharded(&self) -> bool {
        self.is_sharded
    }

    /// The blocks that are divided over the ranks.
    pub fn blocks(&self) -> &[Range<usize>] {
        &self.blocks
    }

    /// This rank's part of a block.
    pub fn own_shard(&self, block: &Range<usize>) -> Shard {
        let len = block.len() / self.n_parts;
        let start = block.start + self.part * len;
        // Parts of the blocks before are as many times smaller as they are.
        let state_start = if self.is_sharded { block.start / self.n_parts } else { start };
        Shard { flat: start..start + len, state_start }
    }

    /// What all ranks update.
    pub fn rest(&self) -> Shard {
        Shard { flat: self.rest.clone(), state_start: self.rest.start }
    }

    /// All that this rank updates, in order.
    pub fn own_shards(&self) -> impl Iterator<Item = Shard> + '_ {
        let rest = (!self.rest.is_empty()).then(|| self.rest());
        self.blocks.iter().map(|block| self.own_shard(block)).chain(rest)
    }

    /// Elements of each tensor of state.
    pub fn state_len(&self) -> usize {
        if self.is_sharded { self.rest.end / self.n_parts } else { self.rest.end }
    }

    /// What this rank's state is to be stored of: each element of the flat buffer is some rank's.
    pub fn shards_to_store(&self) -> Vec<StateShard> {
        let piece = |part: Shard| StateShard { flat: part.flat, offset: part.state_start };
        let parts = self.blocks.iter().map(|block| self.own_shard(block));
        // All ranks have the same state of the rest.
        let rest = (self.part == 0 && !self.rest.is_empty()).then(|| self.rest());
        parts.chain(rest).map(piece).collect()
    }

    /// What this rank's state is to be restored of: all that it has room for.
    pub fn shards_to_restore(&self) -> Vec<StateShard> {
        if self.is_sharded {
            self.shards_to_store()
        } else {
            vec![StateShard { flat: 0..self.rest.end, offset: 0 }]
        }
    }

    /// Sums over the ranks all of `grads` that stands behind the blocks, the step's sums included.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn reduce_rest(&self, world: &World, grads: &mut Tensor) -> Result<()> {
        let (_, rest) = grads.view_mut().split_at(self.rest.start)?;
        Ok(world.group().all_reduce(ReduceOp::Sum, rest)?)
    }

    /// Sums this rank's part of a block over the ranks.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn reduce(&self, world: &World, grads: &mut Tensor, block: &Range<usize>) -> Result<()> {
        let block = grads.view_mut().range(block.start, block.end)?;
        Ok(world.group().reduce_scatter_in_place(ReduceOp::Sum, block)?)
    }

    /// Gives every rank what the others have of a block.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn gather(&self, world: &World, flat: &mut Tensor, block: &Range<usize>) -> Result<()> {
        let block = flat.view_mut().range(block.start, block.end)?;
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
        fn each_element_is_updated_by_one_rank_or_by_all(flat_len in 0usize..300_000, n_parts in 1usize..9) {
            let mut n_updates = vec![0; flat_len];
            let mut n_stored = vec![0; flat_len];
            for part in 0..n_parts {
                let plan = ShardPlan::divided(flat_len, part, n_parts);
                plan.own_shards().flat_map(|part| part.flat).for_each(|element| n_updates[element] += 1);
                plan.shards_to_store().into_iter().flat_map(|piece| piece.flat).for_each(|i| n_stored[i] += 1);
            }
            let plan = ShardPlan::divided(flat_len, 0, n_parts);
            prop_assert!(n_parts == 1 || plan.rest().flat.len() < n_parts * ALIGN_ELEMENTS);
            for (element, n) in n_updates.into_iter().enumerate() {
                prop_assert_eq!(n, if plan.rest().flat.contains(&element) { n_parts } else { 1 });
            }
            prop_assert!(n_stored.iter().all(|&n| n == 1));
        }

        #[test]
        fn sharded_state_is_held_once_and_without_gaps(
            dims in prop::collection::vec(1usize..60, 2..6), n_parts in 1usize..9, cap_bytes in 1usize..20_000,
        ) {
            let layout = ParamLayout::shared_by(&ModelSpec::plain(&dims, Activation::Relu), n_parts);
            let mut n_updates = vec![0; layout.flat_len()];
            for part in 0..n_parts {
                let plan = ShardPlan::sharded(&BucketPlan::new(&layout, cap_bytes), part, n_parts);
                prop_assert_eq!(plan.state_len() * n_parts, layout.flat_len());
                prop_assert_eq!(plan.shards_to_store(), plan.shards_to_restore());
                let mut end = 0;
                for piece in plan.shards_to_store() {
                    prop_assert_eq!(piece.offset, end);
                    end += piece.flat.len();
                    piece.flat.for_each(|element| n_updates[element] += 1);
                }
                prop_assert_eq!(end, plan.state_len());
            }
            prop_assert!(n_updates.iter().all(|&n| n == 1));
        }
    }

    #[test]
    fn a_world_of_one_updates_all() {
        let plan = ShardPlan::new(&World::single(), 1 << 22, 0);
        assert_eq!((plan.rest().flat, plan.is_divided()), (0..1 << 22, false));
    }
}
