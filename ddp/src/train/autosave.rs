//! Automatic checkpoints of a run: when to save and what to save. The training loop calls it between steps;
//! [`crate::checkpoint`] writes the files.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp_comm::World;
use ddp_kernels::{Device, Tensor, TensorRef};
use tracing::{debug, warn};

use crate::checkpoint::{
    CheckpointError, CheckpointStore, RunState, SaveOptions, SaveOutcome, Saver, ShardRange, SnapshotBuffers,
    Writer,
};
use crate::config::{CheckpointConfig, Config};
use crate::data::Loaded;
use crate::model::file::ModelInfo;
use crate::report::log::warn_of_all_ranks;
use crate::report::metrics::{CheckpointEvent, Event, MetricsSink};
use crate::run_folder::run_id;
use crate::train::error::Stop;
use crate::train::error::{Result, TrainError};
use crate::train::trainer::{StateShard, Trainer};

/// Automatic checkpoints of one run on one rank.
pub struct Autosave<'a> {
    world: &'a World,
    config: &'a CheckpointConfig,
    /// This rank's share of each save; none on ranks that save nothing.
    rank_save: Option<RankSave>,
    /// Step and cursor of the last one, and when it was taken.
    last: (Option<(u64, u64)>, Instant),
    /// Pauses of training by step, for saves that are not reported yet.
    pauses: Vec<(u64, Duration)>,
    /// Error of the last save, if it failed.
    failed: Option<CheckpointError>,
}

/// This rank's share of each checkpoint, and the way it is saved.
struct RankSave {
    mode: SaveMode,
    /// Ranges of the state's tensors, which follow each other in the file.
    ranges: Vec<Range<usize>>,
    has_weights: bool,
    /// Whether the system had no page-locked memory left for copies from the GPU.
    lacks_pinned: bool,
}

enum SaveMode {
    /// In the background while training continues, from snapshots in memory that is kept for them.
    Async(Writer),
    /// While training waits, from snapshots that are allocated for each save.
    Blocking(Box<Saver>, SnapshotBuffers, Vec<SaveOutcome>),
}

impl<'a> Autosave<'a> {
    /// Prepares to save the run of `trainer` in `folder`, which is the same on all ranks. Collective.
    ///
    /// # Errors
    /// [`Stop`] if the folder can't be created.
    pub fn new(
        world: &'a World,
        config: &'a Config,
        data: &Loaded,
        trainer: &Trainer<'_>,
        folder: &Path,
    ) -> Result<Self, Stop> {
        let store = CheckpointStore::of_run(folder);
        // Before any rank writes there.
        let prepared = match world.rank().0 {
            0 => store.prepare().map(|_| ()),
            _ => Ok(()),
        };
        world.collective_result(prepared.map_err(TrainError::from))?;
        let own = trainer.state_shards();
        let n_savers = count_savers(world, !own.is_empty())?;
        let saves = world.rank().0 < n_savers;
        let rank_save =
            saves.then(|| RankSave::new(world, config, data, trainer, store, n_savers, &own)).transpose();
        let rank_save = world.collective_result(rank_save)?;
        let last = (None, Instant::now());
        warn_of_pageable_memory(world, rank_save.as_ref().is_some_and(|rank_save| rank_save.lacks_pinned))?;
        let config = &config.checkpoint;
        Ok(Autosave { world, config, rank_save, last, pauses: Vec::new(), failed: None })
    }

    /// Whether the config enables automatic checkpoints.
    pub fn is_on(&self) -> bool {
        self.config.is_on()
    }

    /// Whether each new best evaluation is saved at once.
    pub fn saves_best(&self) -> bool {
        self.config.saves_best()
    }

    /// Whether a checkpoint is due after step `step`; the same on all ranks.
    pub fn is_due_after_step(&self, step: u64) -> bool {
        let every = self.config.every_steps;
        // A skipped step does not change the step number.
        every > 0 && step.is_multiple_of(every) && self.last.0.is_none_or(|(last, _)| last != step)
    }

    /// Whether a checkpoint is due after epoch `epoch`, counted from 1; the same on all ranks.
    pub fn is_due_after_epoch(&self, epoch: u64) -> bool {
        let every = self.config.every_epochs;
        every > 0 && epoch.is_multiple_of(every)
    }

    /// Whether a checkpoint is due by rank 0's clock; always false on other ranks.
    pub fn is_due_by_clock(&self) -> bool {
        let minutes = self.config.every_minutes;
        minutes > 0.0 && self.world.rank().0 == 0 && self.last.1.elapsed().as_secs_f64() >= minutes * 60.0
    }

    /// Saves the run after step `run.step`, or starts to; does nothing if that step is saved already. `best` holds the weights of
    /// the best evaluation on rank 0, if they are kept and not those of this step. `started` is the start of
    /// training's pause.
    ///
    /// # Errors
    /// [`TrainError::Kernel`] if the snapshot fails. [`Autosave::report`] reports a failed write.
    pub fn save(
        &mut self,
        trainer: &Trainer<'_>,
        run: &RunState,
        best: Option<Arc<Vec<f32>>>,
        started: Instant,
    ) -> Result<()> {
        let place = Some((run.step, run.cursor));
        if self.last.0 == place {
            return Ok(());
        }
        if let Some(rank_save) = &mut self.rank_save {
            rank_save.save(trainer, run, best)?;
        }
        self.last = (place, Instant::now());
        self.pauses.push((run.step, started.elapsed()));
        Ok(())
    }

    /// Reports the checkpoints that have finished since the last call. A failed save is reported; training continues.
    ///
    /// # Errors
    /// [`TrainError::Report`] if an event can't be written.
    pub fn report(&mut self, metrics: &mut MetricsSink) -> Result<()> {
        let outcomes = match self.rank_save.as_mut().map(|rank_save| &mut rank_save.mode) {
            Some(SaveMode::Async(writer)) => writer.poll(),
            Some(SaveMode::Blocking(_, _, outcomes)) => std::mem::take(outcomes),
            None => return Ok(()),
        };
        self.report_outcomes(outcomes, metrics)
    }

    fn report_outcomes(&mut self, outcomes: Vec<SaveOutcome>, metrics: &mut MetricsSink) -> Result<()> {
        for outcome in outcomes {
            let step = outcome.step();
            let pause =
                self.pauses.iter().find(|(of, _)| *of == step).map_or(Duration::ZERO, |(_, pause)| *pause);
            self.pauses.retain(|(of, _)| *of > step);
            match outcome {
                SaveOutcome::Saved(saved) => {
                    saved.notes.iter().for_each(|note| warn!("{note}"));
                    self.failed = None;
                    let (bytes, write_s) = (saved.bytes, saved.seconds);
                    let pause_ms = pause.as_secs_f64() * 1e3;
                    debug!(step, bytes, pause_ms, write_s, "checkpoint saved");
                    metrics.write(&Event::Checkpoint(CheckpointEvent { step, bytes, pause_ms, write_s }))?;
                }
                SaveOutcome::Failed { error, .. } => {
                    // Reported when it failed, by whoever saved.
                    self.failed = Some(error);
                }
            }
        }
        Ok(())
    }

    /// Waits for the save in progress and ends saving; returns the error of the last save, if it failed.
    ///
    /// # Errors
    /// [`TrainError::Report`] if an event can't be written.
    pub fn finish(&mut self, metrics: &mut MetricsSink) -> Result<Option<CheckpointError>> {
        let outcomes = match self.rank_save.take().map(|rank_save| rank_save.mode) {
            Some(SaveMode::Async(writer)) => writer.finish(),
            Some(SaveMode::Blocking(_, _, outcomes)) => outcomes,
            None => Vec::new(),
        };
        self.report_outcomes(outcomes, metrics)?;
        Ok(self.failed.take())
    }
}

impl RankSave {
    fn new(
        world: &World,
        config: &Config,
        data: &Loaded,
        trainer: &Trainer<'_>,
        store: CheckpointStore,
        n_savers: usize,
        own: &[StateShard],
    ) -> Result<Self> {
        let rank = world.rank().0;
        let layout = trainer.model().layout();
        let state_names: Vec<String> = trainer.state().iter().map(|(name, _)| (*name).to_owned()).collect();
        let checkpoint = &config.checkpoint;
        let ranges = ranges_of(own);
        let owned: Vec<Range<usize>> = own.iter().map(|shard| shard.flat.clone()).collect();
        let n_state = ranges.iter().map(ExactSizeIterator::len).sum();
        let n_weights = if rank == 0 { layout.flat_len() } else { 0 };
        let n_tensors = state_names.len();
        let mut lacks_pinned = false;
        let options = SaveOptions {
            run_id: store.folder().parent().and_then(run_id::read),
            // `train.stop_after_steps` applies to this leg of the run only.
            info: ModelInfo {
                config: config.without_stop().to_saved_toml(),
                preprocessor: data.preprocessor.clone(),
            },
            layout: layout.clone(),
            data_fingerprint: data.fingerprint_hex(),
            world_size: world.world_size(),
            rank,
            n_savers,
            state_names,
            shard_ranges: ShardRange::of_ranges(layout, &owned),
            keep: checkpoint.keep,
            keep_best: checkpoint.keep_best.is_some(),
            rank_timeout: SaveOptions::RANK_TIMEOUT,
        };
        let saver = Saver::new(store, options);
        let mode = if checkpoint.is_async && checkpoint.is_on() {
            let device = trainer.model().weights().device();
            let buffers = SnapshotBuffers::of_device(device, n_weights, &vec![n_state; n_tensors])?;
            lacks_pinned = device != Device::Cpu && !buffers.is_pinned();
            SaveMode::Async(Writer::start(saver, buffers)?)
        } else {
            // Training waits for the disk here, so pageable memory suffices; a run that is saved only when it stops needs no
            // memory until then.
            SaveMode::Blocking(Box::new(saver), SnapshotBuffers::default(), Vec::new())
        };
        Ok(RankSave { mode, ranges, has_weights: rank == 0, lacks_pinned })
    }

    fn save(&mut self, trainer: &Trainer<'_>, run: &RunState, best: Option<Arc<Vec<f32>>>) -> Result<()> {
        let state: Vec<&Tensor> = trainer.state().into_iter().map(|(_, tensor)| tensor).collect();
        let weights = self.has_weights.then(|| trainer.model().weights());
        match &mut self.mode {
            SaveMode::Async(writer) => {
                let (mut buffers, _) = writer.take_buffers();
                snapshot(&mut buffers, weights, &state, &self.ranges)?;
                buffers.set_best(best);
                writer.save(run.clone(), self.has_weights, buffers)?;
            }
            SaveMode::Blocking(saver, buffers, outcomes) => {
                snapshot(buffers, weights, &state, &self.ranges)?;
                let weights = self.has_weights.then(|| buffers.weights());
                let best = best.as_deref().map(Vec::as_slice);
                let outcome = match saver.save_with_best(run, weights, best, &buffers.state()) {
                    Ok(saved) => SaveOutcome::Saved(saved),
                    Err(error) => {
                        warn_of_all_ranks(saver.options().rank, &error.to_string());
                        SaveOutcome::Failed { step: run.step, error }
                    }
                };
                *outcomes = vec![outcome];
                *buffers = SnapshotBuffers::default();
            }
        }
        Ok(())
    }
}

/// Takes a snapshot of this rank's weights and state.
fn snapshot(
    buffers: &mut SnapshotBuffers,
    weights: Option<&Tensor>,
    state: &[&Tensor],
    ranges: &[Range<usize>],
) -> Result<()> {
    let weights: Vec<TensorRef<'_>> = weights.map(Tensor::view).into_iter().collect();
    let state: Vec<_> = state.iter().map(|tensor| slices_of(tensor, ranges)).collect::<Result<_>>()?;
    Ok(buffers.take(&weights, &state)?)
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

/// Counts the ranks that save: all up to the last rank that holds state, at least rank 0.
fn count_savers(world: &World, has_state: bool) -> Result<usize> {
    let all = world.group().all_gather_bytes(&[u8::from(has_state)]).map_err(TrainError::from)?;
    Ok(all.iter().rposition(|of_rank| of_rank[0] == 1).map_or(1, |last| last + 1))
}

/// Warns of ranks that lack page-locked memory.
fn warn_of_pageable_memory(world: &World, lacks_pinned: bool) -> Result<()> {
    let all = world.group().all_gather_bytes(&[u8::from(lacks_pinned)]).map_err(TrainError::from)?;
    let n_ranks = all.iter().filter(|of_rank| of_rank[0] == 1).count();
    if n_ranks > 0 {
        let warning = format!(
            "{n_ranks} of {} ranks could not allocate page-locked host memory for checkpoints and use pageable memory: \
             each checkpoint pauses training for longer\nhint: use fewer ranks per host, or more memory; checkpoint.async = false needs none",
            world.world_size()
        );
        warn_of_all_ranks(world.rank().0, &warning);
    }
    Ok(())
}
