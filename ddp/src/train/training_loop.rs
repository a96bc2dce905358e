//! The training loop: steps, evaluation after each epoch, checkpoints, and the events that report them.
//!
//! Between two steps all ranks make the same decision whether to evaluate, save or stop: by the step number, or by the ranks'
//! votes in an earlier step.

use std::path::Path;
use std::time::Instant;

use ddp_comm::{Phase, World};
use tracing::{Span, debug_span, info, info_span, trace_span, warn};

use crate::checkpoint::RunState;
use crate::config::{Config, Length, MetricSet};
use crate::data::Loaded;
use crate::data::loader::{LoadedStep, Loader, LoaderOptions};
use crate::data::order::epoch_proof::RowsHash;
use crate::data::order::partition::EvalPartition;
use crate::model::{LossHead, Network};
use crate::optim::schedule::Schedule;
use crate::report::EvalMetrics;
use crate::report::log::warn_of_all_ranks;
use crate::report::metrics::{
    BestEvent, EndEvent, EpochEvent, EvalEvent, Event, MetricsSink, StepEvent, StopEvent, TrainMetrics,
};
use crate::report::process;
use crate::report::progress::Progress;
use crate::train::autosave::Autosave;
use crate::train::best_weights::{self, BestWeights};
use crate::train::early_stopping::EarlyStopping;
use crate::train::error::Stop;
use crate::train::error::{Result, TrainError};
use crate::train::eval_votes::Until;
use crate::train::evaluate::evaluate_until;
use crate::train::metrics::request::MetricRequest;
use crate::train::run_clock::{RecentRates, RunClock};
use crate::train::stop_signals::StopSignals;
use crate::train::train_loss::TrainLoss;
use crate::train::trainer::{StepInfo, StepRequest, StepRows as _, Trainer};
use crate::train::verdict;
use crate::train::votes::Votes;

/// A run in progress: its plan, its state and its reports.
pub struct TrainingLoop<'a> {
    plan: LoopPlan<'a>,
    loader: Loader,
    autosave: Autosave<'a>,
    metrics: MetricsSink,
    progress: Progress,
    stopping: EarlyStopping,
    /// State of the run after the last enqueued step; the losses are those of the steps whose outcome was read.
    state: RunState,
    train_loss: TrainLoss,
    /// Rows of this rank since the ranks last merged them into the state.
    own_rows: RowsHash,
    /// Metrics of each evaluation, and those of the last one.
    metric_sets: [MetricSet; 2],
    /// Step and metrics of the last evaluation.
    evaluated: Option<(u64, MetricSet)>,
    best: BestWeights,
    /// Whether the weights after the last step were judged by an evaluation.
    is_judged: bool,
    /// Whether a signal stopped the last evaluation.
    is_evaluation_stopped: bool,
    /// Whether a metric that is no number was reported.
    warned_not_finite: bool,
    /// Votes of the ranks since the last decision.
    votes: Votes,
    clock: RunClock,
    /// Span of the epoch under way, and its number from 1.
    span: (Span, u64),
}

/// Inputs of a training loop.
pub struct LoopPlan<'a> {
    /// Ranks and collectives.
    pub world: &'a World,
    /// Config of the run.
    pub config: &'a Config,
    /// Training and evaluation rows.
    pub data: &'a Loaded,
    /// Learning-rate schedule.
    pub schedule: Schedule,
    /// Partition of the evaluation rows.
    pub eval_partition: EvalPartition,
    /// Options for loading evaluation rows.
    pub loading: LoaderOptions,
    /// Names of the model's outputs for reports; `None` for their numbers.
    pub output_names: Option<Vec<String>>,
    /// Weights of a resumed run's best evaluation, on rank 0.
    pub best_weights: Option<Vec<f32>>,
    /// Signals that this rank receives.
    pub signals: &'a StopSignals,
    /// The command that resumes the run after it was stopped.
    pub resume_command: String,
}

/// Metrics of an evaluation, and the evaluated weights where they are kept.
type Measured = (EvalMetrics, Option<Vec<f32>>);

/// Work between two steps, the same on all ranks.
#[derive(Debug, Clone, Copy)]
struct Due {
    /// Whether an epoch has ended, which is evaluated.
    ends_epoch: bool,
    /// Whether an evaluation within an epoch is due.
    eval: bool,
    /// Whether a checkpoint is due in any case.
    save: bool,
    /// Whether a run that is complete saves a checkpoint.
    end: bool,
}

/// End of a training loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The run is complete.
    Complete,
    /// The run stopped early and saved a checkpoint; holds the reason.
    Stopped(String),
}

impl<'a> TrainingLoop<'a> {
    /// Creates a loop over the batches of `loader` that starts at `state`. Ranks other than 0 pass a silent sink and progress.
    pub fn new(
        mut plan: LoopPlan<'a>,
        loader: Loader,
        autosave: Autosave<'a>,
        metrics: MetricsSink,
        progress: Progress,
        state: RunState,
    ) -> Self {
        let Config { train, checkpoint, data, .. } = plan.config;
        let judge = checkpoint.keep_best.into_iter().chain([train.early_stop_metric]);
        let judge = judge.fold(MetricSet::default(), MetricSet::with);
        TrainingLoop {
            metric_sets: train.metrics(data.task).map(|set| set.union(judge)),
            best: BestWeights::new(checkpoint.keep_best, plan.best_weights.take()),
            is_judged: false,
            is_evaluation_stopped: false,
            warned_not_finite: false,
            stopping: stopping(plan.config).resumed(state.early_stopping),
            train_loss: TrainLoss::from_state(&state.epoch_loss),
            // An epoch that has ended was evaluated before it was saved, unless a signal stopped that; its tables were not saved.
            evaluated: (state.cursor > 0 && state.rows_of_epoch() == 0 && !state.evaluation_is_due)
                .then_some((state.step, MetricSet::default())),
            own_rows: RowsHash::default(),
            votes: Votes::default(),
            clock: RunClock::default(),
            span: (Span::none(), 0),
            plan,
            loader,
            autosave,
            metrics,
            progress,
            state,
        }
    }

    /// Trains until the run is complete or must stop; evaluates after each epoch and at the end.
    ///
    /// # Errors
    /// [`Stop`] with the error of a step, an evaluation, an event or the last checkpoint.
    pub fn train(&mut self, trainer: &mut Trainer<'_>) -> Result<Ending, Stop> {
        let mut stop = self.stop_reason(trainer);
        let is_evaluation_due = self.state.evaluation_is_due;
        if is_evaluation_due || self.is_complete(trainer) {
            let ends_epoch = is_evaluation_due && self.state.rows_of_epoch() == 0;
            let eval = is_evaluation_due && !ends_epoch && self.is_eval_due(trainer.n_steps());
            let due = Due { ends_epoch, eval, save: false, end: is_evaluation_due };
            stop = self.between_steps(trainer, due)?;
        }
        while stop.is_none() && !self.is_complete(trainer) {
            let span = self.epoch_span();
            let _epoch = span.enter();
            let ends_epoch = self.step(trainer)?;
            self.outcomes(trainer, false)?;
            let save = self.autosave.is_due_after_step(trainer.n_steps());
            stop = self.stop_reason(trainer);
            let eval = !ends_epoch && self.is_eval_due(trainer.n_steps());
            let is_boundary = ends_epoch || save || eval || stop.is_some() || self.votes != Votes::default();
            if !is_boundary && !self.is_complete(trainer) {
                continue;
            }
            // Steps in flight belong to this decision.
            self.outcomes(trainer, true)?;
            stop = self.between_steps(trainer, Due { ends_epoch, eval, save, end: true })?;
        }
        if self.is_complete(trainer) && !self.is_evaluation_stopped {
            self.complete(trainer)?;
            return Ok(Ending::Complete);
        }
        let reason = stop.expect("a loop ends for one of two reasons");
        self.stopped(trainer, &reason)?;
        Ok(Ending::Stopped(reason))
    }

    /// Ends a failed run without waiting for its device; a checkpoint that is being written is completed.
    pub fn abandon(self) {
        // Rows may be on their way to a GPU behind work that never ends, and dropping them would wait for it.
        std::mem::forget(self.loader);
    }

    /// Evaluates and saves what is due between two steps; returns the reason to stop, if there is one.
    fn between_steps(&mut self, trainer: &mut Trainer<'_>, due: Due) -> Result<Option<String>> {
        let mut saves = due.save || self.votes.checkpoint || self.stop_reason(trainer).is_some();
        self.is_judged = false;
        match self.evaluate_due(trainer, due) {
            Ok(is_due) => {
                saves |= is_due;
                self.state.evaluation_is_due = false;
            }
            Err(TrainError::EvaluationStopped) => {
                saves = true;
                self.is_evaluation_stopped = true;
                self.state.evaluation_is_due = !self.is_judged;
                self.votes.stop = self.votes.stop.max(1);
            }
            Err(error) => return Err(error),
        }
        let stop = self.stop_reason(trainer);
        if saves {
            self.save(trainer)?;
        }
        self.votes = Votes::default();
        self.autosave.report(&mut self.metrics)?;
        Ok(stop)
    }

    /// Runs the evaluations that are due; returns whether a checkpoint is due.
    fn evaluate_due(&mut self, trainer: &mut Trainer<'_>, due: Due) -> Result<bool> {
        let mut saves = false;
        if due.ends_epoch {
            saves |= self.end_epoch(trainer)?;
        } else if due.eval {
            saves |= self.evaluate_within_epoch(trainer)?;
        }
        if self.is_complete(trainer) {
            // Before saving, so that the last evaluation can be the best.
            saves |= self.evaluate_once(trainer)? || (due.end && self.autosave.is_on());
        }
        Ok(saves)
    }

    /// Reports the end of a complete run, whose files are in `folder`.
    ///
    /// # Errors
    /// [`TrainError::Report`] if the event can't be written.
    pub fn finish(mut self, folder: Option<&Path>) -> Result<()> {
        let RunClock { startup_s, train_s, samples, .. } = self.clock;
        let scale = self.plan.data.preprocessor.target_scale.as_ref();
        let event = EndEvent {
            steps: self.state.step,
            samples,
            world_size: self.plan.world.world_size(),
            train_loss: self.train_loss.mean(),
            eval: self.state.eval.clone(),
            best: self.best.best(&self.state).map(|best| BestEvent {
                metric: best.metric.clone(),
                value: best.value,
                step: best.step,
                epoch: best.epoch,
            }),
            target_shift: scale.map(|scale| scale.shift.clone()),
            target_scale: scale.map(|scale| scale.scale.clone()),
            elapsed_s: self.seconds_since_start(),
            train_s,
            samples_per_s: samples as f64 / train_s,
            startup_s: startup_s.unwrap_or_else(|| self.seconds_since_start()),
            data_wait_s: self.loader.times().wait.as_secs_f64(),
        };
        let advice = self.clock.data_bound(&self.loader, &*self.plan.data.train, &self.plan.config.data);
        if let Some(advice) = advice {
            info!("{advice}");
        }
        if let Some(n_skipped) = self.state.loss_scaler.map(|scaler| scaler.n_skipped).filter(|n| *n > 0) {
            info!("skipped {n_skipped} steps: gradients overflowed in f16");
        }
        self.progress.end(&event, folder);
        let LoopPlan { world, config, data, .. } = &self.plan;
        if let (0, Some(rows)) = (world.rank().0, &data.eval)
            && let Some(warning) = verdict::warning(config.data.task, &event.eval, &**rows)?
        {
            warn!("{warning}");
        }
        Ok(self.metrics.write(&Event::End(event))?)
    }

    /// Weights of the best evaluation on rank 0, if the run is judged by a metric.
    pub fn best_weights(&self) -> Option<&[f32]> {
        self.best.weights(&self.state).map(|weights| weights.as_slice())
    }

    /// Completed steps.
    pub fn n_steps(&self) -> u64 {
        self.state.step
    }

    /// Waits for the last checkpoints of a run whose final model was evaluated.
    fn complete(&mut self, trainer: &mut Trainer<'_>) -> Result<(), Stop> {
        self.note_state(trainer);
        let _phase = self.plan.world.watchdog().during(Phase::Checkpoint);
        // The caller still saves the run's model.
        if self.autosave.finish(&mut self.metrics)?.is_some() {
            warn_of_all_ranks(self.plan.world.rank().0, "the final checkpoint of the run was not saved");
        }
        Ok(())
    }

    /// Saves a stopping run; reports it only after the checkpoint is on disk.
    fn stopped(&mut self, trainer: &mut Trainer<'_>, reason: &str) -> Result<(), Stop> {
        // A no-op if the loop saved this step; a run without any step is saved here.
        self.save(trainer)?;
        let _phase = self.plan.world.watchdog().during(Phase::Checkpoint);
        let failed = self.autosave.finish(&mut self.metrics)?.map_or(Ok(()), Err);
        self.plan.world.collective_result(failed.map_err(TrainError::from))?;
        info!(
            "stopped by {reason} after step {}; checkpoint saved\nhint: {} continues the run",
            trainer.n_steps(),
            self.plan.resume_command,
        );
        let event = StopEvent { step: trainer.n_steps(), reason: reason.to_owned() };
        Ok(self.metrics.write(&Event::Stop(event)).map_err(TrainError::from)?)
    }

    /// Whether the run is complete.
    fn is_complete(&self, trainer: &Trainer<'_>) -> bool {
        let is_long_enough = match self.plan.config.train.length {
            Length::Epochs(n) => self.state.cursor >= n as u64 * self.state.n_rows,
            Length::Steps(n) => trainer.n_steps() >= n as u64,
        };
        is_long_enough || self.stopping.is_over()
    }

    /// Reason to stop, if any: the same on all ranks.
    fn stop_reason(&self, trainer: &Trainer<'_>) -> Option<String> {
        let limit = self.plan.config.train.stop_after_steps;
        if self.votes.stop > 0 {
            return Some(self.plan.signals.reason());
        }
        limit.filter(|&limit| trainer.n_steps() >= limit).map(|_| "train.stop_after_steps".to_owned())
    }

    /// Runs or enqueues one step; returns whether it is the epoch's last.
    fn step(&mut self, trainer: &mut Trainer<'_>) -> Result<bool> {
        let step = trainer.n_steps() + 1;
        let want_grad_norm = self.is_logged(step);
        let span = if want_grad_norm { debug_span!("step", step) } else { trace_span!("step", step) };
        let _step = span.enter();
        self.plan.world.watchdog().step(step);
        let vote = Votes::of_rank(self.plan.signals.received().is_some(), self.autosave.is_due_by_clock());
        trainer.set_lr(self.plan.schedule.lr(trainer.n_steps()));
        let started = Instant::now();
        let mut rows: LoadedStep<'_> = self.loader.next_step()?.expect("the plan of a run has no end");
        let (n_rows, ends_epoch) = (rows.global_rows() as u64, rows.ends_epoch());
        if self.state.rows_of_epoch() == 0 {
            self.train_loss = TrainLoss::default();
        }
        self.own_rows.merge(&rows.rows_hash());
        trainer.step(&mut rows, StepRequest { want_grad_norm, vote })?;
        self.state.cursor += n_rows;
        self.clock.train_s += started.elapsed().as_secs_f64();
        Ok(ends_epoch)
    }

    fn is_logged(&self, step: u64) -> bool {
        step.is_multiple_of(self.plan.config.log.every_steps as u64)
    }

    /// Reports the steps that have finished, or all enqueued ones.
    fn outcomes(&mut self, trainer: &mut Trainer<'_>, all: bool) -> Result<()> {
        loop {
            let started = Instant::now();
            let outcome = trainer.outcome(all)?;
            self.clock.train_s += started.elapsed().as_secs_f64();
            let Some((StepInfo { step, n_rows, lr }, outcome)) = outcome else { return Ok(()) };
            self.votes = self.votes.and(Votes::from_sum(outcome.votes));
            self.clock.samples += n_rows as u64;
            self.progress.advance(n_rows as u64);
            self.train_loss.add(outcome.sums, n_rows);
            if self.clock.startup_s.is_none() {
                self.clock.startup_s = Some(self.seconds_since_start());
            }
            if outcome.skipped {
                // A skipped step does not count: the next one has its number.
                continue;
            }
            if self.is_logged(step) {
                let RecentRates { samples_per_s, data_wait_ms, h2d_ms } = self.clock.lap(self.loader.times());
                let event = StepEvent {
                    step,
                    epoch: self.epoch_under_way(),
                    loss: outcome.sums.mean(),
                    lr,
                    grad_norm: outcome.grad_norm.unwrap_or(f64::NAN),
                    samples_per_s,
                    data_wait_ms,
                    h2d_ms,
                };
                self.progress.step(&event);
                self.metrics.write(&Event::Step(event))?;
            }
        }
    }

    /// Epoch of the last enqueued step, from 1: all outcomes of an epoch are read before the next one begins.
    fn epoch_under_way(&self) -> u64 {
        (self.state.cursor.max(1) - 1) / self.state.n_rows.max(1) + 1
    }

    /// The span of the epoch of the next step.
    fn epoch_span(&mut self) -> Span {
        let epoch = self.state.cursor / self.state.n_rows.max(1) + 1;
        if self.span.1 != epoch {
            self.span = (info_span!("epoch", epoch), epoch);
        }
        self.span.0.clone()
    }

    /// Evaluates and reports a finished epoch; returns whether a checkpoint is due.
    fn end_epoch(&mut self, trainer: &mut Trainer<'_>) -> Result<bool> {
        let epoch = self.epoch_under_way();
        if !self.state.evaluation_is_due {
            // Otherwise the checkpoint holds the finished epoch.
            self.gather_rows()?;
            let rows = self.state.proof.current;
            self.state.proof.finish_epoch(rows);
        }
        // Both before the first is judged: a run that is stopped in one of them repeats them.
        let measured = self.measure_weights(trainer)?;
        let train = self.evaluate_training_rows(trainer)?;
        let is_best = self.judge(trainer, measured);
        let event = EpochEvent {
            epoch,
            step: trainer.n_steps(),
            train_loss: self.train_loss.mean(),
            train,
            eval: self.state.eval.clone(),
        };
        self.progress.epoch_end(&event);
        self.metrics.write(&Event::Epoch(event))?;
        self.note_early_stop();
        Ok(self.autosave.is_due_after_epoch(epoch) || (is_best && self.autosave.saves_best()))
    }

    /// Whether an evaluation is due after step `step`, within an epoch; the same on all ranks.
    fn is_eval_due(&self, step: u64) -> bool {
        let every = self.plan.config.train.eval_every_steps;
        let is_done = self.evaluated.is_some_and(|(evaluated, _)| evaluated == step);
        // A skipped step does not change the step number.
        every > 0 && step > 0 && step.is_multiple_of(every) && !is_done && self.plan.data.eval.is_some()
    }

    /// Evaluates and reports within an epoch; returns whether a checkpoint is due.
    fn evaluate_within_epoch(&mut self, trainer: &mut Trainer<'_>) -> Result<bool> {
        let is_best = self.evaluate(trainer)?;
        let event = EvalEvent {
            step: trainer.n_steps(),
            epoch: self.epoch_under_way(),
            eval: self.state.eval.clone(),
        };
        self.progress.eval(&event);
        self.metrics.write(&Event::Eval(event))?;
        self.note_early_stop();
        Ok(is_best && self.autosave.saves_best())
    }

    fn note_early_stop(&self) {
        if self.stopping.is_over() {
            let (metric, progress) = (self.stopping.metric(), self.stopping.progress());
            info!(
                "early stopping: {metric} has not improved on {:.6} in {} evaluations",
                progress.best.unwrap_or(f64::NAN),
                progress.n_worse,
            );
        }
    }

    /// Evaluates at the run's end, unless the last evaluation was after the same step with the same metrics; returns whether it is
    /// the best so far and must be saved.
    fn evaluate_once(&mut self, trainer: &mut Trainer<'_>) -> Result<bool> {
        let (step, wanted) = (trainer.n_steps(), self.metric_sets[1]);
        match self.evaluated {
            Some(evaluated) if evaluated == (step, wanted) => Ok(false),
            // The weights were judged already.
            Some((evaluated, _)) if evaluated == step => {
                if let Some((metrics, _)) = self.measure(trainer, wanted, false)? {
                    self.state.eval = metrics;
                    self.evaluated = Some((step, wanted));
                }
                Ok(false)
            }
            _ => Ok(self.evaluate(trainer)? && self.autosave.saves_best()),
        }
    }

    /// Evaluates and judges the weights, the averaged ones where kept, if there are evaluation rows; returns whether they are the
    /// best so far.
    fn evaluate(&mut self, trainer: &mut Trainer<'_>) -> Result<bool> {
        let measured = self.measure_weights(trainer)?;
        Ok(self.judge(trainer, measured))
    }

    /// Measures the metrics by which the weights are judged, if there are evaluation rows.
    fn measure_weights(&mut self, trainer: &mut Trainer<'_>) -> Result<Option<Measured>> {
        self.state.step = trainer.n_steps();
        self.measure(trainer, self.due_metrics(trainer), true)
    }

    /// The metrics of an evaluation after the last step.
    fn due_metrics(&self, trainer: &Trainer<'_>) -> MetricSet {
        self.metric_sets[usize::from(self.is_complete(trainer))]
    }

    /// Judges the weights after the last step by what was measured; returns whether they are the best so far.
    fn judge(&mut self, trainer: &Trainer<'_>, measured: Option<Measured>) -> bool {
        self.is_judged = true;
        let Some((eval, weights)) = measured else { return false };
        let step = trainer.n_steps();
        self.evaluated = Some((step, self.due_metrics(trainer)));
        self.stopping.record(eval.get(self.stopping.metric()));
        let is_best = self.best.is_better(&self.state, &eval);
        if is_best {
            let epoch = self.epoch_under_way();
            self.best.record(&mut self.state, &eval, epoch, weights);
        }
        if let Some((metric, value)) = eval.not_finite().filter(|_| !self.warned_not_finite) {
            self.warned_not_finite = true;
            let message = format!(
                "{metric} is {value} after step {step}: this evaluation counts as no better than any other\n\
                 hint: look for outputs that overflow: a smaller `optimizer.lr`, or `data.normalize = \"standard\"`"
            );
            warn_of_all_ranks(self.plan.world.rank().0, &message);
        }
        self.state.eval = eval;
        is_best
    }

    /// Measures these metrics on the evaluation rows, if there are some. Where `keeps_best` is set and they are the best so far,
    /// also returns the evaluated weights, on rank 0 of a run that keeps them.
    fn measure(
        &self,
        trainer: &mut Trainer<'_>,
        metrics: MetricSet,
        keeps_best: bool,
    ) -> Result<Option<Measured>> {
        let LoopPlan { world, config, data, eval_partition, loading, output_names, signals, .. } = &self.plan;
        let Some(rows) = &data.eval else { return Ok(None) };
        let request =
            MetricRequest { names: output_names.clone(), ..MetricRequest::new(config.data.task, metrics) };
        let request = request.in_units_of(rows.layout());
        let until = Until { world, signals: Some(signals) };
        let measured = trainer.with_averaged(|model, loss| {
            let eval = evaluate_until(until, model, loss, &request, rows, *eval_partition, loading)?;
            let is_kept = keeps_best && self.state.keeps_best_weights && world.rank().0 == 0;
            let is_best = is_kept && self.best.is_better(&self.state, &eval);
            let weights = is_best.then(|| best_weights::to_host(model.weights())).transpose()?;
            Ok((eval, weights))
        })?;
        Ok(Some(measured))
    }

    /// Measures the metrics of all training rows, if they are asked for.
    fn evaluate_training_rows(&self, trainer: &mut Trainer<'_>) -> Result<TrainMetrics> {
        let LoopPlan { world, config, data, eval_partition, loading, output_names, signals, .. } = &self.plan;
        if !config.train.train_metrics {
            return Ok(TrainMetrics::default());
        }
        let request = MetricRequest {
            names: output_names.clone(),
            ..MetricRequest::new(config.data.task, self.metric_sets[0])
        };
        let request = request.in_units_of(data.train.layout());
        let until = Until { world, signals: Some(signals) };
        let measure = |model: &mut Network, loss: &LossHead| {
            evaluate_until(until, model, loss, &request, &data.train, *eval_partition, loading)
        };
        Ok(TrainMetrics(trainer.with_averaged(measure)?))
    }

    /// Merges the rows that the ranks have used since the last call into the state.
    fn gather_rows(&mut self) -> Result<()> {
        for bytes in self.plan.world.group().all_gather_bytes(&self.own_rows.to_bytes())? {
            let rows = RowsHash::from_bytes(&bytes).expect("all ranks run one program");
            self.state.proof.current.merge(&rows);
        }
        self.own_rows = RowsHash::default();
        Ok(())
    }

    /// Starts a checkpoint of the run's current state.
    fn save(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        let _checkpoint = info_span!("checkpoint", step = trainer.n_steps()).entered();
        let _phase = self.plan.world.watchdog().during(Phase::Checkpoint);
        let started = Instant::now();
        self.gather_rows()?;
        self.note_state(trainer);
        let is_averaged = self.plan.config.optimizer.ema_decay > 0.0;
        let best = self.best.for_checkpoint(&self.state, is_averaged);
        self.autosave.save(trainer, &self.state, best, started)
    }

    fn note_state(&mut self, trainer: &Trainer<'_>) {
        self.state.step = trainer.n_steps();
        self.state.epoch_loss = self.train_loss.to_state();
        self.state.early_stopping = self.stopping.progress();
        self.state.loss_scaler = trainer.loss_scaler_state();
    }

    fn seconds_since_start(&self) -> f64 {
        process::seconds_since_start(self.plan.world.launcher().is_some())
    }
}

fn stopping(config: &Config) -> EarlyStopping {
    let train = &config.train;
    EarlyStopping::new(train.early_stop_metric, train.early_stop_patience, train.early_stop_min_delta)
}
