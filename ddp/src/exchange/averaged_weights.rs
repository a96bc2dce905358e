//! Averaged weights: gathers the moving average from all ranks and swaps it with the model's weights.

use ddp_comm::World;
use ddp_kernels::{MemoryUse, Tensor, ops};

use crate::exchange::error::Result;
use crate::exchange::shard_plan::ShardPlan;
use crate::model::Network;
use crate::optim::optimizer::Optimizer;

/// Buffers for the average and for the weights that it replaces; allocated on first use.
#[derive(Debug, Default)]
pub(crate) struct AveragedWeights {
    whole: Option<Tensor>,
    /// The weights, while the average replaces them.
    kept: Option<Tensor>,
}

impl AveragedWeights {
    /// Elements of its buffers once the average was used, each as long as the weights.
    pub(crate) fn len(flat_len: usize) -> usize {
        2 * flat_len
    }

    /// Gathers the average from all ranks' shards, in the weights' layout; returns the weights before the first step, and None if no
    /// average is kept.
    pub(crate) fn gather(
        &mut self,
        world: &World,
        model: &Network,
        optimizer: &Optimizer,
        shard_plan: &ShardPlan,
    ) -> Result<Option<&Tensor>> {
        let Some(average) = optimizer.ema() else { return Ok(None) };
        let whole = room_for(&mut self.whole, model)?;
        if optimizer.n_steps() == 0 {
            ops::copy(model.weights().view(), whole.view_mut())?;
            return Ok(Some(whole));
        }
        for shard in shard_plan.own_shards() {
            let from = average.view().range(shard.state_start, shard.state_start + shard.flat.len())?;
            ops::copy(from, whole.view_mut().range(shard.flat.start, shard.flat.end)?)?;
        }
        for block in shard_plan.blocks() {
            shard_plan.gather(world, whole.view_mut(), block)?;
        }
        Ok(Some(whole))
    }

    /// Replaces the weights by the average; returns whether one is kept.
    pub(crate) fn swap_in(
        &mut self,
        world: &World,
        model: &mut Network,
        optimizer: &Optimizer,
        shard_plan: &ShardPlan,
    ) -> Result<bool> {
        if self.gather(world, model, optimizer, shard_plan)?.is_none() {
            return Ok(false);
        }
        let kept = room_for(&mut self.kept, model)?;
        ops::copy(model.weights().view(), kept.view_mut())?;
        if let Some(whole) = &self.whole {
            model.set_weights(whole.view())?;
        }
        Ok(true)
    }

    /// Restores the weights, and rounds the compute weights from them as the update does.
    pub(crate) fn swap_out(&self, model: &mut Network) -> Result<()> {
        match &self.kept {
            Some(kept) => Ok(model.set_weights(kept.view())?),
            None => Ok(()),
        }
    }
}

fn room_for<'a>(room: &'a mut Option<Tensor>, model: &Network) -> Result<&'a mut Tensor> {
    let tensor = match room.take() {
        Some(tensor) => tensor,
        None => {
            let (weights, device) = (model.weights(), model.device());
            Tensor::zeros_for(MemoryUse::Average, weights.shape().dims(), weights.dtype(), device)?
        }
    };
    Ok(room.insert(tensor))
}
