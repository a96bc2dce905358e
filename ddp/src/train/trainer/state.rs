//! State of a trainer, taken for a checkpoint and restored from one: all that its next steps depend on besides its config.
//!
//! Both take the trainer apart field by field, so that a new field can't be forgotten in one of them.

use std::ops::Range;

use ddp_kernels::{Device, Tensor, TensorRef, ops};

use super::{StateShard, Trainer};
use crate::checkpoint::{Checkpoint, CheckpointError, Load, RunState, ShardRange, StateReader};
use crate::optim::loss_scaler::LossScaler;
use crate::storage::stream::Caching;
use crate::train::error::Result;
use crate::train::gpu_step::GpuStep;
use crate::train::matmul_choices;
use crate::train::step::Replica;

/// Tensors that a rank saves, on the trainer's device.
#[derive(Debug)]
pub(crate) struct StateToSave<'a> {
    /// All weights, on rank 0.
    pub(crate) weights: Option<TensorRef<'a>>,
    /// Each tensor of the optimizer's state, in parts that follow each other.
    pub(crate) tensors: Vec<Vec<TensorRef<'a>>>,
    /// The registered buffers, on rank 0.
    pub(crate) registered: Vec<(&'a str, &'a Tensor)>,
}

impl Trainer<'_> {
    /// Takes the numbers after the last enqueued step into `run`, without the tensors.
    ///
    /// # Errors
    /// `TrainError::Kernel` if the GPU's choices of matmuls can't be read.
    pub fn take(&self, run: &mut RunState) -> Result<()> {
        let Trainer {
            replica: _,
            n_steps,
            gpu,
            scaler,
            done: _,
            averaged: _,
            replica_check: _,
            scalars: _,
            planned: _,
            completed_alone: _,
        } = self;
        run.step = *n_steps;
        run.loss_scaler = scaler.as_ref().map(LossScaler::state);
        let choices = gpu.as_ref().map(|gpu| matmul_choices::export(gpu.gpu())).transpose()?;
        run.matmul_choices = choices.unwrap_or_default().lines().map(str::to_owned).collect();
        Ok(())
    }

    /// The tensors that this rank saves, as they are after the last enqueued step. Whole weights are
    /// [gathered](Trainer::gather_weights) first. To read them on a GPU, the host waits for the steps in flight.
    ///
    /// # Errors
    /// None: the ranges lie within the state.
    pub(crate) fn state_to_save(&self) -> Result<StateToSave<'_>> {
        let Replica { world, shard_plan, .. } = &self.replica;
        self.state_of(&shard_plan.shards_to_store(), world.rank().0 == 0)
    }

    /// These shards of the state, and the model's tensors.
    pub(super) fn state_of(&self, shards: &[StateShard], with_model: bool) -> Result<StateToSave<'_>> {
        let Replica { model, optimizer, .. } = &self.replica;
        let ranges = ranges_of(shards);
        let tensors = optimizer.state().into_iter().map(|(_, tensor)| slices_of(tensor, &ranges));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let (weights, registered) = if with_model {
            (Some(model.weights().view()), model.saved_buffers())
        } else {
            (None, Vec::new())
        };
        Ok(StateToSave { weights, tensors, registered })
    }

    /// Restores the state of `checkpoint`, whose state files `reader` reads. It must not be used before all ranks have succeeded; returns
    /// the weights of the run's best evaluation, if the run keeps them, on the ranks that may save them: rank 0, and rank 1 after a loss of it.
    ///
    /// # Errors
    /// [`CheckpointError::OtherModel`], [`CheckpointError::Gap`], [`CheckpointError::Damaged`]; `TrainError::Kernel`.
    pub(crate) fn restore(
        &mut self,
        checkpoint: &Checkpoint,
        reader: &StateReader,
    ) -> Result<Option<Vec<f32>>> {
        let last_with_best = usize::from(self.survives_loss());
        let Trainer {
            replica,
            n_steps,
            gpu,
            scaler,
            done: _,
            averaged: _,
            replica_check: _,
            scalars: _,
            planned: _,
            completed_alone: _,
        } = self;
        let Replica { world, model, grads, optimizer, shard_plan, options, .. } = replica;
        let run = &checkpoint.manifest().run;
        let layout = model.layout().clone();
        let shard_ranges = ShardRange::from_state(&layout, &shard_plan.shards_to_restore());
        let mut weights = vec![0.0f32; layout.flat_len()];
        // Ranks of one host read the same bytes, and the page cache holds them for all. A rank alone on its host reads all tensors at
        // once; several ranks hold one tensor of GPU state at a time.
        let is_alone = world.local_size() == 1;
        let (mut state, mut on_gpu) = (Vec::new(), Vec::new());
        for (name, tensor) in optimizer.state_mut() {
            match tensor.device() {
                Device::Cpu => state.push((name, tensor.view_mut().into_slice::<f32>("resume", name)?)),
                Device::Cuda(_) => {
                    let values = vec![0.0f32; if is_alone { tensor.numel() } else { 0 }];
                    on_gpu.push((name, values, tensor));
                }
            }
        }
        if is_alone {
            state.extend(on_gpu.iter_mut().map(|(name, values, _)| (*name, values.as_mut_slice())));
        }
        checkpoint.load(Load {
            layout: &layout,
            weights: &mut weights,
            shard_ranges: &shard_ranges,
            state,
            rank: world.rank().0,
            world_size: world.world_size(),
            reader,
            caching: if is_alone { Caching::Bypass } else { Caching::Keep },
        })?;
        for (name, mut values, tensor) in on_gpu {
            if !is_alone {
                values.resize(tensor.numel(), 0.0);
                reader.read(&shard_ranges, name, &mut values)?;
            }
            ops::copy(TensorRef::from_slice(&values, &[values.len()])?, tensor.view_mut())?;
        }
        let differences = model.set_saved_buffers(&checkpoint.registered_buffers()?)?;
        if !differences.is_empty() {
            let (path, differences) = (checkpoint.path().to_owned(), differences.join("\n  "));
            return Err(CheckpointError::OtherModel { path, differences }.into());
        }
        model.set_weights(TensorRef::from_slice(&weights, &[weights.len()])?)?;
        // Also the mark of weights that were not finite.
        grads.clear()?;
        *n_steps = run.step;
        optimizer.set_n_steps(run.step);
        if let (Some(scaler), Some(config), Some(state)) = (scaler, options.loss_scaling, run.loss_scaler) {
            *scaler = LossScaler::from_state(config, state)?;
        }
        if let Some(gpu) = gpu.as_ref().map(GpuStep::gpu) {
            gpu.import_matmul_choices(&run.matmul_choices.join("\n"))?;
        }
        let Some(best) =
            run.best.as_ref().filter(|_| run.keeps_best_weights && world.rank().0 <= last_with_best)
        else {
            return Ok(None);
        };
        if let Some(in_own_file) = checkpoint.best_weights(&layout)? {
            return Ok(Some(in_own_file));
        }
        if best.step != run.step {
            return Ok(None);
        }
        // Without a file of their own they are the checkpoint's.
        weights.extend(model.statistics()?);
        Ok(Some(weights))
    }
}

fn slices_of<'a>(tensor: &'a Tensor, ranges: &[Range<usize>]) -> Result<Vec<TensorRef<'a>>> {
    ranges.iter().map(|range| Ok(tensor.view().range(range.start, range.end)?)).collect()
}

/// Merges adjacent shards into ranges of the state's tensors.
fn ranges_of(own: &[StateShard]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for StateShard { flat, offset } in own {
        match ranges.last_mut() {
            Some(last) if last.end == *offset => last.end += flat.len(),
            _ => ranges.push(*offset..offset + flat.len()),
        }
    }
    ranges
}
