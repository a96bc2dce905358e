//! Automatic checkpoints of a run: when to save and what to save. The training loop calls it between steps;
//! [`crate::checkpoint`] writes the files.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp_comm::{SaveAfterLoss, World};
use tracing::{debug, warn};

use crate::checkpoint::{Best, Checkpoint, CheckpointError, CheckpointStore, RunState, SaveOutcome};
use crate::config::{CheckpointConfig, Config};
use crate::data::Loaded;
use crate::model::file::ModelInfo;
use crate::report::metrics::{CheckpointEvent, Event, MetricsSink};
use crate::report::notes::warn_of_all_ranks;
use crate::train::error::{Result, Stop, TrainError};
use crate::train::host_copies::KeptState;
use crate::train::rank_save::{RankSave, SaveSettings};
use crate::train::trainer::Trainer;

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
        let checkpoint = &config.checkpoint;
        let store = CheckpointStore::for_run(folder);
        let rank_save = RankSave::prepare(world, settings(config, data), trainer, store)?;
        let last = (None, Instant::now());
        warn_of_pageable_memory(world, rank_save.as_ref().is_some_and(RankSave::lacks_pinned))?;
        Ok(Autosave { world, config: checkpoint, rank_save, last, pauses: Vec::new(), failed: None })
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
        every > 0
            && step > 0
            && step.is_multiple_of(every)
            && self.last.0.is_none_or(|(last, _)| last != step)
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

    /// Saves the run after the trainer's last step, or starts to; does nothing if that step is saved already. `best` holds the weights of
    /// the best evaluation on rank 0, if they are kept and not those of this step. `started` is the start of
    /// training's pause, and `is_last` says that no step follows.
    ///
    /// # Errors
    /// [`TrainError::Kernel`] if the snapshot fails. [`Autosave::report`] reports a failed write.
    pub fn save(
        &mut self,
        trainer: &Trainer<'_>,
        run: &mut RunState,
        best: Option<Arc<Vec<f32>>>,
        started: Instant,
        is_last: bool,
    ) -> Result<()> {
        let place = Some((trainer.n_steps(), run.cursor));
        if self.last.0 == place {
            return Ok(());
        }
        match &mut self.rank_save {
            Some(rank_save) => rank_save.save(trainer, run, best, is_last)?,
            None => trainer.take(run)?,
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
        let Some(rank_save) = &mut self.rank_save else { return Ok(()) };
        let outcomes = rank_save.poll();
        self.report_outcomes(outcomes, metrics)
    }

    /// Saves the run after the loss of another rank, or this rank's share of it; returns whether the state after the trainer's last step is
    /// saved. Not collective.
    ///
    /// - `best`: as in [`Autosave::save`]; on ranks that do not have it, that of the run's newest checkpoint is taken
    pub(crate) fn save_after_loss(
        &mut self,
        trainer: &mut Trainer<'_>,
        run: &mut RunState,
        best: Option<Arc<Vec<f32>>>,
        after_loss: AfterLoss<'_>,
    ) -> Result<bool> {
        let AfterLoss { config, data, folder, keeps_best_apart, kept, save, limit } = after_loss;
        let is_alone = save.ranks.len() == 1 && trainer.exchange().shard_plan.blocks().is_empty();
        if !is_alone {
            // A save under way waits for the rank that is lost.
            self.rank_save = None;
        }
        if self.world.rank().0 == 0 && self.rank_save.is_some() {
            self.save(trainer, run, best, Instant::now(), true)?;
            let outcomes = self.rank_save.take().map_or(Vec::new(), RankSave::finish);
            let has_failed = |outcome: &SaveOutcome| matches!(outcome, SaveOutcome::Failed { .. });
            return Ok(!outcomes.last().map_or(self.failed.is_some(), has_failed));
        }
        let store = CheckpointStore::for_run(folder);
        let save_share = |store, trainer: &mut Trainer<'_>, run: &mut RunState, best| {
            let (world, settings) = (self.world, settings(config, data));
            match kept {
                Some(kept) => {
                    RankSave::save_kept(world, settings, trainer, store, (kept, run), best, (save, limit))
                }
                None => RankSave::save_after_loss(world, settings, trainer, store, run, best, (save, limit)),
            }
        };
        if save.ranks[0] != self.world.rank().0 {
            save_share(store, trainer, run, None)?;
            return Ok(true);
        }
        // Checkpoints of later steps were damaged when this run resumed, unless this is the state after an earlier one.
        let end = if kept.is_some() { u64::MAX } else { save.step + 1 };
        let step_of = |newest: &Checkpoint| newest.manifest().run.step;
        let check = |newest: &Checkpoint| if step_of(newest) >= save.step { newest.verify() } else { Ok(()) };
        let newest = store.newest(end, check)?.found;
        if let Some(step) = newest.as_ref().map(step_of).filter(|step| *step >= save.step) {
            return Ok(step == save.step);
        }
        let best = match (keeps_best_apart, newest) {
            (false, _) => None,
            (true, _) if best.is_some() => best,
            (true, newest) => {
                // The ranks that had them are lost.
                let known = newest.filter(|newest| newest.manifest().run.best.is_some());
                let known_best = known.as_ref().and_then(|newest| newest.manifest().run.best.clone());
                if known_best.as_ref().map(Best::place) != run.best.as_ref().map(Best::place) {
                    let instead = match &known_best {
                        Some(best) => format!(
                            "the best one is now that of step {}, from the newest checkpoint",
                            best.step
                        ),
                        None => "the next one is the best again".to_owned(),
                    };
                    let lost = "the weights of the best evaluation were lost with the ranks that kept them";
                    warn!("{lost}: {instead}");
                }
                run.best = known_best;
                known
                    .map(|newest| newest.weights_of_best(trainer.model().layout()))
                    .transpose()?
                    .map(Arc::new)
            }
        };
        save_share(store, trainer, run, best)?;
        Ok(true)
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
        let outcomes = self.rank_save.take().map_or(Vec::new(), RankSave::finish);
        self.report_outcomes(outcomes, metrics)?;
        Ok(self.failed.take())
    }
}

/// Parts of the run that a save after the loss of a rank needs.
pub(crate) struct AfterLoss<'a> {
    pub(crate) config: &'a Config,
    pub(crate) data: &'a Loaded,
    pub(crate) folder: &'a Path,
    /// Whether the weights of the best evaluation are not those of this step.
    pub(crate) keeps_best_apart: bool,
    /// The state to save, where it is not the trainer's.
    pub(crate) kept: Option<KeptState<'a>>,
    /// The save, and the ranks that take part in it.
    pub(crate) save: &'a SaveAfterLoss,
    /// Longest time for it.
    pub(crate) limit: Duration,
}

fn settings(config: &Config, data: &Loaded) -> SaveSettings {
    let checkpoint = &config.checkpoint;
    SaveSettings {
        // `train.stop_after_steps` applies to this leg of the run only.
        info: ModelInfo {
            config: config.without_stop().to_model_toml(),
            preprocessor: data.preprocessor.clone(),
            n_steps: None,
            held_out: data.held_out,
        },
        data_fingerprint: data.data_fingerprint.clone(),
        keep: checkpoint.keep,
        keep_best: checkpoint.keep_best.is_some(),
        is_async: checkpoint.is_async && checkpoint.is_on(),
        is_by_clock: !checkpoint.saves_best(),
    }
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
