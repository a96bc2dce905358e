//! Sums over the micro-shards of a step along one fixed binary tree, whatever the number of ranks.
//!
//! The leaves are the micro-shards in order, a power of two of them. A rank owns a run of leaves; as their gradients are
//! finished it adds siblings in the tree, then their parents, and so on. The complete subtrees of its run remain. The ranks
//! exchange those, and each rank adds them along the rest of the tree. So each sum has the same two operands at any number of
//! ranks, and the result the same bits.
//!
//! Source: pairwise summation, N. J. Higham, "The Accuracy of Floating Point Summation", SIAM J. Sci. Comput. 14, 1993.
//!
//! ```
//! use ddp::data::PartitionKind;
//! use ddp::data::order::partition::RankPartition;
//! use ddp::exchange::{BufferSize, Exchange as _, ExchangeError};
//! use ddp::exchange::fixed_tree::FixedTree;
//! use ddp::prelude::*;
//!
//! let leaves: [f32; 4] = [0.1, 0.2, 0.3, 0.4];
//! let sums = ddp::launch(2, |world| -> Result<Vec<f32>, ExchangeError> {
//!     let kind = PartitionKind::MicroShards { n_shards: leaves.len() };
//!     let partition = RankPartition { kind, rank: world.rank().0, world_size: world.world_size() };
//!     let mut tree = FixedTree::new(partition, 1, Vec::new());
//!     let mut memory = BufferSize::allocate(&tree.buffers(), world, Device::Cpu)?;
//!     for shard in partition.own_micro_shards() {
//!         tree.leaf(&mut memory).view_mut().into_slice::<f32>("leaf", "gradients")?[0] = leaves[shard];
//!         tree.push(&mut memory)?;
//!     }
//!     tree.exchange(world, &mut memory)?;
//!     Ok(memory[0].to_vec::<f32>()?)
//! })?;
//! // The same bits on any number of ranks.
//! assert!(sums.iter().all(|sum| *sum == [(0.1 + 0.2) + (0.3 + 0.4)]));
//! # Ok::<(), ExchangeError>(())
//! ```

use std::ops::Range;

use ddp_comm::World;
use ddp_kernels::{DType, Tensor, ops};

use crate::data::order::partition::{PartitionKind, RankPartition};
use crate::exchange::error::Result;
use crate::exchange::shard_plan::ShardPlan;
use crate::exchange::way::{BufferSize, Exchange, Pass, counted};
use crate::model::{GradientWrites, LocalGradients};

/// Elements per exchange: the buffers of all ranks fit a cache.
const CHUNK_ELEMENTS: usize = 1 << 18;

/// Partial sums of a step along the tree. Memory: the gradients with their tail, where the first subtree is; buffers as long for the
/// other subtrees; and in a world of several ranks a buffer for the exchange of one chunk, `n_subtrees` per rank.
#[derive(Debug)]
pub struct FixedTree {
    partition: RankPartition,
    n_shards: usize,
    len: usize,
    /// Range of each parameter's gradients.
    params: Vec<Range<usize>>,
    /// Complete subtrees so far, from left to right.
    stack: Vec<Subtree>,
    /// Largest number of subtrees on this rank at any time.
    n_buffers: usize,
    /// Largest number of subtrees that remain on any rank.
    n_subtrees: usize,
}

/// A complete subtree: `n_leaves` leaves from `first` on, a power of two that divides `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Subtree {
    first: usize,
    n_leaves: usize,
}

impl Subtree {
    /// Joins this subtree with `right`, if they are siblings.
    fn joined(self, right: Subtree) -> Option<Subtree> {
        let are_siblings = self.n_leaves == right.n_leaves
            && self.first.is_multiple_of(2 * self.n_leaves)
            && right.first == self.first + self.n_leaves;
        are_siblings.then_some(Subtree { first: self.first, n_leaves: 2 * self.n_leaves })
    }
}

/// Returns the subtrees that remain of a run of leaves, and the largest number of them at any time, including the current leaf.
fn subtrees_of(run: Range<usize>) -> (Vec<Subtree>, usize) {
    let (mut stack, mut most) = (Vec::new(), 0);
    for first in run {
        stack.push(Subtree { first, n_leaves: 1 });
        most = most.max(stack.len());
        while let [.., left, right] = stack[..]
            && let Some(joined) = left.joined(right)
        {
            stack.truncate(stack.len() - 2);
            stack.push(joined);
        }
    }
    (stack, most)
}

impl FixedTree {
    /// Plans sums of `len` f32 over the micro-shards of `partition`. They hold the gradients of `params`, over whose squares a norm is
    /// summed.
    ///
    /// # Panics
    /// If `partition` has no micro-shards, or their number is not a power of two.
    pub fn new(partition: RankPartition, len: usize, params: Vec<Range<usize>>) -> Self {
        let PartitionKind::MicroShards { n_shards } = partition.kind else {
            panic!("a tree has micro-shards as its leaves")
        };
        assert!(n_shards.is_power_of_two(), "{n_shards} micro-shards");
        let (_, most) = subtrees_of(partition.own_micro_shards());
        let n_left = |rank| subtrees_of(RankPartition { rank, ..partition }.own_micro_shards()).0.len();
        let n_subtrees = (0..partition.world_size).map(n_left).max().unwrap_or(0);
        let (n_buffers, stack) = (most.max(1), Vec::with_capacity(most));
        FixedTree { partition, n_shards, len, params, stack, n_buffers, n_subtrees }
    }

    /// Tensor for the next micro-shard's gradients.
    pub fn leaf<'a>(&self, memory: &'a mut [Tensor]) -> &'a mut Tensor {
        &mut memory[self.stack.len()]
    }

    /// Adds the finished gradients in [`FixedTree::leaf`] to their sibling's, and so on up the tree.
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`](crate::exchange::ExchangeError::Kernel) from an addition.
    pub fn push(&mut self, memory: &mut [Tensor]) -> Result<()> {
        let done: usize = self.stack.iter().map(|subtree| subtree.n_leaves).sum();
        let first = self.partition.own_micro_shards().start + done;
        self.stack.push(Subtree { first, n_leaves: 1 });
        while let [.., left, right] = self.stack[..]
            && let Some(joined) = left.joined(right)
        {
            self.stack.truncate(self.stack.len() - 2);
            let (before, after) = memory.split_at_mut(self.stack.len() + 1);
            ops::add_assign(before[self.stack.len()].view_mut(), after[0].view())?;
            self.stack.push(joined);
        }
        Ok(())
    }

    /// Exchanges the subtrees after this rank's last micro-shard: the first tensor then holds the sum over all ranks, the same bits
    /// everywhere, and the tree is empty again.
    ///
    /// # Errors
    /// [`ExchangeError::Comm`](crate::exchange::ExchangeError::Comm) if a collective fails.
    pub fn exchange(&mut self, world: &World, memory: &mut [Tensor]) -> Result<()> {
        if let (sums, [gathered]) = memory.split_at_mut(self.n_buffers) {
            let chunk = CHUNK_ELEMENTS.min(self.len);
            for start in (0..self.len).step_by(chunk.max(1)) {
                self.exchange_chunk(world, sums, gathered, start..(start + chunk).min(self.len))?;
            }
        }
        self.stack.clear();
        Ok(())
    }

    fn exchange_chunk(
        &self,
        world: &World,
        sums: &mut [Tensor],
        gathered: &mut Tensor,
        chunk: Range<usize>,
    ) -> Result<()> {
        let n = chunk.len();
        let n_gathered = self.partition.world_size * self.n_subtrees;
        let first_own = self.partition.rank * self.n_subtrees;
        for (index, sum) in sums[..self.stack.len()].iter().enumerate() {
            let start = (first_own + index) * n;
            let from = sum.view().range(chunk.start, chunk.end)?;
            ops::copy(from, gathered.view_mut().range(start, start + n)?)?;
        }
        world.tensor_group().all_gather_in_place(gathered.view_mut().range(0, n_gathered * n)?)?;
        // The subtrees of all ranks in the order of their leaves, with their offsets.
        let mut stack: Vec<(Subtree, usize)> = Vec::with_capacity(n_gathered);
        for rank in 0..self.partition.world_size {
            let run = RankPartition { rank, ..self.partition }.own_micro_shards();
            for (index, subtree) in subtrees_of(run).0.into_iter().enumerate() {
                stack.push((subtree, (rank * self.n_subtrees + index) * n));
                while let [.., (left, to), (right, from)] = stack[..]
                    && let Some(joined) = left.joined(right)
                {
                    stack.truncate(stack.len() - 2);
                    stack.push((joined, to));
                    // The right subtree always comes after the left one.
                    let (before, after) = gathered.view_mut().split_at(from)?;
                    ops::add_assign(before.range(to, to + n)?, after.range(0, n)?.as_ref())?;
                }
            }
        }
        let [(_, root)] = stack[..] else { unreachable!("all leaves of the tree were there") };
        let root = gathered.view().range(root, root + n)?;
        Ok(ops::copy(root, sums[0].view_mut().range(chunk.start, chunk.end)?)?)
    }
}

impl Exchange for FixedTree {
    fn has_all_gradients(&self) -> bool {
        true
    }

    fn describe(&self, _n_micro_batches: usize) -> String {
        let shards = counted(self.n_shards, "micro-shard");
        match self.partition.world_size {
            1 => format!("none, 1 rank adds up {shards} along a fixed tree"),
            _ => format!("all-gather of partial sums of {shards} for a fixed tree"),
        }
    }

    fn bytes_sent(&self, _n_micro_batches: usize) -> u64 {
        let n_others = self.partition.world_size - 1;
        (n_others * self.n_subtrees * self.len * DType::F32.size_bytes()) as u64
    }

    fn buffers(&self) -> Vec<BufferSize> {
        let of = |len| BufferSize { len, dtype: DType::F32, is_exchanged: false };
        let n_ranks = self.partition.world_size;
        let gathered = n_ranks * self.n_subtrees * CHUNK_ELEMENTS.min(self.len);
        let gathered = (n_ranks > 1).then(|| of(gathered));
        vec![of(self.len); self.n_buffers].into_iter().chain(gathered).collect()
    }

    fn writes(&self, _index: usize) -> GradientWrites {
        GradientWrites::Singles
    }

    fn backward(&mut self, memory: &mut [Tensor], pass: Pass<'_>) -> Result<()> {
        let (world, is_last, is_rehearsal) = (pass.world, pass.inputs.micro_step.is_last, pass.is_rehearsal);
        pass.run(GradientWrites::Singles, &mut LocalGradients(self.leaf(memory).view_mut()))?;
        if is_rehearsal {
            return Ok(());
        }
        self.push(memory)?;
        if is_last { self.exchange(world, memory) } else { Ok(()) }
    }

    fn adds_tails(&self) -> bool {
        true
    }

    fn with_tail<'a>(&self, memory: &'a mut [Tensor]) -> &'a mut Tensor {
        self.leaf(memory)
    }

    /// Sums parameter by parameter, without the gaps between them, which depend on the number of ranks.
    fn sum_of_squares(
        &self,
        memory: &[Tensor],
        _world: &World,
        _shard_plan: &ShardPlan,
        sum: &mut Tensor,
    ) -> Result<()> {
        for (index, param) in self.params.iter().enumerate() {
            let grads = memory[0].view().range(param.start, param.end)?;
            ops::sum_of_squares(grads, sum.view_mut(), index > 0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ddp_comm::threads;
    use ddp_kernels::Device;
    use proptest::prelude::*;

    use super::*;

    /// The definition.
    fn tree(leaves: &[Vec<f32>]) -> Vec<f32> {
        if let [leaf] = leaves {
            return leaf.clone();
        }
        let (left, right) = leaves.split_at(leaves.len() / 2);
        tree(left).iter().zip(tree(right)).map(|(a, b)| a + b).collect()
    }

    fn leaf(shard: usize, len: usize) -> Vec<f32> {
        Tensor::randn(&[len], DType::F32, Device::Cpu, shard as u64).unwrap().to_vec().unwrap()
    }

    /// Two steps, so that nothing of the first is left in the second; the sums of the second.
    fn on_ranks(world_size: usize, n_shards: usize, len: usize) -> Vec<Vec<u32>> {
        threads::run(world_size, |world| {
            let kind = PartitionKind::MicroShards { n_shards };
            let partition = RankPartition { kind, rank: world.rank().0, world_size };
            let mut tree = FixedTree::new(partition, len, Vec::new());
            let mut memory = BufferSize::allocate(&tree.buffers(), &world, Device::Cpu).unwrap();
            memory[0] = Tensor::full(&[len], 7.0, DType::F32, Device::Cpu).unwrap();
            for step in [1000, 0] {
                for shard in partition.own_micro_shards() {
                    let place = tree.leaf(&mut memory).view_mut();
                    let place = place.into_slice::<f32>("leaf", "grads").unwrap();
                    place.copy_from_slice(&leaf(step + shard, len));
                    tree.push(&mut memory).unwrap();
                }
                tree.exchange(&world, &mut memory).unwrap();
            }
            memory[0].to_vec::<f32>().unwrap().iter().map(|v| v.to_bits()).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn any_number_of_ranks_gives_the_bits_of_the_tree(log_shards in 0u32..5, ranks in 0.0..1.0, len in 1usize..70) {
            let n_shards = 1usize << log_shards;
            let world_size = 1 + (ranks * n_shards.min(8) as f64) as usize;
            let leaves: Vec<_> = (0..n_shards).map(|shard| leaf(shard, len)).collect();
            let want: Vec<u32> = tree(&leaves).iter().map(|v| v.to_bits()).collect();
            for got in on_ranks(world_size.min(n_shards), n_shards, len) {
                prop_assert_eq!(&got, &want);
            }
        }
    }

    #[test]
    fn long_buffers_are_exchanged_chunk_by_chunk() {
        let len = CHUNK_ELEMENTS * 2 + 5;
        let alone = on_ranks(1, 4, len).remove(0);
        for world_size in [2, 3] {
            assert!(on_ranks(world_size, 4, len).iter().all(|got| *got == alone), "{world_size} ranks");
        }
    }

    #[test]
    fn runs_come_to_few_subtrees() {
        assert_eq!(subtrees_of(0..8), (vec![Subtree { first: 0, n_leaves: 8 }], 4));
        let of =
            |run: Range<usize>| subtrees_of(run).0.iter().map(|s| (s.first, s.n_leaves)).collect::<Vec<_>>();
        assert_eq!(of(0..3), [(0, 2), (2, 1)]);
        assert_eq!(of(3..6), [(3, 1), (4, 2)]);
        assert_eq!(of(1..8), [(1, 1), (2, 2), (4, 4)]);
    }

    #[test]
    fn powers_of_two_of_ranks_send_one_sum_each() {
        let bytes = |world_size, rank| {
            let partition =
                RankPartition { kind: PartitionKind::MicroShards { n_shards: 8 }, rank, world_size };
            FixedTree::new(partition, 100, Vec::new()).bytes_sent(0)
        };
        assert_eq!([bytes(1, 0), bytes(2, 1), bytes(8, 3)], [0, 400, 7 * 400]);
        assert_eq!(bytes(3, 0), 2 * 2 * 400);
    }
}
