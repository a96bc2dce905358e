//! Who updates which weights.
//!
//! After an all-reduce every rank holds every gradient and updates all weights by itself. Where ranks share memory they
//! share its bandwidth too, and a large model's reduction and update are nothing but memory traffic: there each rank
//! reduces and updates a part, and the ranks gather the weights. The weights get the same bits either way.

use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::{Tensor, TensorMut, TensorRef, ops};

use crate::error::Result;

/// Parts begin at multiples of this many elements: cache lines.
const ALIGN_ELEMENTS: usize = 16;

/// How the flat buffer of weights is divided over the ranks for the update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdatePlan {
    /// What this rank updates: its part, and what all ranks update.
    own: [Range<usize>; 2],
    /// Equal parts, one a rank in rank order, that are gathered after the update; empty where every rank updates all.
    gathered: Range<usize>,
}

impl UpdatePlan {
    /// The plan for a flat buffer of `flat_len` elements, divided where that is worth it: on ranks that share memory,
    /// from `divide_from` elements on.
    pub fn new(world: &World, flat_len: usize, divide_from: usize) -> Self {
        let divides = world.world_size() > 1 && world.group().shares_memory() && flat_len >= divide_from;
        let n_parts = if divides { world.world_size() } else { 1 };
        Self::divided(flat_len, world.rank().0, n_parts)
    }

    /// Part `part` of `n_parts`; the few elements that equal aligned parts leave over are updated by all.
    fn divided(flat_len: usize, part: usize, n_parts: usize) -> Self {
        let len = flat_len / n_parts / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
        if n_parts == 1 || len == 0 {
            return UpdatePlan { own: [0..0, 0..flat_len], gathered: 0..0 };
        }
        let gathered = 0..len * n_parts;
        UpdatePlan { own: [part * len..(part + 1) * len, gathered.end..flat_len], gathered }
    }

    /// The ranges that this rank updates.
    pub fn own(&self) -> &[Range<usize>] {
        &self.own
    }

    /// Whether each rank updates a part. Then [`UpdatePlan::reduce`] takes the place of an all-reduce.
    pub fn is_divided(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// Sums over the ranks what this rank updates, and all that stands behind the divided part of `grads`.
    ///
    /// # Errors
    /// Those of the collectives.
    pub fn reduce(&self, world: &World, grads: &mut Tensor) -> Result<()> {
        let (divided, rest) = grads.view_mut().split_at(self.gathered.end)?;
        world.group().reduce_scatter_in_place(ReduceOp::Sum, divided)?;
        Ok(world.group().all_reduce(ReduceOp::Sum, rest)?)
    }

    /// The sum of squares of the reduced gradient, all ranks' parts together.
    ///
    /// # Errors
    /// Those of the operation and the collective.
    pub fn sum_of_squares(&self, world: &World, grads: TensorRef<'_>) -> Result<f64> {
        let mut sums = [0.0; 2];
        for (sum, range) in sums.iter_mut().zip(&self.own) {
            *sum = ops::sum_of_squares(grads.range(range.start, range.end)?)?;
        }
        if self.is_divided() {
            world.group().all_reduce(ReduceOp::Sum, TensorMut::from_slice(&mut sums[..1], &[1])?)?;
        }
        Ok(sums.iter().sum())
    }

    /// Gives every rank the weights that the others have updated.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn gather(&self, world: &World, weights: &mut Tensor) -> Result<()> {
        if !self.is_divided() {
            return Ok(());
        }
        let parts = weights.view_mut().range(self.gathered.start, self.gathered.end)?;
        Ok(world.group().all_gather_in_place(parts)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_element_is_updated_by_one_rank_or_by_all(flat_len in 0usize..5000, n_parts in 1usize..9) {
            let mut n_updates = vec![0; flat_len];
            let plans: Vec<_> = (0..n_parts).map(|part| UpdatePlan::divided(flat_len, part, n_parts)).collect();
            for plan in &plans {
                prop_assert_eq!(&plan.gathered, &plans[0].gathered);
                plan.own.iter().flat_map(Clone::clone).for_each(|element| n_updates[element] += 1);
            }
            for (element, n) in n_updates.into_iter().enumerate() {
                let once = plans[0].gathered.contains(&element);
                prop_assert_eq!(n, if once { 1 } else { n_parts });
            }
        }
    }

    #[test]
    fn a_world_of_one_updates_all() {
        let plan = UpdatePlan::new(&World::single(), 1 << 22, 0);
        assert_eq!((plan.own(), plan.is_divided()), (&[0..0, 0..1 << 22][..], false));
    }
}
