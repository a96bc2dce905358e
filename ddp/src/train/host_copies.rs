//! Copies of ZeRO's shards in host memory, which the ranks of a run on GPUs refresh every so many steps.
//!
//! An update on a GPU is enqueued, so that no rank could complete it alone after a loss. Instead all ranks keep the state after one step: each
//! its shards of weights and optimizer state, a copy of another rank's, and what all ranks have alike. After a loss the ranks that are left
//! make a checkpoint of these, without their GPUs. The state before is kept until the next one is complete on all ranks, so that a loss within
//! a refresh falls back to it.

use std::sync::Arc;

use ddp_comm::{CommError, Group, Offer, Rank, World};
use ddp_kernels::cuda::{Event, Gpu, GpuFeature};
use ddp_kernels::{DType, Device, Download, KernelError, MemoryUse, Tensor, TensorMut, TensorRef};

use crate::checkpoint::RunState;
use crate::exchange::shard_plan::{ShardPlan, StateShard};
use crate::report::metrics::Event as RunEvent;
use crate::train::error::Result;
use crate::train::trainer::Trainer;

/// States that each rank keeps: the newest one, and the one before.
const N_KEPT: usize = 2;
/// Most elements (f32) of a message between two GPUs: 16 MiB.
const MESSAGE_ELEMENTS: usize = 4 << 20;

/// Bytes of page-locked host memory that a rank needs for shards of `own_len` elements of the weights and `n_state` tensors of state.
pub(crate) fn host_bytes(own_len: usize, n_state: usize) -> usize {
    N_KEPT * kept_len(own_len, n_state) * DType::F32.size_bytes()
}

/// Elements (f32) of memory on a rank's device for the shards that it receives.
pub(crate) fn message_len(own_len: usize) -> usize {
    own_len.min(MESSAGE_ELEMENTS)
}

/// Elements of the shards of one state, and of their copies.
fn kept_len(own_len: usize, n_state: usize) -> usize {
    2 * own_len * (1 + n_state)
}

/// The states that one rank keeps.
#[derive(Debug)]
pub(crate) struct HostCopies {
    /// The shards of this rank, and those of which it holds copies.
    plan: ShardPlan,
    gpu: &'static Gpu,
    every_steps: u64,
    /// The rank that holds copies of this one's shards.
    holder: Rank,
    /// The rank of whose shards this one holds copies.
    copied: Rank,
    /// Shards that arrive, on the device.
    message: Tensor,
    /// The newest one first.
    kept: [Kept; N_KEPT],
}

/// The state after a step, as one rank keeps it.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The weights and each tensor of the optimizer's state: this rank's shards, and those of which it holds copies.
    shards: Download,
    /// None before the first refresh, and within one.
    run: Option<KeptRun>,
}

/// The rest of a state, which all ranks have alike.
#[derive(Debug)]
pub(crate) struct KeptRun {
    /// The run's numbers, with those that the trainer fills in.
    pub(crate) state: RunState,
    /// Cursor up to which the rows of all ranks are in the state's proof.
    pub(crate) gathered: u64,
    /// Step and cursor whose evaluations are complete.
    pub(crate) evaluated_at: Option<(u64, u64)>,
    /// Whether an evaluation is due after the step, within an epoch.
    pub(crate) evaluation_is_due: bool,
    /// Events of the step.
    pub(crate) last_events: Vec<RunEvent>,
    /// Weights of the best evaluation, where a checkpoint has a file of its own for them and this rank keeps them.
    pub(crate) best: Option<Arc<Vec<f32>>>,
    /// Whether a checkpoint has such a file.
    pub(crate) keeps_best_apart: bool,
    /// Buffers that layers registered, by name, in host memory.
    pub(crate) registered: Vec<(String, Tensor)>,
}

impl HostCopies {
    /// Allocates the memory of the copies of `trainer`'s shards, which are `distance` ranks from their owners.
    ///
    /// # Errors
    /// `TrainError::Kernel` if the device or the host lacks memory.
    pub(crate) fn new(
        world: &World,
        trainer: &Trainer<'_>,
        distance: usize,
        every_steps: u64,
    ) -> Result<Self> {
        let plan = trainer.exchange().shard_plan.clone().with_copies(distance);
        let (rank, world_size) = (world.rank().0, world.world_size());
        let Device::Cuda(index) = trainer.model().device() else {
            unreachable!("ranks on the CPU keep none")
        };
        let gpu = Gpu::get(index)?;
        let (_, state) = trainer.tensors_of_shards();
        let n_bytes = kept_len(plan.own_len(), state.len()) * DType::F32.size_bytes();
        let kept = || -> Result<Kept> { Ok(Kept { shards: Download::new(gpu, n_bytes)?, run: None }) };
        let message_len = message_len(plan.own_len());
        Ok(HostCopies {
            gpu,
            every_steps,
            holder: Rank((rank + distance) % world_size),
            copied: Rank((rank + world_size - distance) % world_size),
            message: Tensor::zeros_for(MemoryUse::Optimizer, &[message_len], DType::F32, gpu.device())?,
            kept: [kept()?, kept()?],
            plan,
        })
    }

    /// Lets NCCL connect the ranks that exchange copies, which takes memory: better now than at the first refresh, on a GPU that is full.
    /// Collective.
    ///
    /// # Errors
    /// `TrainError::Comm`; `TrainError::Kernel`.
    pub(crate) fn connect(&mut self, world: &World, trainer: &Trainer<'_>) -> Result<()> {
        if self.message.numel() == 0 {
            return Ok(());
        }
        let group = world.tensor_group();
        let (weights, _) = trainer.tensors_of_shards();
        exchange(
            group,
            [self.holder, self.copied],
            weights.view().range(0, 1)?,
            self.message.view_mut(),
            |_| Ok(()),
        )?;
        wait_for(group, self.gpu)
    }

    /// Whether the copies are refreshed after `step`; the same on all ranks.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        // A skipped step does not change the step number.
        let is_new = || self.newest().is_none_or(|newest| newest.state.step != step);
        step > 0 && step.is_multiple_of(self.every_steps) && is_new()
    }

    /// Replaces the older of the kept states by the present one, of which `run` is what all ranks have alike. Collective; all steps are
    /// complete, and the host waits for the copies.
    ///
    /// # Errors
    /// `TrainError::Comm`, also if another rank is lost meanwhile; `TrainError::Kernel`.
    pub(crate) fn refresh(&mut self, world: &World, trainer: &Trainer<'_>, run: KeptRun) -> Result<()> {
        self.kept.reverse();
        let HostCopies { gpu, plan, holder, copied, message, kept: [kept, _], .. } = self;
        kept.run = None;
        kept.shards.start_all(&[])?;
        let group = world.tensor_group();
        let (weights, state) = trainer.tensors_of_shards();
        let own = || plan.own_shards().map(StateShard::from);
        let of_weights = own().map(|shard| weights.view().range(shard.flat.start, shard.flat.end));
        let mut tensors = vec![of_weights.collect::<Result<Vec<_>, KernelError>>()?];
        for tensor in state {
            tensors.push(vec![tensor.view().range(0, plan.own_len())?]);
        }
        for parts in &tensors {
            parts.iter().try_for_each(|part| kept.shards.append(*part))?;
            for part in parts {
                exchange(group, [*holder, *copied], *part, message.view_mut(), |arrived| {
                    // A copy to other memory than page-locked waits on the host, where nothing would notice a loss.
                    if !gpu.uses(GpuFeature::PinnedMemory) {
                        wait_for(group, gpu)?;
                    }
                    Ok(kept.shards.append(arrived)?)
                })?;
            }
        }
        group.wait_until(|| kept.shards.is_there())?;
        kept.shards.wait::<f32>()?;
        kept.run = Some(run);
        Ok(())
    }

    fn newest(&self) -> Option<&KeptRun> {
        self.kept.iter().find_map(|kept| kept.run.as_ref())
    }

    /// The states that this rank holds.
    pub(crate) fn offer(&self) -> Option<Offer> {
        let mut runs = self.kept.iter().filter_map(|kept| kept.run.as_ref());
        let newest = runs.next()?;
        Some(Offer {
            before: runs.next().map(|run| run.state.step),
            copy_of: self.plan.copy_of(),
            has_weights: false,
            lacks_best: newest.keeps_best_apart && newest.best.is_none(),
            ..Offer::whole(newest.state.step)
        })
    }

    /// The state after `step`, if it is kept.
    pub(crate) fn after(&self, step: u64) -> Option<KeptState<'_>> {
        self.kept.iter().find_map(|Kept { shards, run }| {
            let run = run.as_ref().filter(|run| run.state.step == step)?;
            Some(KeptState { plan: &self.plan, shards: shards.arrived()?, run })
        })
    }
}

/// A kept state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptState<'a> {
    plan: &'a ShardPlan,
    shards: &'a [f32],
    /// Rest of the state, which all ranks have alike.
    pub(crate) run: &'a KeptRun,
}

impl<'a> KeptState<'a> {
    /// The shards that this rank saves together with the other `ranks` that are left; their offsets are those of [`KeptState::tensors`].
    pub(crate) fn shards_with(&self, ranks: &[usize]) -> Vec<StateShard> {
        self.plan.shards_to_store_with(ranks)
    }

    /// The weights and each tensor of state: the shards of this rank, and then those of which it holds copies.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &'a [f32]> {
        self.shards.chunks_exact(2 * self.plan.own_len())
    }
}

/// Waits for what is enqueued on the GPU's compute stream, unless a rank is lost meanwhile.
fn wait_for(group: &Group, gpu: &'static Gpu) -> Result<()> {
    let done = Event::untimed(gpu)?;
    done.record(gpu.compute())?;
    Ok(group.wait_until(|| done.is_done())?)
}

/// Sends `own` to the first rank and receives the shard of the second one, message by message, each of which `take` enqueues a copy of.
fn exchange(
    group: &Group,
    [to, from]: [Rank; 2],
    own: TensorRef<'_>,
    mut message: TensorMut<'_>,
    mut take: impl FnMut(TensorRef<'_>) -> Result<()>,
) -> Result<()> {
    let (len, most) = (own.numel(), message.numel());
    for start in (0..len).step_by(most) {
        let end = (start + most).min(len);
        let sent = own.range(start, end)?;
        group.together(|| -> Result<(), CommError> {
            group.send(to, sent)?;
            group.receive(from, message.reborrow().range(0, end - start)?)
        })?;
        take(message.as_ref().range(0, end - start)?)?;
    }
    Ok(())
}
