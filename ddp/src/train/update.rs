//! Update of the weights from the reduced gradients: of all of them, or of this rank's shards, which the ranks then gather.

use ddp_comm::World;

use crate::exchange::gradients::Gradients;
use crate::exchange::shard_plan::{Shard, ShardPlan};
use crate::exchange::weight_gather::ShortGather;
use crate::exchange::whole_parameters::WholeParameters;
use crate::model::Network;
use crate::optim::optimizer::Optimizer;
use crate::optim::update_scale::UpdateScale;
use crate::train::error::{Result, TrainError};

/// Division of an update among ranks.
pub(super) struct Sharing<'a> {
    pub(super) shard_plan: &'a ShardPlan,
    pub(super) short_gather: Option<&'a ShortGather>,
    pub(super) whole_parameters: Option<&'a mut WholeParameters>,
    /// Blocks whose shards, and copies, are updated.
    pub(super) n_updated: &'a mut usize,
    /// Whether the ranks gather the updated weights.
    pub(super) gathers: bool,
}

/// Updates the weights whose reduced gradients this rank holds: all of them, or its shard of each block, whose weights the ranks
/// then gather while the next block is updated. The shard whose state it holds as a copy is updated too: its weights arrive again, with the
/// same bits.
///
/// Without a gather in a short format the master weights are sent in f32, and the compute weights are rounded from them again, so that
/// every rank holds the model. It costs as many bytes as the second half of an all-reduce.
pub(super) fn update(
    world: &World,
    model: &mut Network,
    optimizer: &mut Optimizer,
    grads: &Gradients,
    sharing: Sharing<'_>,
    scale: UpdateScale<'_>,
) -> Result<()> {
    let Sharing { shard_plan, short_gather, whole_parameters, n_updated, gathers } = sharing;
    if let Some(whole_parameters) = whole_parameters {
        let weights = model.own_weights().view();
        let reduced = |shard: &Shard| grads.shard(shard);
        whole_parameters.complete(world, weights, optimizer, reduced, shard_plan, scale)?;
    }
    if !shard_plan.is_sharded() {
        return update_shard(model, optimizer, grads, shard_plan.rest(), scale);
    }
    if !gathers {
        for block in &shard_plan.blocks()[*n_updated..] {
            let shards = std::iter::once(shard_plan.own_shard(block)).chain(shard_plan.copied_shard(block));
            for shard in shards {
                update_shard(model, optimizer, grads, shard, scale)?;
            }
        }
        return Ok(());
    }
    let flat_len = model.layout().flat_len();
    let mut weights = model.weights_mut();
    if short_gather.is_none() {
        // They are rounded from the gathered weights below.
        weights.compute = None;
    }
    world.tensor_group().scope(|scope| {
        for (index, block) in shard_plan.blocks().iter().enumerate() {
            let (mut of_block, after) = weights.split_at(block.len())?;
            weights = after;
            let shards = std::iter::once(shard_plan.own_shard(block)).chain(shard_plan.copied_shard(block));
            for shard in shards {
                let range = shard.flat.start - block.start..shard.flat.end - block.start;
                let weights = of_block.reborrow().range(&range)?;
                optimizer.step_on(weights, grads.shard(&shard)?, scale, shard.flat, shard.state_start)?;
            }
            *n_updated = index + 1;
            match short_gather {
                Some(short_gather) => short_gather.start(scope, block, index, of_block)?,
                None => {
                    scope.all_gather_in_place(of_block.master)?;
                }
            }
            scope.progress()?;
        }
        Ok::<_, TrainError>(())
    })?;
    if short_gather.is_none() {
        model.refresh_compute_weights(0..flat_len)?;
    }
    Ok(())
}

/// Updates the weights of ranks that share memory block by block: reduces a block, unless all blocks were reduced for their norm,
/// updates this rank's shard, and gathers the weights, while they are in cache.
pub(super) fn update_by_block(
    world: &World,
    model: &mut Network,
    optimizer: &mut Optimizer,
    grads: &mut Gradients,
    shard_plan: &ShardPlan,
    is_reduced: bool,
    scale: UpdateScale<'_>,
) -> Result<()> {
    for block in shard_plan.blocks() {
        if !is_reduced {
            shard_plan.reduce(world, grads.flat_mut(), block)?;
        }
        update_shard(model, optimizer, grads, shard_plan.own_shard(block), scale)?;
        shard_plan.gather(world, model.weights_mut().master, block)?;
        // The other ranks' shards arrive as f32 weights only.
        model.refresh_compute_weights(block.clone())?;
    }
    update_shard(model, optimizer, grads, shard_plan.rest(), scale)
}

pub(super) fn update_shard(
    model: &mut Network,
    optimizer: &mut Optimizer,
    grads: &Gradients,
    shard: Shard,
    scale: UpdateScale<'_>,
) -> Result<()> {
    let own_grads = grads.shard(&shard)?;
    let weights = model.weights_mut().range(&shard.flat)?;
    Ok(optimizer.step_on(weights, own_grads, scale, shard.flat, shard.state_start)?)
}
