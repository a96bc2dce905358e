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
//! use ddp::data::order::partition::{PartitionKind, RankPartition};
//! use ddp::exchange::ExchangeError;
//! use ddp::exchange::fixed_tree::TreeSum;
//! use ddp::prelude::*;
//!
//! let leaves: [f32; 4] = [0.1, 0.2, 0.3, 0.4];
//! let sums = ddp::launch(2, |world| -> Result<Vec<f32>, ExchangeError> {
//!     let kind = PartitionKind::MicroShards { n_shards: leaves.len() };
//!     let partition = RankPartition { kind, rank: world.rank().0, world_size: world.world_size() };
//!     let mut gradients = Tensor::zeros(&[1], DType::F32, Device::Cpu)?;
//!     let mut tree = TreeSum::new(&partition, 1, Device::Cpu)?;
//!     for shard in partition.own_micro_shards() {
//!         tree.leaf(&mut gradients).into_slice::<f32>("leaf", "gradients")?[0] = leaves[shard];
//!         tree.push(&mut gradients)?;
//!     }
//!     tree.exchange(world, &mut gradients)?;
//!     Ok(gradients.to_vec::<f32>()?)
//! })?;
//! // The same bits on any number of ranks.
//! assert!(sums.iter().all(|sum| *sum == [(0.1 + 0.2) + (0.3 + 0.4)]));
//! # Ok::<(), ExchangeError>(())
//! ```

use std::ops::Range;

use ddp_comm::World;
use ddp_kernels::{DType, Device, MemoryUse, Tensor, TensorMut, ops};

use crate::data::order::partition::{PartitionKind, RankPartition};
use crate::exchange::error::Result;

/// Elements per exchange: the buffers of all ranks fit a cache.
const CHUNK_ELEMENTS: usize = 1 << 18;

/// Partial sums of a step along the tree.
#[derive(Debug)]
pub struct TreeSum {
    n_shards: usize,
    own: Range<usize>,
    world_size: usize,
    len: usize,
    /// Complete subtrees so far, from left to right. The first one is in the gradients, the others are in `extra`.
    stack: Vec<Subtree>,
    extra: Vec<Tensor>,
    /// Exchange buffer of one chunk: `n_subtrees` per rank. None for a world of one.
    gathered: Option<Tensor>,
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

/// Sizes of a tree's buffers in addition to the gradients.
struct TreeLens {
    /// Buffers as long as the gradients.
    n_extra: usize,
    n_subtrees: usize,
    /// Elements of the exchange buffer; 0 for a world of one.
    gathered: usize,
}

impl TreeLens {
    fn new(partition: &RankPartition, len: usize) -> Self {
        let (_, most) = subtrees_of(partition.own_micro_shards());
        let n_subtrees = (0..partition.world_size)
            .map(|rank| subtrees_of(RankPartition { rank, ..*partition }.own_micro_shards()).0.len())
            .max()
            .unwrap_or(0);
        let gathered = match partition.world_size {
            1 => 0,
            world_size => world_size * n_subtrees * CHUNK_ELEMENTS.min(len),
        };
        TreeLens { n_extra: most.saturating_sub(1), n_subtrees, gathered }
    }
}

fn bytes_sent(world_size: usize, n_subtrees: usize, len: usize) -> u64 {
    ((world_size - 1) * n_subtrees * len * size_of::<f32>()) as u64
}

impl TreeSum {
    /// Elements (f32) of its buffers, in addition to the `len` of the sums.
    pub fn extra_len(partition: &RankPartition, len: usize) -> usize {
        let TreeLens { n_extra, gathered, .. } = TreeLens::new(partition, len);
        n_extra * len + gathered
    }

    /// Creates a tree for sums of `len` f32 on `device`, over the micro-shards of `partition`.
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`](crate::exchange::ExchangeError::Kernel) if the device is out of memory.
    ///
    /// # Panics
    /// If `partition` has no micro-shards, or their number is not a power of two.
    pub fn new(partition: &RankPartition, len: usize, device: Device) -> Result<Self> {
        let PartitionKind::MicroShards { n_shards } = partition.kind else {
            panic!("a tree has micro-shards as its leaves")
        };
        assert!(n_shards.is_power_of_two(), "{n_shards} micro-shards");
        let world_size = partition.world_size;
        let zeros = |n| Tensor::zeros_for(MemoryUse::Gradients, &[n], DType::F32, device);
        let TreeLens { n_extra, n_subtrees, gathered } = TreeLens::new(partition, len);
        let gathered = (gathered > 0).then(|| zeros(gathered)).transpose()?;
        Ok(TreeSum {
            extra: (0..n_extra).map(|_| zeros(len)).collect::<Result<_, _>>()?,
            stack: Vec::with_capacity(n_extra + 1),
            n_shards,
            own: partition.own_micro_shards(),
            world_size,
            len,
            gathered,
            n_subtrees,
        })
    }

    /// Bytes that this rank sends in a step, counted for a ring.
    pub fn exchange_bytes(&self) -> u64 {
        bytes_sent(self.world_size, self.n_subtrees, self.len)
    }

    /// [`TreeSum::exchange_bytes`] of the tree for sums of `len` f32.
    pub fn exchange_bytes_of(partition: &RankPartition, len: usize) -> u64 {
        bytes_sent(partition.world_size, TreeLens::new(partition, len).n_subtrees, len)
    }

    /// Buffer for the next micro-shard's gradient, as long as `grads`.
    pub fn leaf<'a>(&'a mut self, grads: &'a mut Tensor) -> TensorMut<'a> {
        self.place(grads, self.stack.len()).view_mut()
    }

    fn place<'a>(&'a mut self, grads: &'a mut Tensor, index: usize) -> &'a mut Tensor {
        match index {
            0 => grads,
            _ => &mut self.extra[index - 1],
        }
    }

    /// Adds the finished gradient in [`TreeSum::leaf`] to its sibling's, and so on up the tree.
    pub fn push(&mut self, grads: &mut Tensor) -> Result<()> {
        let done: usize = self.stack.iter().map(|subtree| subtree.n_leaves).sum();
        self.stack.push(Subtree { first: self.own.start + done, n_leaves: 1 });
        while let [.., left, right] = self.stack[..]
            && let Some(joined) = left.joined(right)
        {
            self.stack.truncate(self.stack.len() - 2);
            let place = self.stack.len();
            self.stack.push(joined);
            match place {
                0 => ops::add_assign(grads.view_mut(), self.extra[0].view())?,
                _ => {
                    let (before, after) = self.extra.split_at_mut(place);
                    ops::add_assign(before[place - 1].view_mut(), after[0].view())?;
                }
            }
        }
        Ok(())
    }

    /// Exchanges the subtrees after this rank's last micro-shard: `grads` then holds the sum over all ranks, the same bits everywhere,
    /// and the tree is empty again.
    pub fn exchange(&mut self, world: &World, grads: &mut Tensor) -> Result<()> {
        if let Some(mut gathered) = self.gathered.take() {
            let chunk = CHUNK_ELEMENTS.min(self.len);
            let result = (0..self.len).step_by(chunk.max(1)).try_for_each(|start| {
                self.exchange_chunk(world, grads, &mut gathered, start..(start + chunk).min(self.len))
            });
            self.gathered = Some(gathered);
            result?;
        }
        self.stack.clear();
        Ok(())
    }

    fn exchange_chunk(
        &mut self,
        world: &World,
        grads: &mut Tensor,
        gathered: &mut Tensor,
        chunk: Range<usize>,
    ) -> Result<()> {
        let n = chunk.len();
        let n_gathered = self.world_size * self.n_subtrees;
        let first_own = world.rank().0 * self.n_subtrees;
        for index in 0..self.stack.len() {
            let from = self.place(grads, index).view().range(chunk.start, chunk.end)?;
            let start = (first_own + index) * n;
            ops::copy(from, gathered.view_mut().range(start, start + n)?)?;
        }
        world.tensor_group().all_gather_in_place(gathered.view_mut().range(0, n_gathered * n)?)?;
        // The subtrees of all ranks in the order of their leaves, with their offsets.
        let mut stack: Vec<(Subtree, usize)> = Vec::with_capacity(n_gathered);
        for rank in 0..self.world_size {
            let kind = PartitionKind::MicroShards { n_shards: self.n_shards };
            let run = RankPartition { kind, rank, world_size: self.world_size }.own_micro_shards();
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
        Ok(ops::copy(root, grads.view_mut().range(chunk.start, chunk.end)?)?)
    }
}

#[cfg(test)]
mod tests {
    use ddp_comm::threads;
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
            let mut sum = TreeSum::new(&partition, len, Device::Cpu).unwrap();
            let mut grads = Tensor::full(&[len], 7.0, DType::F32, Device::Cpu).unwrap();
            for step in [1000, 0] {
                for shard in partition.own_micro_shards() {
                    let place = sum.leaf(&mut grads).into_slice::<f32>("leaf", "grads").unwrap();
                    place.copy_from_slice(&leaf(step + shard, len));
                    sum.push(&mut grads).unwrap();
                }
                sum.exchange(&world, &mut grads).unwrap();
            }
            grads.to_vec::<f32>().unwrap().iter().map(|v| v.to_bits()).collect()
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
            TreeSum::new(&partition, 100, Device::Cpu).unwrap().exchange_bytes()
        };
        assert_eq!([bytes(1, 0), bytes(2, 1), bytes(8, 3)], [0, 400, 7 * 400]);
        assert_eq!(bytes(3, 0), 2 * 2 * 400);
    }
}
