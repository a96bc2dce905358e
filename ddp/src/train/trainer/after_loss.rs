//! A trainer after the loss of another rank: it leaves the step under way, and says and gives what a checkpoint needs of it.
//!
//! Where ranks hold copies of another one's shards, a step has a point from which every rank can complete it alone: each has the gradients
//! of its shards and of its copies. No rank updates anything before all have reached that point, so that the ranks that are left can always
//! agree on one step: the one under way if all can complete it, else the one before, which none has changed.

use std::time::Duration;

use ddp_comm::Offer;
use ddp_kernels::{Tensor, TensorMut};

use super::{StateShard, StateToSave, StepInfo, Trainer};
use crate::train::error::Result;
use crate::train::gpu_step::{N_SLOTS, Settled};
use crate::train::step::{Replica, Within};

impl Trainer<'_> {
    /// Whether the ranks that are left after the loss of one hold all that a checkpoint needs, each or together.
    pub(crate) fn survives_loss(&self) -> bool {
        let shard_plan = &self.replica.shard_plan;
        shard_plan.blocks().is_empty() || shard_plan.copy_of().is_some() || self.needs_host_copies()
    }

    /// Whether the run keeps copies of shards in host memory: those of ranks on GPUs.
    pub(crate) fn needs_host_copies(&self) -> bool {
        let Replica { options, shard_plan, .. } = &self.replica;
        options.zero_copies
            && shard_plan.is_sharded()
            && !shard_plan.blocks().is_empty()
            && self.gpu.is_some()
    }

    /// Copies the buffers that layers registered to host memory, by name. Waits for the work on them.
    ///
    /// # Errors
    /// `TrainError::Kernel` of that work.
    pub(crate) fn registered_on_host(&self) -> Result<Vec<(String, Tensor)>> {
        let buffers = self.replica.model.saved_buffers().into_iter();
        buffers.map(|(name, values)| Ok((name.to_owned(), values.cpu()?))).collect()
    }

    /// The weights and the tensors of the optimizer's state, of which this rank's shards are up to date.
    pub(crate) fn tensors_of_shards(&self) -> (&Tensor, Vec<&Tensor>) {
        let Replica { model, optimizer, .. } = &self.replica;
        (model.own_weights(), optimizer.state().into_iter().map(|(_, tensor)| tensor).collect())
    }

    /// Lets the steps from now on be [undone](Trainer::settle). No step is under way.
    ///
    /// # Errors
    /// `TrainError::Kernel` if memory is missing.
    pub(crate) fn prepare_to_undo(&mut self) -> Result<()> {
        match &self.gpu {
            Some(gpu) => {
                gpu.gpu().gate_updates()?;
                self.replica.prepare_to_undo(N_SLOTS)
            }
            None => self.replica.prepare_to_undo(1),
        }
    }

    /// Leaves the step under way, when a collective has failed because another rank is lost, and returns what this rank holds. The trainer
    /// is then what it was after its last complete step, or, with two steps to choose from, [reaches](Trainer::reach) one of them. None
    /// if this rank does not hold what a checkpoint needs of it: its update had begun, or its GPU did not end its work within `limit`.
    /// [`Trainer::outcome`] returns what was not read of the complete steps.
    ///
    /// # Errors
    /// `TrainError::Kernel` from a copy, and for failed work of a GPU; errors of an outcome.
    pub(crate) fn settle(&mut self, limit: Duration) -> Result<Option<Offer>> {
        let (within, copy_of) = (self.replica.within, self.replica.shard_plan.copy_of());
        if within == Within::Comparison || !self.survives_loss() {
            return Ok(None);
        }
        if within == Within::Prepared {
            let last = self.n_steps + 1;
            return Ok(Some(Offer { last, copy_of, ..Offer::whole(self.n_steps) }));
        }
        let is_updating = within == Within::Update && copy_of.is_some();
        if is_updating {
            self.complete_step()?;
        } else if !self.undo_step(limit)? {
            return Ok(None);
        }
        Ok(Some(Offer { copy_of, has_weights: !is_updating, ..Offer::whole(self.n_steps) }))
    }

    /// Undoes or completes the step under way, so that this rank holds the state after `step`, one of those that it has offered.
    ///
    /// # Errors
    /// Same as [`Trainer::settle`].
    pub(crate) fn reach(&mut self, step: u64) -> Result<()> {
        if self.replica.within == Within::Prepared {
            if step > self.n_steps {
                return self.complete_step();
            }
            self.undo_step(Duration::ZERO)?;
        }
        Ok(())
    }

    /// The step that this rank has completed alone, and the limit of its loss; once.
    pub(crate) fn completed_alone(&mut self) -> Option<(StepInfo, f64)> {
        self.completed_alone.take().map(|step| (step.info, step.scalars.loss_limit))
    }

    /// Completes the step under way on the CPU, without gathering weights.
    fn complete_step(&mut self) -> Result<()> {
        let Some(step) = self.planned else { return Ok(()) };
        self.replica.complete_update(&self.scalars, step.shape)?;
        let (sums, squares) = self.replica.results(step.shape)?;
        let outcome = step.outcome(sums, squares, self.replica.options.nonfinite)?;
        self.done.push_back((step.info, outcome));
        self.completed_alone = Some(step);
        self.count_step()
    }

    /// Makes of this trainer what it was after its last complete step; false if that is not possible.
    fn undo_step(&mut self, limit: Duration) -> Result<bool> {
        let Trainer { replica, n_steps, gpu, done, scaler, .. } = self;
        let is_within = replica.within != Within::Nothing;
        let undone = match gpu {
            None if replica.within == Within::Update => return Ok(false),
            None => None,
            Some(gpu) => {
                let settled = gpu.settle(replica.world, *n_steps, replica.options.nonfinite, limit)?;
                let Some(Settled { complete, undone }) = settled else { return Ok(false) };
                if scaler.is_some() && !complete.is_empty() {
                    // The scale has not learned of it.
                    return Ok(false);
                }
                done.extend(complete);
                undone
            }
        };
        if let Some(step) = undone.or(is_within.then_some(*n_steps + 1)) {
            *n_steps = step - 1;
            replica.undo_passes(step)?;
        }
        Ok(true)
    }

    /// Shards of the state that this rank saves after a loss, together with the other `ranks` that are left: all that it holds, if it saves
    /// alone.
    pub(crate) fn shards_after_loss(&self, ranks: &[usize]) -> Vec<StateShard> {
        let shard_plan = &self.replica.shard_plan;
        if shard_plan.is_sharded() {
            shard_plan.shards_to_store_with(ranks)
        } else {
            shard_plan.shards_to_restore()
        }
    }

    /// These shards of the state, with the model's tensors on the rank that completes the checkpoint.
    ///
    /// # Errors
    /// Same as [`Trainer::state_to_save`].
    pub(crate) fn state_after_loss(&self, shards: &[StateShard], is_lead: bool) -> Result<StateToSave<'_>> {
        self.state_of(shards, is_lead)
    }

    /// The weights, of which those of other ranks may be missing after a loss.
    pub(crate) fn weights_after_loss(&mut self) -> TensorMut<'_> {
        self.replica.model.weights_mut().master
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ddp_comm::{World, threads};
    use ddp_kernels::{DType, Device};

    use super::*;
    use crate::config::precision::Precision;
    use crate::config::{OptimizerConfig, OptimizerKind, ZeroStage};
    use crate::data::TensorDataset;
    use crate::data::loader::{BatchPlan, DataLoader, LoaderOptions};
    use crate::model::layer::Sizes;
    use crate::model::{LossHead, Sequential};
    use crate::optim::optimizer::Optimizer;
    use crate::optim::param_groups::ParamGroups;
    use crate::train::options::TrainerOptions;
    use crate::train::step_info::StepRequest;

    const N_STEPS: u64 = 3;

    fn adamw() -> OptimizerConfig {
        OptimizerConfig { ema_decay: 0.9, ..OptimizerConfig::new(OptimizerKind::AdamW, 0.01) }
    }

    fn trainer(world: &World, zero: ZeroStage) -> Trainer<'_> {
        let layers = Sequential::new(3).linear(16).linear(8).linear(1);
        let sizes = Sizes { max_rows: 16, device: Device::Cpu, precision: Precision::F32 };
        let options = TrainerOptions {
            zero,
            zero_copies: true,
            bucket_bytes: 64,
            clip_grad_norm: 0.5,
            ..TrainerOptions::default()
        };
        Trainer::for_layers(world, layers, sizes, LossHead::mse(), &adamw(), options).unwrap()
    }

    /// Weights and state of rank 0 after some steps; if the other rank `fails`, after the last one that it can complete alone.
    fn weights_of_rank_0(zero: ZeroStage, fails: bool) -> Vec<Vec<f32>> {
        let of_ranks = threads::run(2, |world| {
            let mut trainer = trainer(&world, zero);
            let x = Tensor::randn(&[64, 3], DType::F32, Device::Cpu, 1).unwrap();
            let rows = Arc::new(TensorDataset::new(&x, &x.sum(1).unwrap()).unwrap());
            let options = LoaderOptions::new(Device::Cpu);
            let mut loader = DataLoader::new(&world, rows, &BatchPlan::new(16), options).unwrap();
            for step in 1..=N_STEPS {
                let fails_here = fails && step == N_STEPS;
                if fails_here && world.rank().0 == 1 {
                    // Without state its update fails, which begins when both ranks have their gradients.
                    let groups = ParamGroups::new(&adamw(), trainer.model().layout()).unwrap();
                    trainer.replica.optimizer = Optimizer::new(&adamw(), groups, 0, Device::Cpu).unwrap();
                    trainer.set_n_steps(step - 1);
                }
                let mut rows = loader.next_step().unwrap().unwrap();
                let stepped = trainer.step(&mut rows, StepRequest::default());
                if !fails_here {
                    stepped.unwrap();
                    continue;
                }
                stepped.unwrap_err();
                if world.rank().0 == 1 {
                    return Vec::new();
                }
                let offer = trainer.settle(Duration::ZERO).unwrap();
                let want = Offer { copy_of: Some(1), has_weights: false, ..Offer::whole(N_STEPS) };
                assert_eq!(offer, Some(want));
                assert_eq!(trainer.completed_alone().map(|(info, _)| info.step), Some(N_STEPS));
            }
            assert_eq!(trainer.n_steps(), N_STEPS);
            let state = trainer.state().into_iter().map(|(_, tensor)| tensor);
            let tensors = std::iter::once(trainer.model().weights()).chain(state);
            tensors.map(|tensor| tensor.to_vec::<f32>().unwrap()).collect()
        });
        of_ranks.into_iter().next().unwrap()
    }

    /// Of two ranks each holds all shards, its own and the copy.
    #[test]
    fn a_step_that_all_have_prepared_is_completed_alone() {
        for zero in [ZeroStage::Optimizer, ZeroStage::Gradients] {
            assert!(weights_of_rank_0(zero, true) == weights_of_rank_0(zero, false), "{zero:?}");
        }
    }
}
