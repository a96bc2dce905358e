//! The loop of a training run: epochs, steps, evaluation, and the events that tell of them.

use std::path::Path;
use std::time::Instant;

use ddp_comm::World;
use ddp_kernels::{Device, KernelError};

use crate::batches::{BatchBuffers, Table};
use crate::config::{Config, Length};
use crate::data::Loaded;
use crate::epoch::{StepBatches, TrainLoss};
use crate::error::Result;
use crate::evaluate::evaluate;
use crate::metrics::{EndEvent, EpochEvent, EvalMetrics, Event, MetricsSink, StepEvent};
use crate::process;
use crate::progress::Progress;
use crate::sampler::KeyedPermutation;
use crate::shard::GlobalBatches;
use crate::trainer::{StepAbout, Trainer};

/// The rows.
#[derive(Debug)]
pub struct Tables {
    /// Rows to train on.
    pub train: Table,
    /// Rows to evaluate on.
    pub eval: Option<Table>,
}

impl Tables {
    /// The rows in host memory, from where batches go to a GPU.
    ///
    /// # Errors
    /// As making tensors there.
    pub fn new(data: &Loaded) -> Result<Self, KernelError> {
        let eval = data.eval.as_ref().map(|eval| Table::new(eval, None, Device::Cpu)).transpose()?;
        Ok(Tables { train: Table::new(&data.train, None, Device::Cpu)?, eval })
    }
}

/// A run under way: what it trains on and what it tells.
pub struct TrainingLoop<'a> {
    world: &'a World,
    config: &'a Config,
    /// Rows of a full global batch.
    global_rows: usize,
    tables: &'a Tables,
    metrics: MetricsSink,
    progress: Progress,
    clock: Clock,
}

/// Times of the run.
#[derive(Default)]
struct Clock {
    /// From the start to the end of the first step.
    startup_s: f64,
    /// In steps.
    train_s: f64,
    /// Rows of all ranks in those steps.
    samples: u64,
    /// `(train_s, samples)` at the last step event.
    last_event: (f64, u64),
}

/// What the last epoch came to, whole or not.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    train_loss: f64,
    eval: EvalMetrics,
}

impl<'a> TrainingLoop<'a> {
    /// A loop before its first step. Ranks other than 0 bring a sink and a progress that say nothing.
    pub fn new(
        world: &'a World,
        config: &'a Config,
        tables: &'a Tables,
        global_rows: usize,
        metrics: MetricsSink,
        progress: Progress,
    ) -> Self {
        TrainingLoop { world, config, global_rows, tables, metrics, progress, clock: Clock::default() }
    }

    /// Trains for as long as the config says, evaluating after each epoch and at the end.
    ///
    /// # Errors
    /// Those of the steps, the evaluation and the events.
    pub fn train(&mut self, trainer: &mut Trainer<'_>) -> Result<Outcome> {
        let (n_epochs, n_steps) = match self.config.train.length {
            Length::Epochs(n) => (n as u64, u64::MAX),
            Length::Steps(n) => (u64::MAX, n as u64),
        };
        let mut buffers = self.tables.train.buffers(trainer.model().max_rows())?;
        let mut outcome = Outcome { train_loss: f64::NAN, eval: EvalMetrics::default() };
        for epoch in 1..=n_epochs {
            let (train_loss, is_whole) = self.epoch(trainer, epoch, n_steps, &mut buffers)?;
            outcome = Outcome { train_loss: train_loss.mean(), eval: self.evaluate(trainer)? };
            if is_whole {
                let event = EpochEvent { epoch, train_loss: outcome.train_loss, eval: outcome.eval };
                self.progress.epoch_end(&event);
                self.metrics.write(&Event::Epoch(event))?;
            }
            if trainer.n_steps() == n_steps {
                break;
            }
        }
        Ok(outcome)
    }

    /// Tells of the end of the run, whose files lie in `folder`.
    ///
    /// # Errors
    /// That of writing the event.
    pub fn finish(mut self, trainer: &Trainer<'_>, outcome: Outcome, folder: Option<&Path>) -> Result<()> {
        let Clock { startup_s, train_s, samples, .. } = self.clock;
        let event = EndEvent {
            steps: trainer.n_steps(),
            samples,
            world_size: self.world.world_size(),
            train_loss: outcome.train_loss,
            eval: outcome.eval,
            elapsed_s: process::seconds_since_start(self.world.launcher().is_some()),
            train_s,
            samples_per_s: samples as f64 / train_s,
            startup_s,
        };
        self.progress.end(&event, folder);
        self.metrics.write(&Event::End(event))
    }

    /// One pass over the rows, or what is left of `n_steps`; the loss, and whether the pass was whole.
    fn epoch(
        &mut self,
        trainer: &mut Trainer<'_>,
        epoch: u64,
        n_steps: u64,
        buffers: &mut BatchBuffers,
    ) -> Result<(TrainLoss, bool)> {
        let (table, train) = (&self.tables.train, &self.config.train);
        let order = match self.config.data.shuffle {
            true => KeyedPermutation::new(table.n_rows(), train.seed, epoch - 1),
            false => KeyedPermutation::identity(table.n_rows()),
        };
        let mut loss = TrainLoss::default();
        for global in GlobalBatches::new(table.n_rows(), self.global_rows) {
            if trainer.n_steps() == n_steps {
                self.outcomes(trainer, true, epoch, &mut loss)?;
                return Ok((loss, false));
            }
            let n_micro = train.grad_accum_steps;
            let mut batches = StepBatches::new(self.world, table, &order, buffers, &global, n_micro);
            self.step(trainer, &mut batches, epoch, &mut loss)?;
        }
        // What a GPU still computes belongs to this epoch.
        self.outcomes(trainer, true, epoch, &mut loss)?;
        Ok((loss, true))
    }

    /// Asks for one step, and tells of those that are over.
    fn step(
        &mut self,
        trainer: &mut Trainer<'_>,
        batches: &mut StepBatches<'_>,
        epoch: u64,
        loss: &mut TrainLoss,
    ) -> Result<()> {
        let is_logged = self.is_logged(trainer.n_steps() + 1);
        let started = Instant::now();
        trainer.step(batches, is_logged)?;
        self.clock.train_s += started.elapsed().as_secs_f64();
        self.outcomes(trainer, false, epoch, loss)
    }

    fn is_logged(&self, step: u64) -> bool {
        step.is_multiple_of(self.config.log.every_steps as u64)
    }

    /// Tells of the steps that are over, or of all that were asked for.
    fn outcomes(
        &mut self,
        trainer: &mut Trainer<'_>,
        all: bool,
        epoch: u64,
        epoch_loss: &mut TrainLoss,
    ) -> Result<()> {
        loop {
            let started = Instant::now();
            let outcome = trainer.outcome(all)?;
            self.clock.train_s += started.elapsed().as_secs_f64();
            let Some((StepAbout { step, n_rows, lr }, outcome)) = outcome else { return Ok(()) };
            let loss = outcome.sums.mean();
            epoch_loss.add(outcome.sums, n_rows);
            self.clock.samples += n_rows as u64;
            if step == 1 {
                self.clock.startup_s = process::seconds_since_start(self.world.launcher().is_some());
            }
            self.progress.advance(n_rows as u64);
            if self.is_logged(step) {
                let Clock { train_s, samples, last_event, .. } = &mut self.clock;
                let samples_per_s = (*samples - last_event.1) as f64 / (*train_s - last_event.0);
                *last_event = (*train_s, *samples);
                let grad_norm = outcome.grad_norm.unwrap_or(f64::NAN);
                let event = StepEvent { step, epoch, loss, lr, grad_norm, samples_per_s };
                self.progress.step(&event);
                self.metrics.write(&Event::Step(event))?;
            }
        }
    }

    fn evaluate(&self, trainer: &mut Trainer<'_>) -> Result<EvalMetrics> {
        let Some(eval) = &self.tables.eval else { return Ok(EvalMetrics::default()) };
        let (model, loss) = trainer.model_and_loss();
        evaluate(self.world, model, loss, self.config.data.task, eval)
    }
}
