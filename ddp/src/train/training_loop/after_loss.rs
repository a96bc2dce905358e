//! The end of a loop whose ranks have lost another one: those that are left save the newest step that one of them has completed.
//!
//! The watchdog asks the ranks. What no single rank holds after the loss is computed anew: which rows the others have used is a function
//! of seed and cursor. With ZeRO the ranks save together, where each holds a copy of another one's shards: of the trainer's state, or on GPUs of
//! one that is kept in host memory.

use std::error::Error;
use std::io::{self, ErrorKind};

use ddp_comm::{CommError, Offer, SaveAfterLoss};
use tracing::error;

use super::{Ending, InFlight, TrainingLoop};
use crate::checkpoint::CheckpointError;
use crate::data::order::epoch_proof::RowsHash;
use crate::report::metrics::{Event, json_line};
use crate::train::autosave::AfterLoss;
use crate::train::error::{Result, Stop, TrainError};
use crate::train::host_copies::{HostCopies, KeptState};
use crate::train::setup::batch_plan;
use crate::train::trainer::Trainer;

/// The error that this rank alone has, and that does not forbid the others to save.
fn error_of_this_rank(stop: &Stop) -> Option<&TrainError> {
    let Stop::Alone(error) = stop else { return None };
    let is_of_all = error.is_same_on_all_ranks() || matches!(error, TrainError::EvaluationStopped);
    // Another run may have the folder.
    let has_folder = !matches!(error, TrainError::Folder(_)) && !has_no_room(error);
    (has_folder && !is_of_all).then_some(error)
}

/// Whether a disk is the reason on which others could not write either.
fn has_no_room(error: &TrainError) -> bool {
    let mut next = Some(error as &dyn Error);
    while let Some(source) = next {
        if let Some(error) = source.downcast_ref::<io::Error>() {
            return matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem
            );
        }
        next = source.source();
    }
    false
}

impl TrainingLoop<'_> {
    /// Trains until the run is complete or must stop; evaluates after each epoch and at the end. If another rank is lost, the state after
    /// the newest complete step is saved.
    ///
    /// # Errors
    /// [`Stop`] with the error of a step, an evaluation, an event or the last checkpoint.
    pub fn train(&mut self, trainer: &mut Trainer<'_>) -> Result<Ending, Stop> {
        let watchdog = self.plan.world.watchdog();
        let limit = self.plan.config.watchdog.save_limit().filter(|_| self.can_save_after_loss(trainer));
        if limit.is_some() && trainer.needs_host_copies() {
            self.prepare_copies(trainer)?;
        } else if limit.is_some() {
            trainer.prepare_to_undo()?;
        }
        watchdog.keeps_states_in_host_memory(self.copies.is_some());
        watchdog.saves_for(limit);
        let ended = self.run(trainer);
        if let Err(stop) = &ended {
            self.save_after_loss(trainer, stop);
        }
        if !watchdog.saves_for(None) && ended.is_ok() {
            // Too late to be saved again: all that was due is on disk.
            let _ = watchdog.offer_save(None);
        }
        ended
    }

    /// Writes an event, unless a rank is lost, perhaps this one while it was frozen: the report of that is the last line.
    pub(super) fn write_event(&mut self, event: &Event) -> Result<()> {
        if let Some(step) = event.step_of_training() {
            self.last_events.retain(|event| event.step_of_training() == Some(step));
            self.last_events.push(event.clone());
        }
        self.check_all_are_here()?;
        Ok(self.metrics.write(event)?)
    }

    /// Fails once a rank is lost.
    pub(super) fn check_all_are_here(&self) -> Result<()> {
        let watchdog = self.plan.world.watchdog();
        watchdog.wait_until_current();
        if watchdog.is_ending() { Err(CommError::RankLost.into()) } else { Ok(()) }
    }

    /// Waits for the saves under way; returns the error of the last one, if it failed. Fails if a rank was lost meanwhile.
    pub(super) fn finish_saves(&mut self) -> Result<Option<CheckpointError>> {
        let failed = self.autosave.finish(&mut self.metrics)?;
        self.check_all_are_here()?;
        Ok(failed)
    }

    /// Saves the state after the last complete step, or this rank's share, if it is chosen to, after `stop` ended the loop. Returns when it
    /// is saved, or if no rank was lost; otherwise the process ends meanwhile.
    fn save_after_loss(&mut self, trainer: &mut Trainer<'_>, stop: &Stop) {
        let error = match stop.error() {
            Some(TrainError::Comm(error)) => Some(&**error),
            Some(_) => None,
            None => stop.comm_error(),
        };
        let watchdog = self.plan.world.watchdog();
        let may_follow_loss = error.is_some_and(CommError::may_follow_loss);
        if !may_follow_loss && watchdog.is_ending() {
            // The others need not wait for this rank.
            watchdog.offer_save(None);
            return;
        }
        if !may_follow_loss || !watchdog.is_after_loss() {
            let has_withdrawn =
                error_of_this_rank(stop).is_some_and(|error| watchdog.withdraw(&error.to_string()));
            if !has_withdrawn && watchdog.is_ending() {
                // The loss of another rank was noticed meanwhile.
                watchdog.offer_save(None);
            }
            return;
        }
        if let Some(copies) = self.copies.take() {
            self.save_kept(trainer, &copies);
            // Copies may be on their way behind work that never ends.
            std::mem::forget(copies);
            return;
        }
        let limit = self.plan.config.watchdog.save_limit().unwrap_or_default();
        let offer = trainer.settle(limit).unwrap_or(None).filter(|offer| offer.last > self.first_step);
        let is_averaged = self.plan.config.optimizer.ema_decay > 0.0;
        let best = self.evaluations.best_weights();
        let lacks_best = best.is_apart(&self.state, is_averaged) && best.weights(&self.state).is_none();
        let offer = offer.map(|offer| Offer { lacks_best, ..offer });
        let is_settled = |offer: &Offer| offer.first == offer.last;
        let offer = offer.filter(|offer| !is_settled(offer) || self.catch_up(trainer));
        let Some(save) = watchdog.offer_save(offer) else { return };
        let is_caught_up = offer.is_some_and(|offer| is_settled(&offer))
            || (trainer.reach(save.step).is_ok() && self.catch_up(trainer));
        if !is_caught_up || trainer.n_steps() <= self.first_step {
            return watchdog.end_save(false);
        }
        self.end_save(trainer, &save, None);
    }

    /// Offers the states that are kept in host memory, and saves the one that the ranks choose, or this rank's share of it.
    fn save_kept(&mut self, trainer: &mut Trainer<'_>, copies: &HostCopies) {
        let watchdog = self.plan.world.watchdog();
        // An abort could complete a refresh on another rank with undefined values: none aborts before all have left.
        self.plan.world.tensor_group().leave_after_loss();
        let Some(save) = watchdog.offer_save(copies.offer()) else { return };
        let Some(kept) = copies.after(save.step) else { return watchdog.end_save(false) };
        self.state = kept.run.state.clone();
        (self.gathered, self.evaluated_at) = (kept.run.gathered, kept.run.evaluated_at);
        self.last_events.clone_from(&kept.run.last_events);
        self.end_save(trainer, &save, Some(kept));
    }

    /// Saves the state, or this rank's share of it, and tells the others.
    fn end_save(&mut self, trainer: &mut Trainer<'_>, save: &SaveAfterLoss, kept: Option<KeptState<'_>>) {
        let evaluation_is_due = match kept {
            Some(kept) => kept.run.evaluation_is_due,
            None => self.evaluations.is_due(self.state.step),
        };
        let saved =
            self.complete_state(evaluation_is_due).and_then(|()| self.save_share(trainer, save, kept));
        if let Err(error) = &saved {
            error!("the state after step {} could not be saved: {error}", save.step);
        }
        self.plan.world.watchdog().end_save(matches!(saved, Ok(true)));
    }

    /// Whether what this rank holds can be saved after the loss of another one: all of the state, or with the others, and it can leave
    /// collectives that hang.
    fn can_save_after_loss(&self, trainer: &Trainer<'_>) -> bool {
        let group = self.plan.world.tensor_group();
        let can_leave = group.transport() != "mpi";
        self.plan.world.world_size() > 1 && can_leave && trainer.survives_loss()
    }

    /// Takes in the outcomes of the steps that were complete, and returns to the numbers before the others; false if one of them ends
    /// the run in another way.
    fn catch_up(&mut self, trainer: &mut Trainer<'_>) -> bool {
        if let Some((info, loss_limit)) = trainer.completed_alone() {
            self.in_flight.push_back(InFlight { cursor: self.state.cursor, loss_limit });
            self.state.cursor += info.n_rows as u64;
            self.state.step = trainer.n_steps();
        }
        // Each event ends in an error, since a rank is lost.
        while let Err(error) = self.outcomes(trainer, true) {
            if !matches!(&error, TrainError::Comm(error) if error.may_follow_loss()) {
                return false;
            }
        }
        if let Some(oldest) = self.in_flight.front() {
            self.state.cursor = oldest.cursor;
        }
        self.in_flight.clear();
        self.state.step = trainer.n_steps();
        self.rollback.is_none()
    }

    /// Completes the run's counters for a checkpoint after the last complete step.
    ///
    /// - `evaluation_is_due`: whether an evaluation within the epoch is due after that step
    fn complete_state(&mut self, evaluation_is_due: bool) -> Result<()> {
        let (step, n_rows, cursor) = (self.state.step, self.state.n_rows.max(1), self.state.cursor);
        let ends_epoch = cursor > 0 && self.state.rows_of_epoch() == 0;
        let is_due = ends_epoch || evaluation_is_due;
        self.state.evaluation_is_due = is_due && self.evaluated_at != Some((step, cursor));
        // The rank that writes them may be the one that was lost. What is evaluated again is written then.
        let is_of_step = |event: &&Event| event.step_of_training() == Some(step);
        let events = self.last_events.iter().filter(is_of_step);
        let events = events.filter(|event| !self.state.evaluation_is_due || matches!(event, Event::Step(_)));
        self.state.last_events = events.map(|event| json_line(event).trim_end().to_owned()).collect();
        let plan = batch_plan(self.plan.config, self.plan.data, self.plan.partition);
        let rows: RowsHash = plan.rows_hash(self.plan.data.train.len(), self.gathered..cursor);
        self.state.proof.current.merge(&rows);
        self.gathered = cursor;
        if ends_epoch && self.state.proof.n_finished() < cursor / n_rows {
            let rows = self.state.proof.current;
            self.state.proof.finish_epoch(rows);
        }
        Ok(())
    }

    fn save_share(
        &mut self,
        trainer: &mut Trainer<'_>,
        save: &SaveAfterLoss,
        kept: Option<KeptState<'_>>,
    ) -> Result<bool> {
        let is_averaged = self.plan.config.optimizer.ema_decay > 0.0;
        let best = self.evaluations.best_weights();
        let after_loss = AfterLoss {
            config: self.plan.config,
            data: self.plan.data,
            folder: &self.plan.folder,
            keeps_best_apart: best.is_apart(&self.state, is_averaged),
            kept,
            save,
            limit: self.plan.config.watchdog.save_limit().unwrap_or_default(),
        };
        let best = match kept {
            Some(kept) => kept.run.best.clone(),
            None => best.for_checkpoint(&self.state, is_averaged),
        };
        self.autosave.save_after_loss(trainer, &mut self.state, best, after_loss)
    }
}
