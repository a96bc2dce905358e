//! The global batches of an epoch as this rank sees them.

use std::ops::Range;

use ddp_comm::World;
use ddp_kernels::ops::LossSums;

use crate::batches::{BatchBuffers, BatchMut, Table};
use crate::error::Result;
use crate::sampler::KeyedPermutation;
use crate::shard::{GlobalBatch, micro_range};
use crate::trainer::{MicroBatch, RowShape, StepRows};

/// This rank's micro-batches of one global batch.
#[derive(Debug)]
pub struct StepBatches<'a> {
    table: &'a Table,
    order: &'a KeyedPermutation,
    buffers: &'a mut BatchBuffers,
    /// Positions of the global batch in the epoch's order.
    global: Range<usize>,
    /// This rank's part of them.
    own: Range<usize>,
    n_micro: usize,
}

impl<'a> StepBatches<'a> {
    /// The part of `global` that is this rank's, cut into `n_micro` micro-batches; into fewer, the same number on every
    /// rank, where the last of them would be empty everywhere.
    pub fn new(
        world: &World,
        table: &'a Table,
        order: &'a KeyedPermutation,
        buffers: &'a mut BatchBuffers,
        global: &GlobalBatch,
        n_micro: usize,
    ) -> Self {
        let own = global.of_rank(world.rank().0, world.world_size());
        let largest_part = global.n_rows().div_ceil(world.world_size());
        StepBatches {
            table,
            order,
            buffers,
            global: global.positions.clone(),
            own,
            n_micro: n_micro.min(largest_part).max(1),
        }
    }

    /// Rows of the global batch.
    pub fn n_rows(&self) -> usize {
        self.global.len()
    }
}

impl StepRows for StepBatches<'_> {
    fn n_micro_batches(&self) -> usize {
        self.n_micro
    }

    fn global_rows(&self) -> usize {
        self.global.len()
    }

    fn own_rows(&self) -> Range<usize> {
        self.own.start - self.global.start..self.own.end - self.global.start
    }

    fn row_shape(&self) -> RowShape {
        self.table.row_shape()
    }

    fn fill(&mut self, rows: BatchMut<'_>) -> Result<()> {
        Ok(self.table.gather(self.order, self.own.clone(), self.buffers.indices(), rows)?)
    }

    fn micro_batch(&mut self, index: usize) -> Result<MicroBatch<'_>> {
        let positions = micro_range(self.own.clone(), index, self.n_micro);
        let first_row = positions.start - self.global.start;
        Ok(MicroBatch { rows: self.table.batch(self.order, positions, self.buffers)?, first_row })
    }
}

/// Mean loss over the rows of an epoch.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainLoss {
    sums: LossSums,
    n_rows: usize,
}

impl TrainLoss {
    /// Adds a step's sums over its `n_rows` rows.
    pub fn add(&mut self, sums: LossSums, n_rows: usize) {
        self.sums += sums;
        self.n_rows += n_rows;
    }

    /// Rows so far.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sums.mean()
    }
}
