//! Who reduces and updates which weights.
//!
//! After an all-reduce every rank holds every gradient and updates all weights by itself. Where ranks share memory they
//! share its bandwidth too, and a large model's reduction and update are nothing but memory traffic: there the ranks go
//! through the flat buffer block by block, each reduces and updates its part of a block, and they gather the block's
//! weights while it is in cache. The weights get the same bits either way.

use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::{Tensor, TensorMut, TensorRef, ops};

use crate::error::Result;

/// Elements of a rank's part of a block: with weights, gradients and optimiser state it fits a second-level cache.
const PART_ELEMENTS: usize = 32 << 10;
/// Parts begin at multiples of this many elements: cache lines.
const ALIGN_ELEMENTS: usize = 16;

/// How the flat buffer of weights is divided over the ranks for the update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdatePlan {
    /// Ranges of equal parts, one a rank in rank order; none where every rank updates all.
    blocks: Vec<Range<usize>>,
    /// Behind the blocks: what all ranks reduce and update.
    rest: Range<usize>,
    /// This rank, and how many parts a block has.
    part: usize,
    n_parts: usize,
}

impl UpdatePlan {
    /// The plan for a flat buffer of `flat_len` elements, divided where that is worth it: on ranks that share memory,
    /// from `divide_from` elements on.
    pub fn new(world: &World, flat_len: usize, divide_from: usize) -> Self {
        let divides =
            world.world_size() > 1 && world.tensor_group().shares_memory() && flat_len >= divide_from;
        let n_parts = if divides { world.world_size() } else { 1 };
        Self::divided(flat_len, world.rank().0, n_parts)
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
        UpdatePlan { blocks, rest: start..flat_len, part, n_parts }
    }

    /// Whether each rank updates a part. Then [`UpdatePlan::reduce_rest`] and [`UpdatePlan::reduce`] take the place of an
    /// all-reduce.
    pub fn is_divided(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// The blocks that are divided over the ranks.
    pub fn blocks(&self) -> &[Range<usize>] {
        &self.blocks
    }

    /// This rank's part of a block.
    pub fn own_part(&self, block: &Range<usize>) -> Range<usize> {
        let len = block.len() / self.n_parts;
        let start = block.start + self.part * len;
        start..start + len
    }

    /// What all ranks update.
    pub fn rest(&self) -> Range<usize> {
        self.rest.clone()
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

    /// Gives every rank the weights of a block that the others have updated.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn gather(&self, world: &World, weights: &mut Tensor, block: &Range<usize>) -> Result<()> {
        let block = weights.view_mut().range(block.start, block.end)?;
        Ok(world.group().all_gather_in_place(block)?)
    }

    /// The sum of squares of the reduced gradient, all ranks' parts together.
    ///
    /// # Errors
    /// Those of the operation and the collective.
    pub fn sum_of_squares(&self, world: &World, grads: TensorRef<'_>) -> Result<f64> {
        let add = |sum: &mut [f64], range: Range<usize>| {
            let part = grads.range(range.start, range.end)?;
            ops::sum_of_squares(part, TensorMut::from_slice(sum, &[1])?, true)
        };
        let mut sum = [0.0];
        for block in &self.blocks {
            add(&mut sum, self.own_part(block))?;
        }
        if self.is_divided() {
            world.group().all_reduce(ReduceOp::Sum, TensorMut::from_slice(&mut sum, &[1])?)?;
        }
        add(&mut sum, self.rest())?;
        Ok(sum[0])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_element_is_updated_by_one_rank_or_by_all(flat_len in 0usize..300_000, n_parts in 1usize..9) {
            let mut n_updates = vec![0; flat_len];
            for part in 0..n_parts {
                let plan = UpdatePlan::divided(flat_len, part, n_parts);
                let parts = plan.blocks().iter().map(|block| plan.own_part(block));
                parts.chain([plan.rest()]).flatten().for_each(|element| n_updates[element] += 1);
            }
            let plan = UpdatePlan::divided(flat_len, 0, n_parts);
            prop_assert!(n_parts == 1 || plan.rest().len() < n_parts * ALIGN_ELEMENTS);
            for (element, n) in n_updates.into_iter().enumerate() {
                prop_assert_eq!(n, if plan.rest().contains(&element) { n_parts } else { 1 });
            }
        }
    }

    #[test]
    fn a_world_of_one_updates_all() {
        let plan = UpdatePlan::new(&World::single(), 1 << 22, 0);
        assert_eq!((plan.rest(), plan.is_divided()), (0..1 << 22, false));
    }
}
