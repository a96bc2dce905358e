//! The batches of a run as one rank sees them: its rows of every step.

use std::ops::Range;
use std::sync::Arc;

use ddp_comm::World;
use ddp_kernels::KeyedPermutation;
use ddp_kernels::cpu::threads;
use rayon::prelude::*;

use crate::config::{DataConfig, ShuffleMode};
use crate::data::Dataset;
use crate::data::order::epoch_order::{BlockLayout, BlockOrder, RowOrder};
use crate::data::order::epoch_proof::RowsHash;
use crate::data::order::partition::{EvalPartition, GlobalBatches, PartitionKind, RankPartition};
use crate::data::order::sampler::Sampler;

/// Rows that a thread hashes at a time.
const HASHED_ROWS: usize = 1 << 16;

/// Order of the rows of each epoch.
#[derive(Debug, Clone)]
pub enum Shuffle {
    /// Not at all.
    Off,
    /// Any row to any place.
    Full,
    /// Blocks to any place, rows within a window of blocks.
    Blocks(Arc<BlockLayout>),
    /// Order of the sampler.
    Sampler(Arc<dyn Sampler>),
}

impl Shuffle {
    /// Order that the config requests for these rows.
    pub fn new(data: &DataConfig, dataset: &dyn Dataset) -> Self {
        match (data.shuffle, data.shuffle_mode) {
            (false, _) => Shuffle::Off,
            (true, ShuffleMode::Full) => Shuffle::Full,
            (true, ShuffleMode::Blocks) => {
                let row_bytes = dataset.layout().row_bytes();
                let window_bytes = data.shuffle_window_mib << 20;
                let layout = BlockLayout::new(dataset.len(), row_bytes, dataset.block_ends(), window_bytes);
                Shuffle::Blocks(Arc::new(layout))
            }
        }
    }

    /// Whether GPUs compute the order: it is a pure function, no sampler's.
    pub fn is_computed_on_gpus(&self) -> bool {
        !matches!(self, Shuffle::Sampler(_))
    }

    /// Blocks of rows that move together; 0 where any row moves by itself.
    pub fn n_blocks(&self) -> usize {
        match self {
            Shuffle::Blocks(layout) => layout.n_blocks(),
            Shuffle::Off | Shuffle::Full | Shuffle::Sampler(_) => 0,
        }
    }

    fn order(&self, n_rows: usize, seed: u64, epoch: u64) -> RowOrder {
        match self {
            Shuffle::Off => RowOrder::Rows(KeyedPermutation::identity(n_rows)),
            Shuffle::Full => RowOrder::Rows(KeyedPermutation::new(n_rows, seed, epoch)),
            Shuffle::Blocks(layout) => RowOrder::Blocks(BlockOrder::new(layout, seed, epoch)),
            Shuffle::Sampler(sampler) => RowOrder::Sampled(sampler.rows(epoch).into()),
        }
    }
}

/// The steps of a run over the rows of a dataset.
///
/// ```
/// use ddp::data::BatchPlan;
///
/// // 32 rows per step over all ranks, in a new order each epoch, 3 epochs.
/// let plan = BatchPlan { n_epochs: Some(3), ..BatchPlan::new(32) };
/// assert_eq!(plan.cursor, 0);
/// ```
#[derive(Debug, Clone)]
#[doc(alias("DistributedSampler"))]
pub struct BatchPlan {
    /// Rows of one step over all ranks, at least 1; the last step of an epoch has what is left.
    pub global_rows: usize,
    /// Whether the last step of an epoch is left out where it has fewer rows.
    pub drop_last: bool,
    /// Partition of the rows of a step into the ranks' micro-batches.
    pub partition: PartitionKind,
    /// Order of the rows of each epoch.
    pub shuffle: Shuffle,
    /// Seed of the order.
    pub seed: u64,
    /// Epochs after which the steps end; endless if `None`.
    pub n_epochs: Option<u64>,
    /// Rows that all ranks have taken since the start: where a run resumes.
    pub cursor: u64,
}

impl BatchPlan {
    /// Steps of `global_rows` rows over all ranks, one micro-batch per rank, shuffled with seed 0, endless.
    pub fn new(global_rows: usize) -> Self {
        BatchPlan {
            global_rows,
            drop_last: false,
            partition: PartitionKind::Ranks { n_micro: 1 },
            shuffle: Shuffle::Full,
            seed: 0,
            n_epochs: None,
            cursor: 0,
        }
    }

    /// The rows that all ranks take from `rows.start` to `rows.end`, counted since the start, within one epoch of `dataset_rows` rows.
    pub fn rows_hash(&self, dataset_rows: usize, rows: Range<u64>) -> RowsHash {
        let n_rows = self.epoch_rows(&self.shuffle.order(dataset_rows, self.seed, 0)) as u64;
        if rows.is_empty() || n_rows == 0 {
            return RowsHash::default();
        }
        let epoch = rows.start / n_rows;
        let order = self.shuffle.order(dataset_rows, self.seed, epoch);
        let [start, end] = [rows.start, rows.end].map(|row| (row - epoch * n_rows) as usize);
        threads::join_any_pool();
        let of_chunk = |chunk: usize| {
            let positions = start + chunk * HASHED_ROWS..end.min(start + (chunk + 1) * HASHED_ROWS);
            let mut taken = Vec::with_capacity(positions.len());
            order.extend(positions, &mut taken);
            taken.into_iter().map(|row| row as u64).collect::<RowsHash>()
        };
        let chunks = (0..(end - start).div_ceil(HASHED_ROWS)).into_par_iter();
        chunks.map(of_chunk).reduce(RowsHash::default, |a, b| a.merged(&b))
    }

    /// Rows that the steps of an epoch in this order take.
    fn epoch_rows(&self, order: &RowOrder) -> usize {
        let left_out = if self.drop_last { order.len() % self.global_rows } else { 0 };
        order.len() - left_out
    }

    /// This rank's jobs on `dataset_rows` rows.
    ///
    /// # Panics
    /// If `global_rows` is 0.
    pub(super) fn jobs(&self, world: &World, dataset_rows: usize) -> StepJobs {
        let order = |epoch| Arc::new(self.shuffle.order(dataset_rows, self.seed, epoch));
        let first = order(0);
        // A sampler decides how many rows an epoch has.
        let n_rows = self.epoch_rows(&first);
        let (epoch, taken) = match n_rows as u64 {
            0 => (0, 0),
            n_rows => (self.cursor / n_rows, self.cursor % n_rows),
        };
        StepJobs {
            partition: RankPartition {
                kind: self.partition,
                rank: world.rank().0,
                world_size: world.world_size(),
            },
            dataset_rows,
            n_rows,
            epoch,
            order: if epoch == 0 { first } else { order(epoch) },
            batches: GlobalBatches::starting_at(n_rows, self.global_rows, taken as usize),
            plan: self.clone(),
        }
    }
}

/// Jobs of one rank, step by step.
#[derive(Debug)]
pub(super) struct StepJobs {
    plan: BatchPlan,
    partition: RankPartition,
    dataset_rows: usize,
    /// Rows that the steps of an epoch take.
    pub(super) n_rows: usize,
    /// The epoch under way, from 0, its order, and what is left of it.
    epoch: u64,
    order: Arc<RowOrder>,
    batches: GlobalBatches,
}

/// One rank's shard of one global batch.
#[derive(Debug, Clone)]
pub struct Job {
    /// From 0.
    pub(crate) epoch: u64,
    pub(crate) order: Arc<RowOrder>,
    /// Positions of the global batch in the epoch's order.
    pub(crate) global: Range<usize>,
    /// The passes over them.
    pub(crate) partition: RankPartition,
    /// Index of the part of the rows, in evaluation.
    pub(crate) part: usize,
    /// Whether it is the epoch's last.
    pub(crate) ends_epoch: bool,
}

impl StepJobs {
    /// The most rows that this rank has in one step.
    pub(super) fn max_own_rows(&self) -> usize {
        // A smaller batch leaves no rank more rows.
        self.partition.max_own_rows(self.plan.global_rows.min(self.n_rows))
    }

    fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.order = Arc::new(self.plan.shuffle.order(self.dataset_rows, self.plan.seed, epoch));
        assert_eq!(
            self.plan.epoch_rows(&self.order),
            self.n_rows,
            "a sampler returns as many rows in every epoch"
        );
        self.batches = GlobalBatches::new(self.n_rows, self.plan.global_rows);
    }
}

impl Iterator for StepJobs {
    type Item = Job;

    fn next(&mut self) -> Option<Job> {
        if self.n_rows == 0 {
            return None;
        }
        let global = loop {
            if self.plan.n_epochs.is_some_and(|n_epochs| self.epoch >= n_epochs) {
                return None;
            }
            match self.batches.next() {
                Some(global) => break global,
                None => self.begin_epoch(self.epoch + 1),
            }
        };
        Some(Job {
            epoch: self.epoch,
            order: self.order.clone(),
            partition: self.partition,
            part: 0,
            ends_epoch: global.positions.end == self.n_rows,
            global: global.positions,
        })
    }
}

/// Passes over this rank's parts of the rows, in their own order: evaluation.
pub(crate) fn passes(
    world: &World,
    n_rows: usize,
    partition: EvalPartition,
) -> impl Iterator<Item = Job> + Send + use<> {
    let parts = partition.for_rank(n_rows, world.rank().0, world.world_size());
    batches(n_rows, parts, partition.max_rows)
}

/// Batches of at most `max_rows` rows of each range; the part of a batch is the number of its range.
pub(crate) fn ranges(
    n_rows: usize,
    of_rows: impl Iterator<Item = Range<usize>> + Send,
    max_rows: usize,
) -> impl Iterator<Item = Job> + Send {
    batches(n_rows, of_rows.enumerate(), max_rows)
}

/// Batches of at most `max_rows` rows of the ranges, in the rows' own order.
fn batches(
    n_rows: usize,
    parts: impl Iterator<Item = (usize, Range<usize>)> + Send,
    max_rows: usize,
) -> impl Iterator<Item = Job> + Send {
    let order = Arc::new(RowOrder::Rows(KeyedPermutation::identity(n_rows)));
    let max_rows = max_rows.max(1);
    parts.flat_map(move |(part, own)| {
        let (order, end) = (order.clone(), own.end);
        own.step_by(max_rows).map(move |start| {
            let rows = start..(start + max_rows).min(end);
            // The batches of a rank are its own.
            let partition =
                RankPartition { kind: PartitionKind::Ranks { n_micro: 1 }, rank: 0, world_size: 1 };
            let ends_epoch = rows.end == n_rows;
            Job { epoch: 0, order: order.clone(), global: rows, partition, part, ends_epoch }
        })
    })
}

impl Job {
    /// The global batch.
    pub(crate) fn n_rows(&self) -> usize {
        self.global.len()
    }

    /// This rank's positions in the epoch's order, as ranges.
    pub(crate) fn own(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let start = self.global.start;
        self.partition.own_rows(self.n_rows()).map(move |own| start + own.start..start + own.end)
    }

    /// Number of this rank's rows.
    pub(crate) fn n_own(&self) -> usize {
        self.partition.n_own_rows(self.n_rows())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shuffle(kind: u8, n_rows: usize) -> Shuffle {
        match kind {
            0 => Shuffle::Off,
            1 => Shuffle::Full,
            _ => Shuffle::Blocks(Arc::new(BlockLayout::new(n_rows, 20_000, None, 10 * 20_000))),
        }
    }

    /// Batches that all ranks visit from `cursor` on, step by step, until the end of epoch `n_epochs`.
    fn visited(
        world_size: usize,
        n_rows: usize,
        global_rows: usize,
        seed: u64,
        kind: u8,
        drop_last: bool,
        cursor: u64,
    ) -> Vec<Vec<usize>> {
        const N_EPOCHS: u64 = 3;
        let of_ranks = ddp_comm::threads::run(world_size, |world| {
            let plan = BatchPlan {
                partition: PartitionKind::Ranks { n_micro: 2 },
                shuffle: shuffle(kind, n_rows),
                seed,
                n_epochs: Some(N_EPOCHS),
                cursor,
                drop_last,
                ..BatchPlan::new(global_rows)
            };
            let jobs = plan.jobs(&world, n_rows);
            jobs.map(|job| job.own().flatten().map(|position| job.order.index(position)).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        });
        let n_steps = of_ranks[0].len();
        assert!(of_ranks.iter().all(|steps| steps.len() == n_steps), "all ranks take as many steps");
        (0..n_steps).map(|step| of_ranks.iter().flat_map(|steps| steps[step].clone()).collect()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Each row once per epoch, in an order that does not depend on the number of ranks, also when a run resumes in the middle.
        #[test]
        fn every_row_once_an_epoch_at_any_world_size_and_from_any_step(
            n_rows in 1usize..400,
            global_rows in 1usize..120,
            world_size in 1usize..=5,
            seed: u64,
            kind in 0u8..3,
            drop_last: bool,
            stop in 0.0..1.0,
        ) {
            let alone = visited(1, n_rows, global_rows, seed, kind, drop_last, 0);
            let together = visited(world_size, n_rows, global_rows, seed, kind, drop_last, 0);
            prop_assert_eq!(&alone, &together);
            let steps_an_epoch = alone.len() / 3;
            let n_taken = if drop_last { n_rows - n_rows % global_rows } else { n_rows };
            prop_assert_eq!(steps_an_epoch, GlobalBatches::steps_per_epoch(n_taken, global_rows));
            for epoch in alone.chunks(steps_an_epoch.max(1)) {
                let rows = epoch.concat();
                prop_assert_eq!(rows.len(), n_taken);
                let distinct = std::collections::BTreeSet::from_iter(rows);
                prop_assert_eq!(distinct.len(), n_taken);
                prop_assert!(distinct.iter().all(|row| *row < n_rows));
            }
            let step = (stop * alone.len() as f64) as usize;
            let cursor = alone[..step].iter().map(|rows| rows.len() as u64).sum();
            prop_assert_eq!(&alone[step..], &visited(world_size, n_rows, global_rows, seed, kind, drop_last, cursor)[..]);
        }
    }

    #[test]
    fn evaluation_passes_over_each_row_once() {
        for (n_rows, max_rows, n_parts) in [(10, 3, 3), (1, 5, 3), (7, 1, 8), (100, 1000, 8)] {
            let passes_of = |world_size| {
                let of_ranks = ddp_comm::threads::run(world_size, |world| {
                    let jobs = passes(&world, n_rows, EvalPartition { n_parts, max_rows });
                    jobs.map(|job| (job.part, job.own().next().unwrap())).collect::<Vec<_>>()
                });
                of_ranks.concat()
            };
            let passes = passes_of(1);
            assert_eq!(
                passes.iter().flat_map(|(_, own)| own.clone()).collect::<Vec<_>>(),
                Vec::from_iter(0..n_rows)
            );
            assert!(passes.iter().all(|(part, own)| *part < n_parts && own.len() <= max_rows));
            for world_size in 2..=3 {
                assert_eq!(passes_of(world_size), passes, "{world_size} ranks");
            }
        }
    }
}
