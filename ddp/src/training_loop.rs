//! The loop of a training run: epochs, steps, evaluation, and the events that tell of them.

use std::path::Path;
use std::time::Instant;

use ddp_comm::World;
use ddp_kernels::DType;

use crate::config::{Config, Length, ShuffleMode};
use crate::data::Loaded;
use crate::error::Result;
use crate::evaluate::evaluate;
use crate::loader::{LoadedStep, Loader, LoaderOptions, LoaderTimes};
use crate::metrics::{EndEvent, EpochEvent, EvalMetrics, Event, MetricsSink, StepEvent};
use crate::process;
use crate::progress::Progress;
use crate::shard::EvalCut;
use crate::train_loss::TrainLoss;
use crate::trainer::{StepAbout, StepAsk, Trainer};

/// Share of the training time from which waiting for data is worth a word.
const DATA_BOUND_SHARE: f64 = 0.1;

/// A run under way: what it trains on and what it tells.
pub struct TrainingLoop<'a> {
    world: &'a World,
    config: &'a Config,
    data: &'a Loaded,
    loader: Loader,
    /// How rows for evaluation are loaded.
    loading: LoaderOptions,
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
    /// At the last step event.
    last_event: (f64, u64, LoaderTimes),
}

/// What the last epoch came to, whole or not.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    train_loss: f64,
    eval: EvalMetrics,
}

impl<'a> TrainingLoop<'a> {
    /// A loop before its first step, over the batches of `loader`. Ranks other than 0 bring a sink and a progress that say
    /// nothing.
    pub fn new(
        world: &'a World,
        config: &'a Config,
        data: &'a Loaded,
        (loader, loading): (Loader, LoaderOptions),
        metrics: MetricsSink,
        progress: Progress,
    ) -> Self {
        TrainingLoop { world, config, data, loader, loading, metrics, progress, clock: Clock::default() }
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
        let mut outcome = Outcome { train_loss: f64::NAN, eval: EvalMetrics::default() };
        for epoch in 1..=n_epochs {
            let (train_loss, is_whole) = self.epoch(trainer, epoch, n_steps)?;
            outcome = Outcome { train_loss: train_loss.mean(), eval: self.evaluate(trainer)? };
            if is_whole {
                let event = EpochEvent {
                    epoch,
                    step: trainer.n_steps(),
                    train_loss: outcome.train_loss,
                    eval: outcome.eval,
                };
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
            data_wait_s: self.loader.times().wait.as_secs_f64(),
        };
        if let Some(advice) = self.data_bound() {
            self.progress.note(&advice);
        }
        self.progress.end(&event, folder);
        self.metrics.write(&Event::End(event))
    }

    /// One pass over the rows, or what is left of `n_steps`; the loss, and whether the pass was whole.
    fn epoch(&mut self, trainer: &mut Trainer<'_>, epoch: u64, n_steps: u64) -> Result<(TrainLoss, bool)> {
        let mut loss = TrainLoss::default();
        let mut is_whole = false;
        while !is_whole && trainer.n_steps() < n_steps {
            is_whole = self.step(trainer)?;
            self.outcomes(trainer, false, epoch, &mut loss)?;
        }
        // What a GPU still computes belongs to this epoch.
        self.outcomes(trainer, true, epoch, &mut loss)?;
        Ok((loss, is_whole))
    }

    /// Asks for one step; whether it is the epoch's last.
    fn step(&mut self, trainer: &mut Trainer<'_>) -> Result<bool> {
        let is_logged = self.is_logged(trainer.n_steps() + 1);
        let started = Instant::now();
        let mut rows: LoadedStep<'_> = self.loader.next_step()?.expect("the plan of a run has no end");
        let ends_epoch = rows.ends_epoch();
        trainer.step(&mut rows, StepAsk { want_grad_norm: is_logged, vote: 0 })?;
        self.clock.train_s += started.elapsed().as_secs_f64();
        Ok(ends_epoch)
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
                let event = self.step_event(step, epoch, lr);
                let grad_norm = outcome.grad_norm.unwrap_or(f64::NAN);
                let event = StepEvent { loss, grad_norm, ..event };
                self.progress.step(&event);
                self.metrics.write(&Event::Step(event))?;
            }
        }
    }

    /// The event of step `step` but for what it came to, with what was measured since the last one.
    fn step_event(&mut self, step: u64, epoch: u64, lr: f64) -> StepEvent {
        let times = self.loader.times();
        let Clock { train_s, samples, last_event, .. } = &mut self.clock;
        let (last_s, last_samples, last_times) = std::mem::replace(last_event, (*train_s, *samples, times));
        let n_batches = (times.n_batches - last_times.n_batches).max(1) as f64;
        StepEvent {
            step,
            epoch,
            loss: f64::NAN,
            lr,
            grad_norm: f64::NAN,
            samples_per_s: (*samples - last_samples) as f64 / (*train_s - last_s),
            data_wait_ms: (times.wait - last_times.wait).as_secs_f64() * 1e3 / n_batches,
            h2d_ms: (times.h2d_ms - last_times.h2d_ms) / n_batches,
        }
    }

    /// What to try, if the run waited for data rather than computed.
    fn data_bound(&self) -> Option<String> {
        let share = self.loader.times().wait.as_secs_f64() / self.clock.train_s;
        if share.is_nan() || share < DATA_BOUND_SHARE {
            return None;
        }
        let mut advice = Vec::from_iter(self.data.train.advice());
        if self.loader.n_threads() > 0 {
            advice.push(format!("`data.loader_threads` above {}", self.loader.n_threads()));
        }
        let (train, data) = (&self.data.train, &self.config.data);
        if self.loader.is_host_to_gpu() && train.layout().dtype == DType::F32 {
            advice.push("features stored as f16, bf16 or u8".to_owned());
        }
        if train.resident_bytes() == 0 && data.shuffle && data.shuffle_mode == ShuffleMode::Full {
            advice.push("`data.shuffle_mode = \"blocks\"` if the disk is slow".to_owned());
        }
        if advice.is_empty() {
            advice.push("a larger `train.batch_size`".to_owned());
        }
        Some(format!("data-bound: {:.0}% of the time waiting; try {}", share * 100.0, advice.join(", or ")))
    }

    fn evaluate(&self, trainer: &mut Trainer<'_>) -> Result<EvalMetrics> {
        let Some(eval) = &self.data.eval else { return Ok(EvalMetrics::default()) };
        let (model, loss) = trainer.model_and_loss();
        let cut = EvalCut::of_ranks(self.world.world_size());
        evaluate(self.world, model, loss, self.config.data.task, eval, cut, &self.loading)
    }
}
