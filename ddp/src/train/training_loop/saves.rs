//! Saves of a loop between two steps: checkpoints, and states in host memory for the loss of a rank.

use std::time::Instant;

use ddp_comm::Phase;
use tracing::info_span;

use super::TrainingLoop;
use crate::data::order::epoch_proof::RowsHash;
use crate::run_folder::RunDir;
use crate::train::error::{Result, Stop, TrainError};
use crate::train::host_copies::{HostCopies, KeptRun};
use crate::train::run_clock::Pause;
use crate::train::trainer::Trainer;

impl TrainingLoop<'_> {
    /// Merges the rows that the ranks have used since the last call into the state.
    pub(super) fn gather_rows(&mut self) -> Result<()> {
        let own_rows = self.loader.take_rows_hash()?;
        for bytes in self.plan.world.group().all_gather_bytes(&own_rows.to_bytes())? {
            let rows = RowsHash::from_bytes(&bytes).expect("all ranks run one program");
            self.state.proof.current.merge(&rows);
        }
        self.gathered = self.state.cursor;
        Ok(())
    }

    /// Starts a checkpoint of the run's current state, the last one where `is_last`.
    pub(super) fn save(&mut self, trainer: &mut Trainer<'_>, is_last: bool) -> Result<()> {
        self.plan.run_dir.map_or(Ok(()), RunDir::check_not_taken)?;
        let _checkpoint = info_span!("checkpoint", step = trainer.n_steps()).entered();
        let (_phase, started) = (self.plan.world.watchdog().during(Phase::Checkpoint), Instant::now());
        self.gather_rows()?;
        let is_averaged = self.plan.config.optimizer.ema_decay > 0.0;
        let best = self.evaluations.best_weights().for_checkpoint(&self.state, is_averaged);
        trainer.gather_weights()?;
        self.autosave.save(trainer, &mut self.state, best, started, is_last)
    }

    /// Prepares states in host memory, where the loss of a rank would take shards with it that no GPU could restore. Collective.
    ///
    /// # Errors
    /// [`Stop`] if a rank lacks memory.
    pub(super) fn prepare_copies(&mut self, trainer: &Trainer<'_>) -> Result<(), Stop> {
        let world = self.plan.world;
        let distance = world.distance_to_copies().map_err(TrainError::from)?;
        let every_steps = self.plan.config.comm.zero_copies_every_steps;
        let copies = HostCopies::new(world, trainer, distance, every_steps);
        let mut copies = world.collective_result(copies)?;
        copies.connect(world, trainer)?;
        self.copies = Some(copies);
        Ok(())
    }

    /// Whether the states in host memory are refreshed after `step`; the same on all ranks.
    pub(super) fn copies_are_due(&self, step: u64) -> bool {
        step > self.first_step && self.copies.as_ref().is_some_and(|copies| copies.is_due(step))
    }

    /// Keeps the state after the last step, whose outcome was read. Collective.
    pub(super) fn refresh_copies(&mut self, trainer: &Trainer<'_>) -> Result<()> {
        let (_phase, started) = (self.plan.world.watchdog().during(Phase::Checkpoint), Instant::now());
        let is_averaged = self.plan.config.optimizer.ema_decay > 0.0;
        let best = self.evaluations.best_weights();
        trainer.take(&mut self.state)?;
        let run = KeptRun {
            gathered: self.gathered,
            evaluated_at: self.evaluated_at,
            evaluation_is_due: self.evaluations.is_due(self.state.step),
            last_events: self.last_events.clone(),
            best: best.for_checkpoint(&self.state, is_averaged),
            keeps_best_apart: best.is_apart(&self.state, is_averaged),
            registered: trainer.registered_on_host()?,
            state: self.state.clone(),
        };
        let Some(copies) = &mut self.copies else { return Ok(()) };
        copies.refresh(self.plan.world, trainer, run)?;
        self.clock.add_pause(Pause::Checkpoint, started);
        Ok(())
    }
}
