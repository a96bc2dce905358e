//! The training loop: steps, evaluation after each epoch, checkpoints, and the events that report them.
//!
//! Between two steps all ranks make the same decision whether to evaluate, save or stop: by the step number, or by the ranks'
//! votes in an earlier step.

mod after_loss;
mod saves;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use ddp_comm::Phase;
use ddp_kernels::Device;
use tracing::{Span, debug_span, info, info_span, trace_span, warn};

use crate::checkpoint::{EpochLossState, RunState};
use crate::data::loader::{DataLoader, LoadedStep};
use crate::report::metrics::{
    BestEvent, EndEvent, EndTime, EpochEvent, EvalEvent, Event, LastMetrics, MetricsSink, StepEvent,
    StopEvent,
};
use crate::report::notes::warn_of_all_ranks;
use crate::report::process;
use crate::report::progress::{Progress, Standing};
use crate::run_folder::RunDir;
use crate::train::autosave::Autosave;
use crate::train::bad_steps::{Decision, InFlight, StepPolicy, left_out_summary};
use crate::train::bottleneck::data_advice;
use crate::train::diagnosis::FailedStep;
use crate::train::error::{GiveUp, Result, Stop, TrainError};
use crate::train::evaluations::{Evaluations, When};
use crate::train::host_copies::HostCopies;
use crate::train::late_ranks::LateRanks;
use crate::train::loop_plan::{Due, stop_key};
pub use crate::train::loop_plan::{Ending, LoopPlan, is_long_enough};
use crate::train::replica_guard::ReplicaGuard;
use crate::train::resume::{ResumeFrom, Resumed};
use crate::train::review::Review;
use crate::train::run_clock::{Lap, Pause, RecentRates, RunClock};
use crate::train::statistics::StatisticsRows;
use crate::train::trace::Tracing;
use crate::train::trainer::{StepInfo, StepRequest, StepRows as _, Trainer};
use crate::train::votes::Votes;

/// A run in progress: its plan, its state and its reports.
pub struct TrainingLoop<'a> {
    plan: LoopPlan<'a>,
    loader: DataLoader,
    autosave: Autosave<'a>,
    /// States in host memory for the loss of a rank, where shards need them.
    copies: Option<HostCopies>,
    metrics: MetricsSink,
    progress: Box<dyn Progress>,
    evaluations: Evaluations<'a>,
    /// State of the run after the last enqueued step; the losses are those of the steps whose outcome was read.
    state: RunState,
    /// Steps at the start, as in the newest checkpoint.
    first_step: u64,
    /// Cursor up to which the rows of all ranks are in the state's proof.
    gathered: u64,
    /// Events of the last step, on each rank.
    last_events: Vec<Event>,
    /// Step and cursor whose evaluations are complete.
    evaluated_at: Option<(u64, u64)>,
    /// Whether the weights after the last step were judged by an evaluation.
    is_judged: bool,
    /// Whether a signal stopped the last evaluation.
    is_evaluation_stopped: bool,
    /// Votes of the ranks since the last decision.
    votes: Votes,
    replica_guard: ReplicaGuard,
    /// Decides on steps whose update was withheld.
    policy: StepPolicy,
    /// Steps whose outcome was not read, oldest first.
    in_flight: VecDeque<InFlight>,
    /// Error of the step from which the run returns to a checkpoint.
    rollback: Option<Rollback>,
    clock: RunClock,
    late_ranks: LateRanks,
    tracing: Tracing<'a>,
    /// Times at the end of the last step of a complete run.
    end: Lap,
    /// Span of the epoch under way, and its number from 1.
    span: (Span, u64),
}

/// The first step of a process that is timed on a GPU: those before it compile, choose and capture.
const FIRST_TIMED: u64 = 5;

/// A withheld update after which the run returns to a checkpoint.
struct Rollback {
    error: TrainError,
    step: InFlight,
}

impl<'a> TrainingLoop<'a> {
    /// Creates a loop over the batches of `loader` that starts at `state`. Ranks other than 0 pass a silent sink and `()` as progress.
    pub fn new(
        plan: LoopPlan<'a>,
        evaluations: Evaluations<'a>,
        loader: DataLoader,
        autosave: Autosave<'a>,
        metrics: MetricsSink,
        progress: Box<dyn Progress>,
        mut state: RunState,
    ) -> Self {
        state.last_events.clear();
        TrainingLoop {
            evaluations,
            first_step: state.step,
            gathered: state.cursor,
            last_events: Vec::new(),
            evaluated_at: None,
            is_judged: false,
            is_evaluation_stopped: false,
            votes: Votes::default(),
            replica_guard: ReplicaGuard::new(plan.world, &plan.config.train),
            policy: StepPolicy::new(&plan.config.train.bad_steps, &mut state),
            in_flight: VecDeque::with_capacity(2),
            rollback: None,
            clock: RunClock::default(),
            late_ranks: LateRanks::new(),
            tracing: Tracing::new(plan.world, &plan.folder, plan.trace.clone()),
            end: Lap::default(),
            span: (Span::none(), 0),
            plan,
            loader,
            autosave,
            copies: None,
            metrics,
            progress,
            state,
        }
    }

    fn run(&mut self, trainer: &mut Trainer<'_>) -> Result<Ending, Stop> {
        let mut stop = self.stop_reason(trainer);
        let is_evaluation_due = self.state.evaluation_is_due;
        if is_evaluation_due || self.is_complete(trainer) {
            let ends_epoch = is_evaluation_due && self.state.rows_of_epoch() == 0;
            let eval = is_evaluation_due && !ends_epoch && self.evaluations.is_due(trainer.n_steps());
            let due = Due { ends_epoch, eval, save: false, end: is_evaluation_due };
            stop = self.between_steps(trainer, due)?;
        }
        if stop.is_none() && !self.is_complete(trainer) {
            self.tracing.begin(trainer, false)?;
        }
        while stop.is_none() && !self.is_complete(trainer) {
            let span = self.epoch_span();
            let _epoch = span.enter();
            let ends_epoch = self.step(trainer)?;
            let checks_replicas = self.replica_guard.is_due(trainer.n_steps());
            let refreshes = self.copies_are_due(trainer.n_steps());
            self.outcomes(trainer, checks_replicas || refreshes)?;
            if self.rollback.is_some() {
                return self.roll_back(trainer);
            }
            if checks_replicas {
                self.replica_guard.check(self.plan.world, trainer)?;
            }
            if refreshes {
                self.refresh_copies(trainer)?;
            }
            let save = self.autosave.is_due_after_step(trainer.n_steps());
            stop = self.stop_reason(trainer);
            let eval = !ends_epoch && self.evaluations.is_due(trainer.n_steps());
            let is_voted = self.votes != Votes::default() || self.tracing.is_due(trainer.n_steps());
            let is_boundary = ends_epoch || save || eval || stop.is_some() || is_voted;
            if !is_boundary && !self.is_complete(trainer) {
                continue;
            }
            // Steps in flight belong to this decision.
            self.outcomes(trainer, true)?;
            if self.rollback.is_some() {
                return self.roll_back(trainer);
            }
            stop = self.between_steps(trainer, Due { ends_epoch, eval, save, end: true })?;
        }
        self.end_trace(trainer, true)?;
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
        // Rows may be on their way to a GPU behind work that never ends, and copies on their way back: dropping them would wait for it.
        std::mem::forget((self.loader, self.copies));
    }

    /// Evaluates and saves what is due between two steps; returns the reason to stop, if there is one.
    fn between_steps(&mut self, trainer: &mut Trainer<'_>, due: Due) -> Result<Option<String>> {
        let mut saves = due.save || self.votes.checkpoint || self.stop_reason(trainer).is_some();
        self.is_judged = false;
        self.end_trace(trainer, false)?;
        if self.votes.comparison {
            self.late_ranks.compare(self.plan.world, self.clock.now(self.loader.times(), trainer.times()))?;
        }
        let started = Instant::now();
        let evaluated = self.evaluate_due(trainer, due);
        self.clock.add_pause(Pause::Evaluation, started);
        self.tracing.add("evaluation", (due.ends_epoch || due.eval).then_some(started));
        match evaluated {
            Ok(is_due) => {
                saves |= is_due;
                self.state.evaluation_is_due = false;
                self.evaluated_at = Some((trainer.n_steps(), self.state.cursor));
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
        let started = Instant::now();
        if saves {
            self.save(trainer, stop.is_some() || self.is_complete(trainer))?;
        }
        let votes = std::mem::take(&mut self.votes);
        self.check_all_are_here()?;
        self.autosave.report(&mut self.metrics)?;
        self.clock.add_pause(Pause::Checkpoint, started);
        self.tracing.add("checkpoint", saves.then_some(started));
        if stop.is_none() && !self.is_complete(trainer) {
            self.tracing.begin(trainer, votes.trace)?;
        }
        Ok(stop)
    }

    /// Ends the trace under way, if it is complete or `at_once`. Collective.
    fn end_trace(&mut self, trainer: &Trainer<'_>, at_once: bool) -> Result<()> {
        self.tracing.end(trainer.n_steps(), &trainer.model().device(), at_once)
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
            let is_best = self.evaluations.complete(&mut self.state, trainer)?;
            saves |= (is_best && self.autosave.saves_best()) || (due.end && self.autosave.is_on());
        }
        Ok(saves)
    }

    /// Reports the end of a complete run, whose files are in `folder`. The trainer's weights were saved, and may be replaced. Collective.
    ///
    /// # Errors
    /// [`TrainError::Report`] if the event can't be written; errors of an evaluation.
    pub fn finish(mut self, folder: Option<&Path>, trainer: &mut Trainer<'_>) -> Result<()> {
        self.evaluations.complete_best(&mut self.state, trainer)?;
        let RunClock { startup_s, samples, .. } = self.clock;
        let train_s = self.clock.train_s();
        let scale = self.plan.data.preprocessor.target_scale.as_ref();
        let LoopPlan { world, config, data, .. } = self.plan;
        let compared = self.late_ranks.compare_run(world, &self.end)?;
        let data_advice = || data_advice(&self.loader, &*data.train, &config.data);
        let time = compared.map(|compared| EndTime {
            split: compared.split(),
            bound: compared.bound(trainer.model().device(), data_advice),
            ranks: compared.ranks(),
        });
        let (eval, last) = self.evaluations.evaluate_model(&self.state);
        let review = Review { config, data, state: &self.state };
        let proposal = review.proposal();
        let event = EndEvent {
            steps: self.state.step,
            samples,
            world_size: self.plan.world.world_size(),
            train_loss: self.state.epoch_loss.mean(),
            eval,
            last,
            best: self.evaluations.best(&self.state).map(|best| BestEvent {
                metric: best.metric.clone(),
                value: best.value,
                step: best.step,
                epoch: best.epoch,
                is_last: best.is_last,
            }),
            target_shift: scale.map(|scale| scale.shift.clone()),
            target_scale: scale.map(|scale| scale.scale.clone()),
            elapsed_s: self.seconds_since_start(),
            train_s,
            samples_per_s: samples as f64 / train_s,
            gflops_per_s: (samples * self.plan.flop_per_row) as f64 * 1e-9 / train_s,
            startup_s: startup_s.unwrap_or_else(|| self.seconds_since_start()),
            time,
            warnings: if world.rank().0 == 0 { review.findings()? } else { Vec::new() },
            proposal,
        };
        if let Some(n_skipped) = self.state.loss_scaler.map(|scaler| scaler.n_skipped).filter(|n| *n > 0) {
            info!("skipped {n_skipped} steps: gradients overflowed in f16");
        }
        left_out_summary(&self.state.left_out).iter().for_each(|line| info!("{line}"));
        self.progress.end(&event, folder);
        event.warnings.iter().for_each(|warning| warn!("{warning}"));
        event.proposal.iter().for_each(|proposal| info!("{proposal}"));
        self.write_event(&Event::End(event))
    }

    /// Weights of the best evaluation on rank 0, if the run is judged by a metric.
    pub fn best_weights(&self) -> Option<&[f32]> {
        self.evaluations.best_weights().weights(&self.state).map(|weights| weights.as_slice())
    }

    /// Rows for the statistics of averaged weights, where they have statistics of their own.
    pub fn statistics(&self) -> Option<&StatisticsRows> {
        self.evaluations.statistics()
    }

    /// Completed steps.
    pub fn n_steps(&self) -> u64 {
        self.state.step
    }

    /// Waits for the last checkpoints of a run whose final model was evaluated.
    fn complete(&mut self, trainer: &mut Trainer<'_>) -> Result<(), Stop> {
        trainer.take(&mut self.state)?;
        let _phase = self.plan.world.watchdog().during(Phase::Checkpoint);
        let started = Instant::now();
        // The caller still saves the run's model.
        if self.finish_saves()?.is_some() {
            warn_of_all_ranks(self.plan.world.rank().0, "the final checkpoint of the run was not saved");
        }
        self.clock.add_pause(Pause::Checkpoint, started);
        self.end = self.clock.now(self.loader.times(), trainer.times());
        Ok(())
    }

    /// Saves a stopping run; reports it only after the checkpoint is on disk.
    fn stopped(&mut self, trainer: &mut Trainer<'_>, reason: &str) -> Result<(), Stop> {
        // A no-op if the loop saved this step; a run without any step is saved here.
        self.save(trainer, true)?;
        let _phase = self.plan.world.watchdog().during(Phase::Checkpoint);
        let failed = self.finish_saves()?.map_or(Ok(()), Err);
        self.plan.world.collective_result(failed.map_err(TrainError::from))?;
        info!(
            "stopped by {reason} after step {}; checkpoint saved\nhint: {} continues the run",
            trainer.n_steps(),
            self.plan.resume_command,
        );
        let event = StopEvent { step: trainer.n_steps(), reason: reason.to_owned() };
        self.write_event(&Event::Stop(event))?;
        // From here on mpirun may kill the ranks one by one: after a Ctrl-C it waits no longer than a second for them, and no
        // rank gets through MPI_Finalize while it waits.
        self.plan.world.watchdog().leave();
        Ok(())
    }

    /// Ends the loop so that the run continues from its newest checkpoint.
    fn roll_back(&mut self, trainer: &mut Trainer<'_>) -> Result<Ending, Stop> {
        let world = self.plan.world;
        // A later step may be enqueued on a GPU.
        trainer.discard_outcomes()?;
        self.end_trace(trainer, true)?;
        let _phase = world.watchdog().during(Phase::Checkpoint);
        // A save that fails is reported; an older checkpoint is used then.
        self.autosave.finish(&mut self.metrics)?;
        let found = Resumed::find(world, Some(&ResumeFrom::Auto), Some(&self.plan.folder))?;
        // Until here a rank may be lost, after which nothing is saved.
        let Rollback { error, step } = self.rollback.take().expect("the reason to roll back");
        let Some(to) = found else {
            return Err(self.diagnosed(trainer, error.given_up(GiveUp::NoCheckpoint), step).into());
        };
        let consequence = format!("the run returns to its checkpoint of step {}", to.state().step);
        let warning = format!("{}; {consequence} and leaves this update out", error.fact());
        warn_of_all_ranks(world.rank().0, &warning);
        Ok(Ending::RolledBack { to: Box::new(to), left_out: self.state.left_out.clone() })
    }

    /// Adds what is found about the step to the error of one that is not finite. Collective.
    fn diagnosed(&self, trainer: &mut Trainer<'_>, error: TrainError, step: InFlight) -> TrainError {
        if !error.has_findings() || trainer.gather_weights().is_err() {
            return error;
        }
        let LoopPlan { world, config, data, partition, .. } = self.plan;
        let (model, cursor) = (trainer.model(), step.cursor);
        FailedStep { world, config, data, partition, model, cursor }.explain(error)
    }

    /// Whether the run is complete.
    fn is_complete(&self, trainer: &Trainer<'_>) -> bool {
        is_long_enough(self.plan.config, &self.state, trainer.n_steps())
            || self.evaluations.stops(&self.state)
    }

    /// Reason to stop, if any: the same on all ranks.
    fn stop_reason(&self, trainer: &Trainer<'_>) -> Option<String> {
        if self.votes.stop > 0 {
            return Some(self.plan.signals.reason());
        }
        stop_key(&self.plan.config.train, &self.state, trainer.n_steps()).map(str::to_owned)
    }

    /// Runs or enqueues one step; returns whether it is the epoch's last.
    fn step(&mut self, trainer: &mut Trainer<'_>) -> Result<bool> {
        self.plan.run_dir.map_or(Ok(()), RunDir::check_owned)?;
        let step = trainer.n_steps() + 1;
        let want_grad_norm = self.is_logged(step);
        let span = if want_grad_norm { debug_span!("step", step) } else { trace_span!("step", step) };
        let _step = span.enter();
        self.plan.world.watchdog().step(step);
        let wants = Votes {
            stop: 0,
            checkpoint: self.autosave.is_due_by_clock(),
            comparison: self.late_ranks.is_due_by_clock(self.plan.world, self.clock.n_steps()),
            trace: self.tracing.wants_vote(),
        };
        let vote = Votes::from_rank(self.plan.signals.received().is_some(), wants);
        self.tracing.begin_step(step);
        let reduced = self.plan.schedule.plateau_factor(self.state.early_stopping.n_reductions);
        trainer.set_lr(self.plan.schedule.lr(trainer.n_steps()) * reduced);
        trainer.set_group_lrs(&self.plan.schedule.group_lrs(trainer.n_steps()));
        let loss_limit = self.policy.loss_limit(&self.state, step, self.in_flight.len());
        let in_flight = InFlight { cursor: self.state.cursor, loss_limit };
        // The first ones too, so that the first event knows one.
        self.loader.time_copies(want_grad_norm || self.clock.samples == 0);
        self.clock.begin_step();
        // A logged step has a norm, which the others do without.
        let is_timed =
            self.is_logged(step + 1) || self.clock.n_steps() == FIRST_TIMED || self.tracing.is_on();
        let started = Instant::now();
        let mut rows: LoadedStep<'_> = self.loader.next_step()?.expect("the plan of a run has no end");
        self.tracing.add("data wait", self.tracing.is_on().then_some(started));
        let (n_rows, ends_epoch) = (rows.global_rows() as u64, rows.ends_epoch());
        if self.state.rows_of_epoch() == 0 {
            self.state.epoch_loss = EpochLossState::default();
        }
        let request = StepRequest { want_grad_norm, vote, loss_limit, is_timed };
        let enqueues = self.tracing.now().filter(|_| trainer.model().device() != Device::Cpu);
        trainer.step(&mut rows, request).map_err(|error| self.diagnosed(trainer, error, in_flight))?;
        self.tracing.add("enqueue", enqueues);
        self.tracing.add_step(step, started);
        self.in_flight.push_back(in_flight);
        self.state.cursor += n_rows;
        self.state.step = trainer.n_steps();
        self.clock.add_step(started);
        Ok(ends_epoch)
    }

    fn is_logged(&self, step: u64) -> bool {
        step.is_multiple_of(self.plan.config.log.every_steps as u64)
    }

    /// Reports the steps that have finished, or all enqueued ones.
    fn outcomes(&mut self, trainer: &mut Trainer<'_>, all: bool) -> Result<()> {
        loop {
            let started = Instant::now();
            let outcome = trainer.outcome(all);
            self.clock.add_step(started);
            let is_enqueued = self.tracing.is_on() && trainer.model().device() != Device::Cpu;
            self.tracing
                .add("read outcome", (is_enqueued && matches!(outcome, Ok(Some(_)))).then_some(started));
            let outcome = outcome.map_err(|error| match self.in_flight.front() {
                Some(oldest) => self.diagnosed(trainer, error, *oldest),
                None => error,
            })?;
            let Some((info, outcome)) = outcome else { return Ok(()) };
            let StepInfo { step, n_rows, lr } = info;
            let in_flight = self.in_flight.pop_front().expect("each step has one outcome");
            self.votes = self.votes.and(Votes::from_sum(outcome.votes));
            self.clock.samples += n_rows as u64;
            self.progress.advance(n_rows as u64);
            match self.policy.decide(&mut self.state, &info, &outcome, in_flight.loss_limit) {
                Decision::Continue => {}
                Decision::Skip(error) => warn_of_all_ranks(
                    self.plan.world.rank().0,
                    &format!("{}; its update is left out", error.fact()),
                ),
                Decision::Rollback(error) => {
                    self.rollback = Some(Rollback { error, step: in_flight });
                    return Ok(());
                }
                Decision::Fail(error) => return Err(self.diagnosed(trainer, error, in_flight)),
            }
            if outcome.withheld.is_none() {
                // The mean covers the steps that trained: one loss that is not finite would hide the others.
                self.state.epoch_loss.add(outcome.sums, n_rows);
                let clip = self.plan.config.train.clip_grad_norm;
                self.state.course.add(outcome.sums.mean(), outcome.grad_norm, clip);
            }
            if self.clock.startup_s.is_none() {
                self.clock.startup_s = Some(self.seconds_since_start());
            }
            if outcome.skipped {
                // A skipped step does not count: the next one has its number.
                continue;
            }
            if self.is_logged(step) {
                let RecentRates { samples_per_s, h2d_ms, time } =
                    self.clock.lap(self.loader.times(), trainer.times());
                let event = StepEvent {
                    step,
                    epoch: self.state.epoch_under_way(),
                    loss: outcome.sums.mean(),
                    lr,
                    grad_norm: outcome.grad_norm.unwrap_or(f64::NAN),
                    samples_per_s,
                    h2d_ms,
                    time,
                };
                self.progress.step(&event);
                self.write_event(&Event::Step(event))?;
            }
        }
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
        let epoch = self.state.epoch_under_way();
        if !self.state.evaluation_is_due {
            // Otherwise the checkpoint holds the finished epoch.
            self.gather_rows()?;
            let rows = self.state.proof.current;
            self.state.proof.finish_epoch(rows);
        }
        // Both before the first is judged: a run that is stopped in one of them repeats them.
        let measured = self.evaluations.measure(&self.state, trainer, self.when(trainer))?;
        let train = self.evaluations.training_rows(trainer)?;
        let is_best = self.evaluations.judge(&mut self.state, measured)?;
        self.is_judged = true;
        self.evaluated_at = Some((self.state.step, self.state.cursor));
        let event = EpochEvent {
            epoch,
            step: trainer.n_steps(),
            train_loss: self.state.epoch_loss.mean(),
            train,
            eval: self.state.eval.clone(),
            last: LastMetrics(self.state.last_eval.clone()),
        };
        self.progress.epoch_end(&event, Standing { is_best, is_last: self.is_complete(trainer) });
        self.write_event(&Event::Epoch(event))?;
        self.evaluations.note_early_stop(&self.state);
        Ok(self.autosave.is_due_after_epoch(epoch) || (is_best && self.autosave.saves_best()))
    }

    /// Whether an evaluation after the last step is the run's last.
    fn when(&self, trainer: &Trainer<'_>) -> When {
        if self.is_complete(trainer) { When::AtEnd } else { When::During }
    }

    /// Evaluates and reports within an epoch; returns whether a checkpoint is due.
    fn evaluate_within_epoch(&mut self, trainer: &mut Trainer<'_>) -> Result<bool> {
        let measured = self.evaluations.measure(&self.state, trainer, self.when(trainer))?;
        let is_best = self.evaluations.judge(&mut self.state, measured)?;
        self.is_judged = true;
        self.evaluated_at = Some((self.state.step, self.state.cursor));
        let event = EvalEvent {
            step: trainer.n_steps(),
            epoch: self.state.epoch_under_way(),
            eval: self.state.eval.clone(),
            last: LastMetrics(self.state.last_eval.clone()),
        };
        self.progress.eval(&event, Standing { is_best, is_last: self.is_complete(trainer) });
        self.write_event(&Event::Eval(event))?;
        self.evaluations.note_early_stop(&self.state);
        Ok(is_best && self.autosave.saves_best())
    }

    fn seconds_since_start(&self) -> f64 {
        process::seconds_since_start(self.plan.world.launcher())
    }
}
