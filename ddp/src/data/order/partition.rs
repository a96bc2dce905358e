//! Partition of a global batch: ranges of positions for ranks, micro-batches and micro-shards.
//!
//! A global step takes the next `G` positions of the epoch's order. A rank takes a contiguous shard of them, and a micro-batch a
//! contiguous range of the shard. Shards differ by one row at most, the larger ones first; a rank with an empty shard joins with
//! zeros. Where a step must have the same bits at any world size, the global batch is first cut into a fixed number of micro-shards,
//! and a rank takes consecutive ones.
//!
//! ```
//! use ddp::data::PartitionKind;
//! use ddp::data::order::partition::{RankPartition, rank_range};
//!
//! // Global batches of 10 rows on 3 ranks, in 2 micro-batches per rank.
//! assert_eq!([0, 1, 2].map(|rank| rank_range(10, rank, 3)), [0..4, 4..7, 7..10]);
//! let partition = RankPartition { kind: PartitionKind::Ranks { n_micro: 2 }, rank: 1, world_size: 3 };
//! assert_eq!([0, 1].map(|index| partition.micro_batch(10, index)), [4..6, 6..7]);
//! ```

use std::ops::Range;

/// Range `index` of the `n_ranges` into which `0..n` is cut.
fn cut(n: usize, index: usize, n_ranges: usize) -> Range<usize> {
    assert!(index < n_ranges, "range {index} of {n_ranges}");
    let (size, n_larger) = (n / n_ranges, n % n_ranges);
    let start = index * size + index.min(n_larger);
    start..start + size + usize::from(index < n_larger)
}

/// Partition of evaluation rows into parts, of which each rank has consecutive ones, and of a part into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalPartition {
    /// Parts of all rows. What is summed is summed part by part, so the result depends on their number and not on that of the
    /// ranks.
    pub n_parts: usize,
    /// Most rows of a batch.
    pub max_rows: usize,
}

impl EvalPartition {
    /// One part per rank, in batches as large as the model allows.
    pub fn for_ranks(world_size: usize) -> Self {
        EvalPartition { n_parts: world_size, max_rows: usize::MAX }
    }

    /// The parts of rank `rank`, with their numbers, of `n_rows` rows.
    pub fn for_rank(
        &self,
        n_rows: usize,
        rank: usize,
        world_size: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let n_parts = self.n_parts;
        cut(n_parts, rank, world_size).map(move |index| (index, cut(n_rows, index, n_parts)))
    }

    /// Batches that every rank has, of `n_rows` rows.
    pub fn n_common_batches(&self, n_rows: usize, world_size: usize) -> usize {
        let of_rank = |rank| {
            let parts = self.for_rank(n_rows, rank, world_size);
            parts.map(|(_, rows)| rows.len().div_ceil(self.max_rows.max(1))).sum()
        };
        (0..world_size).map(of_rank).min().unwrap_or(0)
    }
}

/// The rows of rank `rank` within a global batch of `global_rows`.
///
/// # Panics
/// If `rank` is not below `world_size`.
pub fn rank_range(global_rows: usize, rank: usize, world_size: usize) -> Range<usize> {
    cut(global_rows, rank, world_size)
}

/// Kind of partition of global batches into the ranks' micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartitionKind {
    /// One shard per rank, each split into micro-batches.
    Ranks {
        /// Micro-batches per rank; fewer where the last of them would be empty on every rank.
        n_micro: usize,
    },
    /// Micro-batches of all ranks, each shared by the ranks: which rows a micro-batch has does not depend on the number of ranks. For
    /// models that take statistics of them.
    SharedMicroBatches {
        /// Micro-batches; fewer where one of them would have less than two rows.
        n_micro: usize,
    },
    /// A fixed number of micro-shards at any number of ranks; each is one micro-batch, and a rank has a run of them.
    MicroShards {
        /// Micro-shards of all ranks.
        n_shards: usize,
    },
}

/// Partition of global batches as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RankPartition {
    /// Kind of partition.
    pub kind: PartitionKind,
    /// This rank.
    pub rank: usize,
    /// Ranks that share the batches.
    pub world_size: usize,
}

impl RankPartition {
    /// The places of this rank's rows in a global batch of `global_rows`, as ranges in order: one, or one per micro-batch.
    pub fn own_rows(&self, global_rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let this = *self;
        let n_ranges = match self.kind {
            PartitionKind::SharedMicroBatches { .. } => self.n_micro_batches(global_rows),
            PartitionKind::Ranks { .. } | PartitionKind::MicroShards { .. } => 1,
        };
        (0..n_ranges).map(move |index| this.own_range(global_rows, index))
    }

    /// Range `index` of [`RankPartition::own_rows`].
    fn own_range(&self, global_rows: usize, index: usize) -> Range<usize> {
        match self.kind {
            PartitionKind::Ranks { .. } => rank_range(global_rows, self.rank, self.world_size),
            PartitionKind::SharedMicroBatches { .. } => self.micro_batch(global_rows, index),
            PartitionKind::MicroShards { n_shards } => {
                let shards = self.own_micro_shards();
                // A run of no shards begins where the next rank's begins.
                let start = |shard: usize| match shard {
                    shard if shard == n_shards => global_rows,
                    shard => cut(global_rows, shard, n_shards).start,
                };
                start(shards.start)..start(shards.end)
            }
        }
    }

    /// Number of this rank's rows in a global batch of `global_rows`.
    pub fn n_own_rows(&self, global_rows: usize) -> usize {
        self.own_rows(global_rows).map(|range| range.len()).sum()
    }

    /// The place of this rank's first row in a global batch of `global_rows`.
    pub fn first_own_row(&self, global_rows: usize) -> usize {
        self.own_range(global_rows, 0).start
    }

    /// Number of this rank's rows before micro-batch `index`.
    pub fn n_own_rows_before(&self, global_rows: usize, index: usize) -> usize {
        match self.kind {
            PartitionKind::SharedMicroBatches { .. } => {
                (0..index).map(|before| self.micro_batch(global_rows, before).len()).sum()
            }
            PartitionKind::Ranks { .. } | PartitionKind::MicroShards { .. } => {
                self.micro_batch(global_rows, index).start - self.first_own_row(global_rows)
            }
        }
    }

    /// Rows of micro-batch `index` of all ranks together.
    pub fn micro_batch_rows_of_all(&self, global_rows: usize, index: usize) -> usize {
        let of_rank = |rank| {
            let of_rank = RankPartition { rank, ..*self };
            (index < of_rank.n_micro_batches(global_rows))
                .then(|| of_rank.micro_batch(global_rows, index).len())
        };
        (0..self.world_size).filter_map(of_rank).sum()
    }

    /// Most rows that any rank has of a global batch of `global_rows`. Rank 0 has them, since larger shards come first.
    pub fn max_own_rows(&self, global_rows: usize) -> usize {
        RankPartition { rank: 0, ..*self }.n_own_rows(global_rows)
    }

    /// Most rows of a micro-batch of a global batch of at most `global_rows`.
    pub fn max_micro_batch_rows(&self, global_rows: usize) -> usize {
        let first_of = |rows| RankPartition { rank: 0, ..*self }.micro_batch(rows, 0).len();
        // Three rows are one shared micro-batch, where a full step may have micro-batches of two.
        first_of(global_rows).max(first_of(global_rows.min(3)))
    }

    /// Micro-batches of this rank: the same number on every rank, except with micro-shards.
    pub fn n_micro_batches(&self, global_rows: usize) -> usize {
        match self.kind {
            PartitionKind::Ranks { n_micro } => n_micro.min(global_rows.div_ceil(self.world_size)).max(1),
            PartitionKind::SharedMicroBatches { n_micro } => n_micro.min(global_rows / 2).max(1),
            PartitionKind::MicroShards { .. } => self.own_micro_shards().len(),
        }
    }

    /// Whether a rank has one micro-batch in every step, of any rows.
    pub fn has_one_micro_batch(&self) -> bool {
        match self.kind {
            PartitionKind::Ranks { n_micro } | PartitionKind::SharedMicroBatches { n_micro } => n_micro <= 1,
            PartitionKind::MicroShards { .. } => false,
        }
    }

    /// The places in the global batch of the rows of micro-batch `index`.
    ///
    /// # Panics
    /// If there is no such micro-batch.
    pub fn micro_batch(&self, global_rows: usize, index: usize) -> Range<usize> {
        match self.kind {
            PartitionKind::Ranks { .. } => {
                micro_range(self.own_range(global_rows, 0), index, self.n_micro_batches(global_rows))
            }
            PartitionKind::SharedMicroBatches { .. } => {
                let of_all = cut(global_rows, index, self.n_micro_batches(global_rows));
                let own = cut(of_all.len(), self.rank, self.world_size);
                of_all.start + own.start..of_all.start + own.end
            }
            PartitionKind::MicroShards { n_shards } => {
                cut(global_rows, self.own_micro_shards().start + index, n_shards)
            }
        }
    }

    /// The numbers of this rank's micro-shards; empty where there are none.
    pub fn own_micro_shards(&self) -> Range<usize> {
        match self.kind {
            PartitionKind::Ranks { .. } | PartitionKind::SharedMicroBatches { .. } => 0..0,
            PartitionKind::MicroShards { n_shards } => cut(n_shards, self.rank, self.world_size),
        }
    }
}

/// Micro-batch `index` of one rank's `rows`: there are as many as `grad_accum_steps`, on every rank, so that all ranks run the same
/// number.
///
/// # Panics
/// If `index` is not below `grad_accum_steps`.
fn micro_range(rows: Range<usize>, index: usize, grad_accum_steps: usize) -> Range<usize> {
    let micro = cut(rows.len(), index, grad_accum_steps);
    rows.start + micro.start..rows.start + micro.end
}

/// One global step: positions of an epoch's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalBatch {
    /// Number of the step within its epoch, from 0.
    pub step_in_epoch: usize,
    /// Positions in the epoch's order; at most `G`, fewer only in the epoch's last step.
    pub positions: Range<usize>,
}

impl GlobalBatch {
    /// Rows of this step over all ranks: what its sums are divided by.
    pub fn n_rows(&self) -> usize {
        self.positions.len()
    }
}

/// The global steps of one epoch, from a given position on.
#[derive(Debug, Clone)]
pub struct GlobalBatches {
    n_rows: usize,
    global_batch: usize,
    next: usize,
}

impl GlobalBatches {
    /// All steps of an epoch over `n_rows` rows, `global_batch` rows per step.
    ///
    /// # Panics
    /// If `global_batch` is 0.
    pub fn new(n_rows: usize, global_batch: usize) -> Self {
        Self::starting_at(n_rows, global_batch, 0)
    }

    /// The steps that are left when the first `next` rows of the epoch are done.
    ///
    /// # Panics
    /// If `global_batch` is 0.
    pub fn starting_at(n_rows: usize, global_batch: usize, next: usize) -> Self {
        assert!(global_batch > 0, "a global batch has rows");
        Self { n_rows, global_batch, next }
    }

    /// Steps in a whole epoch.
    pub fn steps_per_epoch(n_rows: usize, global_batch: usize) -> usize {
        n_rows.div_ceil(global_batch)
    }
}

impl Iterator for GlobalBatches {
    type Item = GlobalBatch;

    fn next(&mut self) -> Option<GlobalBatch> {
        if self.next >= self.n_rows {
            return None;
        }
        let start = self.next;
        self.next = start.saturating_add(self.global_batch).min(self.n_rows);
        Some(GlobalBatch { step_in_epoch: start / self.global_batch, positions: start..self.next })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.n_rows - self.next).div_ceil(self.global_batch);
        (left, Some(left))
    }
}

impl ExactSizeIterator for GlobalBatches {}

#[cfg(test)]
mod tests {
    use ddp_kernels::KeyedPermutation;
    use proptest::prelude::*;

    use super::*;

    fn micro_ranges(
        rows: Range<usize>,
        grad_accum_steps: usize,
    ) -> impl ExactSizeIterator<Item = Range<usize>> {
        (0..grad_accum_steps).map(move |index| micro_range(rows.clone(), index, grad_accum_steps))
    }

    #[test]
    fn larger_parts_come_first() {
        let shards: Vec<_> = (0..4).map(|rank| rank_range(10, rank, 4)).collect();
        assert_eq!(shards, [0..3, 3..6, 6..8, 8..10]);
        assert_eq!((0..3).map(|rank| rank_range(2, rank, 3).len()).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(micro_ranges(5..10, 3).collect::<Vec<_>>(), [5..7, 7..9, 9..10]);
        assert_eq!(micro_ranges(5..6, 2).collect::<Vec<_>>(), [5..6, 6..6]);
    }

    /// The last step of an epoch has fewer rows, and may have fewer micro-batches.
    #[test]
    fn no_smaller_batch_has_a_larger_micro_batch_or_more_rows_of_a_rank() {
        for n in 1..=5 {
            let kinds = [
                PartitionKind::Ranks { n_micro: n },
                PartitionKind::SharedMicroBatches { n_micro: n },
                PartitionKind::MicroShards { n_shards: 8 },
            ];
            for (kind, world_size) in kinds.into_iter().flat_map(|kind| (1..=5).map(move |n| (kind, n))) {
                for (most, rank) in (1..=24).flat_map(|most| (0..world_size).map(move |rank| (most, rank))) {
                    let partition = RankPartition { kind, rank, world_size };
                    for rows in 1..=most {
                        let n_micro_batches = partition.n_micro_batches(rows);
                        let lens = (0..n_micro_batches).map(|index| partition.micro_batch(rows, index).len());
                        let what = format!("{partition:?}, {rows} of {most} rows");
                        assert!(lens.max() <= Some(partition.max_micro_batch_rows(most)), "{what}");
                        assert!(partition.n_own_rows(rows) <= partition.max_own_rows(most), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn common_batches_are_those_of_the_rank_with_the_fewest() {
        let n = |n_parts, max_rows, n_rows, world_size| {
            EvalPartition { n_parts, max_rows }.n_common_batches(n_rows, world_size)
        };
        assert_eq!((n(1, 3, 10, 1), n(3, 2, 10, 3), n(3, 2, 2, 3)), (4, 2, 0));
        // Two parts of three rows for rank 0, one for rank 1.
        assert_eq!((n(3, 2, 9, 2), n(1, usize::MAX, 9, 1), n(2, 0, 4, 2)), (2, 1, 2));
    }

    #[test]
    fn last_step_is_partial() {
        let steps: Vec<_> = GlobalBatches::new(10, 4).collect();
        assert_eq!(steps.iter().map(|step| step.positions.clone()).collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
        assert_eq!(steps[2].step_in_epoch, 2);
        assert_eq!(GlobalBatches::steps_per_epoch(10, 4), 3);
        assert_eq!(GlobalBatches::new(10, usize::MAX).len(), 1);
        assert_eq!(GlobalBatches::new(0, 4).count(), 0);
    }

    #[test]
    fn micro_shards_do_not_depend_on_the_world_size() {
        let kind = PartitionKind::MicroShards { n_shards: 8 };
        for (global_rows, world_size) in [(20, 3), (20, 1), (5, 8), (64, 4), (3, 2)] {
            let ranks = (0..world_size).map(|rank| RankPartition { kind, rank, world_size });
            let passes: Vec<_> = ranks
                .clone()
                .flat_map(|partition| {
                    (0..partition.n_micro_batches(global_rows))
                        .map(move |index| partition.micro_batch(global_rows, index))
                })
                .collect();
            assert_eq!(passes, (0..8).map(|shard| cut(global_rows, shard, 8)).collect::<Vec<_>>());
            let mut end = 0;
            for rank in ranks {
                let own: Vec<_> = rank.own_rows(global_rows).collect();
                assert_eq!((own.len(), own[0].start), (1, end));
                assert!(own[0].len() <= rank.max_own_rows(global_rows));
                end = own[0].end;
            }
            assert_eq!(end, global_rows);
        }
        let of_three: Vec<_> =
            (0..3).map(|rank| RankPartition { kind, rank, world_size: 3 }.own_micro_shards()).collect();
        assert_eq!(of_three, [0..3, 3..6, 6..8]);
    }

    proptest! {
        /// The rows of a micro-batch are the same at any number of ranks, two or more, and each row belongs to one rank.
        #[test]
        fn shared_micro_batches_do_not_depend_on_the_world_size(
            global_rows in 0usize..100, n_micro in 1usize..6, world_size in 1usize..=5,
        ) {
            let kind = PartitionKind::SharedMicroBatches { n_micro };
            let alone = RankPartition { kind, rank: 0, world_size: 1 };
            let n = alone.n_micro_batches(global_rows);
            let mut uses = vec![0; global_rows];
            for index in 0..n {
                let mut end = alone.micro_batch(global_rows, index).start;
                for rank in 0..world_size {
                    let partition = RankPartition { kind, rank, world_size };
                    prop_assert_eq!(partition.n_micro_batches(global_rows), n);
                    let own = partition.micro_batch(global_rows, index);
                    prop_assert_eq!(own.start, end);
                    end = own.end;
                    prop_assert!(own.len() <= partition.max_micro_batch_rows(global_rows));
                    prop_assert!(partition.n_own_rows(global_rows) <= partition.max_own_rows(global_rows));
                    let before: Vec<_> = partition.own_rows(global_rows).flatten().collect();
                    let first = partition.n_own_rows_before(global_rows, index);
                    prop_assert_eq!(&before[first..first + own.len()], &own.clone().collect::<Vec<_>>()[..]);
                    own.for_each(|row| uses[row] += 1);
                }
                prop_assert_eq!(end, alone.micro_batch(global_rows, index).end);
                let n_rows = alone.micro_batch_rows_of_all(global_rows, index);
                prop_assert!(n_rows >= 2 || global_rows < 2);
                prop_assert_eq!(RankPartition { world_size, ..alone }.micro_batch_rows_of_all(global_rows, index), n_rows);
            }
            prop_assert!(uses.iter().all(|&n_uses| n_uses == 1), "{:?}", uses);
        }

        /// The law: all ranks' micro-batches together use every row of the data once per epoch.
        #[test]
        fn every_row_once_an_epoch(
            n_rows in 0usize..500,
            global_batch in 1usize..200,
            world_size in 1usize..=5,
            grad_accum_steps in 1usize..=4,
            seed: u64,
            shuffle: bool,
        ) {
            let order = if shuffle {
                KeyedPermutation::new(n_rows, seed, 1)
            } else {
                KeyedPermutation::identity(n_rows)
            };
            let mut uses = vec![0; n_rows];
            let steps = GlobalBatches::new(n_rows, global_batch);
            prop_assert_eq!(steps.len(), GlobalBatches::steps_per_epoch(n_rows, global_batch));
            for step in steps {
                let mut in_order = step.positions.start;
                for rank in 0..world_size {
                    let kind = PartitionKind::Ranks { n_micro: grad_accum_steps };
                    let own = RankPartition { kind, rank, world_size }.own_rows(step.n_rows()).next().unwrap();
                    let rows = step.positions.start + own.start..step.positions.start + own.end;
                    prop_assert!(rows.len().abs_diff(step.n_rows() / world_size) <= 1);
                    for micro in micro_ranges(rows, grad_accum_steps) {
                        // Contiguous over ranks: the order does not depend on the world size.
                        prop_assert_eq!(micro.start, in_order);
                        in_order = micro.end;
                        micro.for_each(|position| uses[order.index(position)] += 1);
                    }
                }
                prop_assert_eq!(in_order, step.positions.end);
            }
            prop_assert!(uses.iter().all(|&n_uses| n_uses == 1), "{:?}", uses);
        }
    }
}
