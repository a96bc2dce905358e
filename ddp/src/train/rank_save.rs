//! One rank's share of each checkpoint of a run, from the trainer's tensors.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ddp_comm::{SaveAfterLoss, World};
use ddp_kernels::hint::with_hint;
use ddp_kernels::{Device, KernelError, TensorRef};

use crate::checkpoint::{
    CheckpointError, CheckpointStore, Contents, RunState, SaveOptions, SaveOutcome, Saved, Saver, ShardRange,
    SnapshotBuffers, Writer,
};
use crate::model::file::ModelInfo;
use crate::report::notes::warn_of_all_ranks;
use crate::run_folder::run_id;
use crate::train::error::{Result, Stop, TrainError};
use crate::train::host_copies::KeptState;
use crate::train::trainer::{StateShard, StateToSave, Trainer};

/// Metadata that a run's checkpoints carry, and how they are saved.
pub(crate) struct SaveSettings {
    /// Config and columns, as in the run's model file.
    pub(crate) info: ModelInfo,
    /// Hash of the training data, hexadecimal.
    pub(crate) data_fingerprint: String,
    /// Number of newest checkpoints to keep; 0 keeps all.
    pub(crate) keep: usize,
    /// Whether to keep the best one too.
    pub(crate) keep_best: bool,
    /// Whether training continues while a checkpoint is written.
    pub(crate) is_async: bool,
    /// Whether saves are due by the clock alone, so that a short run has none before its end.
    pub(crate) is_by_clock: bool,
}

/// This rank's share of each checkpoint, and the way it is saved.
pub(crate) struct RankSave {
    mode: SaveMode,
    /// Whether the system had no page-locked memory left for copies from the GPU.
    lacks_pinned: bool,
}

enum SaveMode {
    /// In the background while training continues, from snapshots in memory that is kept for them.
    Async(Box<Writer>),
    /// While training waits: in place on the CPU, on a GPU from snapshots that are allocated for each save.
    Blocking(Box<Saver>, Vec<SaveOutcome>),
    /// In the background from the first save on that does not end the run: the others need no memory for snapshots.
    Deferred(Option<Box<Saver>>),
}

impl RankSave {
    /// Prepares to save `trainer` in `store`, which is created; `None` on ranks that save nothing. Collective.
    ///
    /// # Errors
    /// `TrainError::Checkpoint` if the folder can't be created; `TrainError::Kernel` without memory for snapshots.
    pub(crate) fn prepare(
        world: &World,
        settings: SaveSettings,
        trainer: &Trainer<'_>,
        store: CheckpointStore,
    ) -> Result<Option<Self>, Stop> {
        // Before any rank writes there.
        let prepared = match world.rank().0 {
            0 => store.prepare().map(|_| ()),
            _ => Ok(()),
        };
        world.collective_result(prepared.map_err(TrainError::from))?;
        let own = trainer.state_shards();
        // All save up to the last rank that holds state, at least rank 0.
        let have_state = world.group().all_gather_bytes(&[u8::from(!own.is_empty())]);
        let have_state = have_state.map_err(TrainError::from)?;
        let n_savers = have_state.iter().rposition(|of_rank| of_rank[0] == 1).map_or(1, |last| last + 1);
        let saves = world.rank().0 < n_savers;
        let rank_save = saves.then(|| Self::new(world, settings, trainer, store, n_savers, &own));
        Ok(world.collective_result(rank_save.transpose())?)
    }

    /// Saves once, alone or together with others, what a rank holds that is left after the loss of another one; the trainer has
    /// [left](Trainer::settle) its step, and the store is there.
    ///
    /// - `limit`: the longest wait for the others
    ///
    /// # Errors
    /// `TrainError::Checkpoint`; `TrainError::Kernel` from a copy.
    pub(crate) fn save_after_loss(
        world: &World,
        settings: SaveSettings,
        trainer: &mut Trainer<'_>,
        store: CheckpointStore,
        run: &mut RunState,
        best: Option<Arc<Vec<f32>>>,
        (save, limit): (&SaveAfterLoss, Duration),
    ) -> Result<()> {
        trainer.take(run)?;
        let shards = trainer.shards_after_loss(&save.ranks);
        let owned: Vec<Range<usize>> = shards.iter().map(|shard| shard.flat.clone()).collect();
        let mut saver = saver_after_loss(world, settings, trainer, store, &owned, (save, limit));
        if save.lacks_weights {
            let weights = trainer.weights_after_loss().into_slice::<f32>("checkpoint", "weights")?;
            complete_weights(&saver, run.step, weights, &owned)?;
        }
        let state = trainer.state_after_loss(&shards, saver.options().rank == 0)?;
        match trainer.model().device() {
            Device::Cpu => save_in_place(&mut saver, run, &state, best.as_deref())??,
            Device::Cuda(_) => {
                saver.save_snapshot(run, &snapshot(SnapshotBuffers::default(), &state, best)?)?
            }
        };
        Ok(())
    }

    /// Saves a state that is kept in host memory, as [`RankSave::save_after_loss`] does, without the trainer's device.
    ///
    /// # Errors
    /// `TrainError::Checkpoint`.
    pub(crate) fn save_kept(
        world: &World,
        settings: SaveSettings,
        trainer: &Trainer<'_>,
        store: CheckpointStore,
        (kept, run): (KeptState<'_>, &RunState),
        best: Option<Arc<Vec<f32>>>,
        (save, limit): (&SaveAfterLoss, Duration),
    ) -> Result<()> {
        let shards = kept.shards_with(&save.ranks);
        let owned: Vec<Range<usize>> = shards.iter().map(|shard| shard.flat.clone()).collect();
        let mut saver = saver_after_loss(world, settings, trainer, store, &owned, (save, limit));
        let mut tensors = kept.tensors();
        let masters = tensors.next().unwrap_or_default();
        let mut weights = vec![0.0; trainer.model().layout().flat_len()];
        for StateShard { flat, offset } in shards {
            let values = &masters[offset..offset + flat.len()];
            weights[flat].copy_from_slice(values);
        }
        complete_weights(&saver, run.step, &mut weights, &owned)?;
        let n_own = owned.iter().map(ExactSizeIterator::len).sum();
        let state: Vec<Vec<&[f32]>> = tensors.map(|values: &[f32]| vec![&values[..n_own]]).collect();
        let contents = if saver.options().rank == 0 {
            let (best, registered) = (best.as_deref().map(Vec::as_slice), &kept.run.registered);
            Contents { weights: Some(&weights), best, registered, state: &state }
        } else {
            Contents { state: &state, ..Contents::default() }
        };
        saver.save_all(run, contents)?;
        Ok(())
    }

    fn new(
        world: &World,
        settings: SaveSettings,
        trainer: &Trainer<'_>,
        store: CheckpointStore,
        n_savers: usize,
        own: &[StateShard],
    ) -> Result<Self> {
        let SaveSettings { is_async, is_by_clock, .. } = settings;
        let owned: Vec<Range<usize>> = own.iter().map(|shard| shard.flat.clone()).collect();
        let n_state = owned.iter().map(ExactSizeIterator::len).sum();
        let n_weights = if world.rank().0 == 0 { trainer.model().layout().flat_len() } else { 0 };
        let options = options(world, settings, trainer, &store, n_savers, &owned);
        let n_tensors = options.state_names.len();
        let mut lacks_pinned = false;
        let saver = Saver::new(store, options);
        // Page-locked memory is allocated before training.
        let mode = if is_async && is_by_clock && trainer.model().device() == Device::Cpu {
            SaveMode::Deferred(Some(Box::new(saver)))
        } else if is_async {
            let device = trainer.model().device();
            let buffers = SnapshotBuffers::for_device(device, n_weights, &vec![n_state; n_tensors])?;
            lacks_pinned = device != Device::Cpu && !buffers.is_pinned();
            SaveMode::Async(Box::new(Writer::start(saver, buffers)?))
        } else {
            SaveMode::Blocking(Box::new(saver), Vec::new())
        };
        Ok(RankSave { mode, lacks_pinned })
    }

    /// Whether the system had no page-locked memory left for copies from the GPU.
    pub(crate) fn lacks_pinned(&self) -> bool {
        self.lacks_pinned
    }

    /// Takes the trainer's numbers into `run` and saves them and its tensors, or starts to; `best` are the weights of the best
    /// evaluation, if they are saved. `is_last` says that no step follows.
    ///
    /// # Errors
    /// `TrainError::Kernel` if the snapshot fails. An outcome reports a failed write.
    pub(crate) fn save(
        &mut self,
        trainer: &Trainer<'_>,
        run: &mut RunState,
        best: Option<Arc<Vec<f32>>>,
        is_last: bool,
    ) -> Result<()> {
        trainer.take(run)?;
        if let SaveMode::Deferred(saver) = &mut self.mode {
            let saver = saver.take().expect("it is taken once");
            self.mode = if is_last {
                SaveMode::Blocking(saver, Vec::new())
            } else {
                SaveMode::Async(Box::new(Writer::start(*saver, SnapshotBuffers::default())?))
            };
        }
        match &mut self.mode {
            SaveMode::Deferred(_) => unreachable!("it was replaced"),
            SaveMode::Async(writer) => {
                let (buffers, _) = writer.take_buffers();
                let buffers = snapshot(buffers, &trainer.state_to_save()?, best)?;
                writer.save(run.clone(), buffers)?;
            }
            SaveMode::Blocking(saver, outcomes) => {
                let state = trainer.state_to_save()?;
                let saved = match trainer.model().device() {
                    Device::Cpu => save_in_place(saver, run, &state, best.as_deref())?,
                    // Training waits for the disk here, so pageable memory suffices; a run that is saved only when it stops needs no
                    // memory until then.
                    Device::Cuda(_) => {
                        saver.save_snapshot(run, &snapshot(SnapshotBuffers::default(), &state, best)?)
                    }
                };
                let outcome = match saved {
                    Ok(saved) => SaveOutcome::Saved(saved),
                    Err(error) => {
                        if !saver.is_given_up(&error) {
                            warn_of_all_ranks(saver.options().rank, &with_hint(&error));
                        }
                        SaveOutcome::Failed { step: run.step, error }
                    }
                };
                *outcomes = vec![outcome];
            }
        }
        Ok(())
    }

    /// Outcomes of saves that finished since the last call, without waiting.
    pub(crate) fn poll(&mut self) -> Vec<SaveOutcome> {
        match &mut self.mode {
            SaveMode::Async(writer) => writer.poll(),
            SaveMode::Blocking(_, outcomes) => std::mem::take(outcomes),
            SaveMode::Deferred(_) => Vec::new(),
        }
    }

    /// Waits for the save in progress; returns the last outcomes.
    pub(crate) fn finish(self) -> Vec<SaveOutcome> {
        match self.mode {
            SaveMode::Async(writer) => writer.finish(),
            SaveMode::Blocking(_, outcomes) => outcomes,
            SaveMode::Deferred(_) => Vec::new(),
        }
    }
}

/// Options of a rank that saves these ranges of the state.
fn options(
    world: &World,
    settings: SaveSettings,
    trainer: &Trainer<'_>,
    store: &CheckpointStore,
    n_savers: usize,
    owned: &[Range<usize>],
) -> SaveOptions {
    let layout = trainer.model().layout();
    let SaveSettings { info, data_fingerprint, keep, keep_best, is_async: _, is_by_clock: _ } = settings;
    SaveOptions {
        run_id: store.folder().parent().and_then(run_id::read),
        info,
        layout: layout.clone(),
        data_fingerprint,
        world_size: world.world_size(),
        rank: world.rank().0,
        n_savers,
        state_names: trainer.state().iter().map(|(name, _)| (*name).to_owned()).collect(),
        shard_ranges: ShardRange::from_ranges(layout, owned),
        keep,
        keep_best,
        rank_timeout: SaveOptions::RANK_TIMEOUT,
        is_rank_lost: world.watchdog().loss(),
    }
}

/// The saver of one of the ranks that are left after a loss, of these ranges of the state.
fn saver_after_loss(
    world: &World,
    settings: SaveSettings,
    trainer: &Trainer<'_>,
    store: CheckpointStore,
    owned: &[Range<usize>],
    (save, limit): (&SaveAfterLoss, Duration),
) -> Saver {
    let place = save.ranks.iter().position(|rank| *rank == world.rank().0).unwrap_or_default();
    let options = options(world, settings, trainer, &store, save.ranks.len(), owned);
    let is_rank_lost = world.watchdog().loss_in_save();
    let options = SaveOptions { rank: place, rank_timeout: limit, is_rank_lost, ..options };
    Saver::for_survivors(store, options, save.ranks[0])
}

/// Completes `weights` on the rank that completes the checkpoint by those that the others own.
fn complete_weights(
    saver: &Saver,
    step: u64,
    weights: &mut [f32],
    owned: &[Range<usize>],
) -> Result<(), CheckpointError> {
    if saver.options().rank == 0 {
        saver.collect_weights(step, weights)
    } else {
        saver.pass_on_weights(step, weights, owned)
    }
}

/// Copies what this rank saves to `buffers`.
fn snapshot(
    mut buffers: SnapshotBuffers,
    state: &StateToSave<'_>,
    best: Option<Arc<Vec<f32>>>,
) -> Result<SnapshotBuffers, KernelError> {
    buffers.take(state.weights.as_slice(), &state.tensors)?;
    buffers.take_registered(&state.registered)?;
    buffers.set_best(best);
    Ok(buffers)
}

/// Saves tensors in host memory from where they are.
fn save_in_place(
    saver: &mut Saver,
    run: &RunState,
    state: &StateToSave<'_>,
    best: Option<&Vec<f32>>,
) -> Result<Result<Saved, CheckpointError>, KernelError> {
    fn values<'a>(tensor: &TensorRef<'a>) -> Result<&'a [f32], KernelError> {
        tensor.as_slice("checkpoint", "state")
    }
    let tensors = state.tensors.iter().map(|parts| parts.iter().map(values).collect());
    let tensors = tensors.collect::<Result<Vec<Vec<&[f32]>>, KernelError>>()?;
    let registered = state.registered.iter().map(|(name, values)| Ok(((*name).to_owned(), values.cpu()?)));
    let contents = Contents {
        weights: state.weights.as_ref().map(values).transpose()?,
        best: best.map(Vec::as_slice),
        registered: &registered.collect::<Result<Vec<_>, KernelError>>()?,
        state: &tensors,
    };
    Ok(saver.save_all(run, contents))
}
