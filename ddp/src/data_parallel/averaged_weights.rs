//! The moving average of the weights, whole again, and in the place of the weights while a body of code looks at the model.

use ddp_comm::World;
use ddp_kernels::{MemoryUse, Tensor, ops};

use crate::data_parallel::error::Result;
use crate::data_parallel::shard_plan::ShardPlan;
use crate::model::Mlp;
use crate::optim::optimizer::Optimizer;

/// Room for the average and for the weights that it stands in for; made when first needed.
#[derive(Debug, Default)]
pub(crate) struct AveragedWeights {
    whole: Option<Tensor>,
    /// The weights, while the average is in their place.
    kept: Option<Tensor>,
}

impl AveragedWeights {
    /// The average in the weights' layout, of all ranks' parts; the weights before the first step. None where none is kept.
    ///
    /// # Errors
    /// As making a tensor, and those of the collectives.
    pub(crate) fn gather(
        &mut self,
        world: &World,
        model: &Mlp,
        optimizer: &Optimizer,
        shard_plan: &ShardPlan,
    ) -> Result<Option<&Tensor>> {
        let Some(average) = optimizer.ema() else { return Ok(None) };
        let whole = room_for(&mut self.whole, model)?;
        if optimizer.n_steps() == 0 {
            ops::copy(model.weights().view(), whole.view_mut())?;
            return Ok(Some(whole));
        }
        for part in shard_plan.own_shards() {
            let from = average.view().range(part.state_start, part.state_start + part.flat.len())?;
            ops::copy(from, whole.view_mut().range(part.flat.start, part.flat.end)?)?;
        }
        for block in shard_plan.blocks() {
            shard_plan.gather(world, whole, block)?;
        }
        Ok(Some(whole))
    }

    /// Puts the average in the place of the weights; whether there is one.
    ///
    /// # Errors
    /// As [`AveragedWeights::gather`].
    pub(crate) fn swap_in(
        &mut self,
        world: &World,
        model: &mut Mlp,
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

    /// Puts the weights back; the copy of them that products take is rounded from them, as the update does.
    ///
    /// # Errors
    /// Those of the copy.
    pub(crate) fn swap_out(&self, model: &mut Mlp) -> Result<()> {
        match &self.kept {
            Some(kept) => Ok(model.set_weights(kept.view())?),
            None => Ok(()),
        }
    }
}

fn room_for<'a>(room: &'a mut Option<Tensor>, model: &Mlp) -> Result<&'a mut Tensor> {
    let tensor = match room.take() {
        Some(tensor) => tensor,
        None => {
            let (weights, device) = (model.weights(), model.device());
            Tensor::zeros_for(MemoryUse::Average, weights.shape().dims(), weights.dtype(), device)?
        }
    };
    Ok(room.insert(tensor))
}
