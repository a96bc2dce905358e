//! Updates that depend on whole parameters, of which ranks may hold shards: LAMB's norms and Muon's directions.
//!
//! After the first pass over the ranges that a rank updates, with ZeRO its shards of all buckets:
//!
//! - LAMB: the sums of squares of each parameter are added over the ranks;
//! - Muon: the ranks gather the directions of a bucket, which holds whole layers. Each matrix is orthogonalized by one rank, in
//!   turn, and broadcast, so that all ranks have the same bits. Each then keeps its shard.
//!
//! Without ZeRO every rank has moved all moments, and nothing is gathered.

use std::ops::Range;

use ddp_comm::{Rank, ReduceOp, World};
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor, TensorRef, ops};

use crate::exchange::error::{ExchangeError, Result};
use crate::exchange::shard_plan::{Shard, ShardPlan};
use crate::optim::optimizer::Optimizer;
use crate::optim::param_groups::WholeParameter;
use crate::optim::update_scale::UpdateScale;

/// The first pass of an optimizer, and the exchange that follows it.
#[derive(Debug)]
pub(crate) struct WholeParameters {
    /// Directions of one bucket, where ranks hold shards of them.
    gathered: Option<Tensor>,
}

impl WholeParameters {
    /// Allocates the memory that `optimizer` needs; None if its steps take one pass.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`].
    pub(crate) fn new(
        optimizer: &mut Optimizer,
        shard_plan: &ShardPlan,
    ) -> Result<Option<Self>, KernelError> {
        if !optimizer.has_first_pass() {
            return Ok(None);
        }
        let len = Self::gathered_len(shard_plan);
        let gathered = optimizer.directions().filter(|_| len > 0).map(|directions| {
            Tensor::zeros_for(MemoryUse::Optimizer, &[len], DType::F32, directions.device())
        });
        Ok(Some(WholeParameters { gathered: gathered.transpose()? }))
    }

    /// Bytes that a rank sends in a step for these parameters, counted for ring algorithms, besides gradients and weights.
    ///
    pub(crate) fn bytes_sent(whole: &[WholeParameter], shard_plan: &ShardPlan, n_ranks: usize) -> u64 {
        let shards = shard_plan.is_sharded().then_some(shard_plan.blocks());
        let (n, f32_bytes, f64_bytes) = (n_ranks as u64, size_of::<f32>(), size_of::<f64>());
        let is_inside = |at: &Range<usize>| whole.iter().any(|whole| at.contains(&whole.range.start));
        let gathered: usize =
            shards.unwrap_or_default().iter().filter(|at| is_inside(at)).map(ExactSizeIterator::len).sum();
        let broadcast: usize = whole.iter().map(|whole| whole.range.len()).sum();
        let bytes = match (whole.iter().any(|whole| whole.matrix.is_some()), shards) {
            (true, _) => f32_bytes * (gathered + broadcast),
            (false, Some(_)) => 2 * f64_bytes * 2 * whole.len(),
            (false, None) => 0,
        };
        (n - 1) * bytes as u64 / n
    }

    /// Elements (f32) of the directions that are gathered at a time: those of a bucket, if ranks hold shards of them.
    pub(crate) fn gathered_len(shard_plan: &ShardPlan) -> usize {
        let buckets = shard_plan.blocks().iter().filter(|_| shard_plan.is_sharded());
        buckets.map(ExactSizeIterator::len).max().unwrap_or(0)
    }

    /// Takes the first pass of the current step, and completes norms or directions over the ranks. Collective.
    ///
    /// - `weights`: all master weights
    /// - `reduced`: the reduced gradients of a shard
    ///
    /// # Errors
    /// `ExchangeError::Kernel`; `ExchangeError::Comm` if a collective fails.
    pub(crate) fn complete<'g>(
        &mut self,
        world: &World,
        weights: TensorRef<'_>,
        optimizer: &mut Optimizer,
        reduced: impl Fn(&Shard) -> Result<TensorRef<'g>>,
        shard_plan: &ShardPlan,
        scale: UpdateScale<'_>,
    ) -> Result<()> {
        optimizer.begin_first_pass()?;
        for shard in shard_plan.own_shards() {
            let own_grads = reduced(&shard)?;
            let Shard { flat, state_start } = shard;
            let own_weights = weights.range(flat.start, flat.end)?;
            optimizer.first_pass(own_weights, own_grads, scale, flat, state_start)?;
        }
        if let Some(norms) = optimizer.partial_norms() {
            if shard_plan.is_sharded() {
                world.tensor_group().all_reduce(ReduceOp::Sum, norms.view_mut())?;
            }
            return Ok(());
        }
        if shard_plan.is_sharded() {
            return self.orthogonalize_shards(world, optimizer, shard_plan);
        }
        let (n_ranks, rank) = (world.world_size(), world.rank().0);
        for whole in (rank..optimizer.whole().len()).step_by(n_ranks) {
            optimizer.orthogonalize(whole, None)?;
        }
        if n_ranks == 1 {
            return Ok(());
        }
        world.tensor_group().together(|| {
            for whole in 0..optimizer.whole().len() {
                let range = optimizer.whole()[whole].range.clone();
                let Some(directions) = optimizer.directions() else { continue };
                let matrix = directions.view_mut().range(range.start, range.end)?;
                world.tensor_group().broadcast(Rank(whole % n_ranks), matrix)?;
            }
            Ok(())
        })
    }

    /// Gathers the directions bucket by bucket, orthogonalizes each matrix on one rank, and keeps this rank's shards.
    fn orthogonalize_shards(
        &mut self,
        world: &World,
        optimizer: &mut Optimizer,
        shard_plan: &ShardPlan,
    ) -> Result<()> {
        let Some(gathered) = &mut self.gathered else { return Ok(()) };
        let (n_ranks, rank) = (world.world_size(), world.rank().0);
        for block in shard_plan.blocks() {
            let inside = |whole: &usize| block.contains(&optimizer.whole()[*whole].range.start);
            let matrices: Vec<_> = (0..optimizer.whole().len()).filter(inside).collect();
            let ranges = matrices.iter().map(|whole| optimizer.whole()[*whole].range.clone());
            let ranges: Vec<_> = ranges.map(|at| at.start - block.start..at.end - block.start).collect();
            let Some(directions) = optimizer.directions().filter(|_| !matrices.is_empty()) else { continue };
            let Shard { flat, state_start } = shard_plan.own_shard(block);
            let own = flat.start - block.start..flat.end - block.start;
            let held = directions.view().range(state_start, state_start + own.len())?;
            ops::copy(held, gathered.view_mut().range(own.start, own.end)?)?;
            world.tensor_group().all_gather_in_place(gathered.view_mut().range(0, block.len())?)?;
            for (whole, at) in matrices.iter().zip(&ranges).filter(|(whole, _)| *whole % n_ranks == rank) {
                optimizer.orthogonalize(*whole, Some(gathered.view_mut().range(at.start, at.end)?))?;
            }
            world.tensor_group().together(|| {
                for (whole, at) in matrices.iter().zip(&ranges) {
                    let matrix = gathered.view_mut().range(at.start, at.end)?;
                    world.tensor_group().broadcast(Rank(whole % n_ranks), matrix)?;
                }
                Ok::<_, ExchangeError>(())
            })?;
            let Some(directions) = optimizer.directions() else { continue };
            for at in ranges {
                let (start, end) = (at.start.max(own.start), at.end.min(own.end));
                if start < end {
                    let to = state_start + start - own.start..state_start + end - own.start;
                    let to = directions.view_mut().range(to.start, to.end)?;
                    ops::copy(gathered.view().range(start, end)?, to)?;
                }
            }
        }
        Ok(())
    }
}
