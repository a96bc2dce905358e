//! Evaluations of a run: the metrics that are due, the best weights so far, and early stopping.

use std::sync::Arc;

use ddp_comm::World;
use tracing::info;

use crate::checkpoint::{Best, EarlyStoppingState, RunState};
use crate::config::{AGAINST_DIVERGENCE, Config, EmaEval, EvalMetric, MetricSet, ScheduleShape};
use crate::data::loader::LoaderOptions;
use crate::data::order::partition::EvalPartition;
use crate::data::{Dataset, Loaded};
use crate::model::{LossHead, Network};
use crate::report::EvalMetrics;
use crate::report::metrics::{LastMetrics, TrainMetrics};
use crate::report::notes::warn_of_all_ranks;
use crate::train::best_weights::{self, BestWeights};
use crate::train::early_stopping::EarlyStopping;
use crate::train::error::{Result, TrainError};
use crate::train::eval_votes::Until;
use crate::train::evaluate::evaluate_until;
use crate::train::metrics::request::MetricRequest;
use crate::train::statistics::StatisticsRows;
use crate::train::stop_signals::StopSignals;
use crate::train::trainer::Trainer;

/// Inputs of a run's evaluations.
pub struct EvalPlan<'a> {
    /// Ranks and collectives.
    pub world: &'a World,
    /// Config of the run.
    pub config: &'a Config,
    /// Training and evaluation rows.
    pub data: &'a Loaded,
    /// Partition of the evaluation rows.
    pub partition: EvalPartition,
    /// Options for loading evaluation rows.
    pub loading: LoaderOptions,
    /// Names of the model's outputs for reports; `None` for their numbers.
    pub output_names: Option<Vec<String>>,
    /// Signals that this rank receives.
    pub signals: &'a StopSignals,
    /// Rows for the statistics of averaged weights, where they have statistics of their own.
    pub statistics: Option<StatisticsRows>,
}

/// When an evaluation takes place: the last one of a run may measure more metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Between two steps.
    During,
    /// After the last step.
    AtEnd,
}

/// Metrics of an evaluation, and the evaluated weights where they are kept.
pub struct Measured {
    set: MetricSet,
    metrics: EvalMetrics,
    /// Metrics of the last weights, where `metrics` are of averaged ones.
    last: Option<EvalMetrics>,
    /// The better of these weights, where they are kept.
    weights: Option<Vec<f32>>,
}

impl Measured {
    /// The last weights' metrics if these are the better ones, else the averaged weights' ones.
    fn better(&self, best: &BestWeights) -> (&EvalMetrics, bool) {
        match &self.last {
            Some(last) if best.is_first_better(last, &self.metrics) => (last, true),
            _ => (&self.metrics, false),
        }
    }
}

/// Evaluates the weights, judges them, and decides whether the run stops early.
pub struct Evaluations<'a> {
    plan: EvalPlan<'a>,
    stopping: EarlyStopping,
    best: BestWeights,
    /// Metrics of each evaluation, and those of the last one.
    metric_sets: [MetricSet; 2],
    /// Step and metrics of the last evaluation.
    evaluated: Option<(u64, MetricSet)>,
    /// Whether a metric that is not a number was reported.
    warned_not_finite: bool,
}

impl<'a> Evaluations<'a> {
    /// Evaluations of a run that starts at `state`, before which it evaluated every `every_before` steps; `best_weights` are those of a resumed run's best evaluation, on the ranks that keep them.
    pub fn new(
        plan: EvalPlan<'a>,
        state: &RunState,
        every_before: u64,
        best_weights: Option<Vec<f32>>,
    ) -> Self {
        let Config { train, checkpoint, .. } = plan.config;
        let judge = checkpoint.keep_best.iter().chain([&train.early_stop_metric]);
        let judge = judge.fold(MetricSet::default(), |set, judge| set.with(judge.metric));
        Evaluations {
            stopping: EarlyStopping::of(plan.config),
            best: BestWeights::new(checkpoint.keep_best.clone(), best_weights),
            metric_sets: plan.config.metrics().map(|set| set.union(judge)),
            // Its tables were not saved.
            evaluated: was_evaluated(state, every_before).then_some((state.step, MetricSet::default())),
            warned_not_finite: false,
            plan,
        }
    }

    /// Whether an evaluation is due after step `step`, within an epoch; the same on all ranks.
    pub fn is_due(&self, step: u64) -> bool {
        let every = self.plan.config.train.eval_every_steps;
        let is_done = self.evaluated.is_some_and(|(evaluated, _)| evaluated == step);
        // A skipped step does not change the step number.
        is_at_interval(step, every) && !is_done && self.plan.data.eval.is_some()
    }

    /// Whether the evaluations so far stop the run early.
    pub fn stops(&self, state: &RunState) -> bool {
        self.stopping.is_over(&state.early_stopping)
    }

    /// The best evaluation, if the run keeps its weights.
    pub fn best<'s>(&self, state: &'s RunState) -> Option<&'s Best> {
        self.best.best(state)
    }

    /// Metrics of the weights that are the model of a complete run, and those of the weights after the last step where they differ:
    /// averaged ones if the run keeps an average, unless these are the model.
    pub fn evaluate_model(&self, state: &RunState) -> (EvalMetrics, LastMetrics) {
        let RunState { eval, last_eval, step, .. } = state;
        let (model, last) = match self.best(state) {
            // Where updates are withheld, several evaluations are of one step.
            Some(best)
                if (best.step, best.epoch) != (*step, state.epoch_under_way())
                    && best.eval != EvalMetrics::default() =>
            {
                (&best.eval, eval)
            }
            Some(best) if best.step == *step && best.is_last => (last_eval, eval),
            _ => (eval, last_eval),
        };
        (model.clone(), LastMetrics(last.clone()))
    }

    /// The weights of the best evaluation, if the run keeps them.
    pub fn best_weights(&self) -> &BestWeights {
        &self.best
    }

    /// Rows for the statistics of averaged weights, where they have statistics of their own.
    pub fn statistics(&self) -> Option<&StatisticsRows> {
        self.plan.statistics.as_ref()
    }

    /// Measures the metrics by which the weights are judged, the averaged ones where kept, if there are evaluation rows.
    ///
    /// # Errors
    /// [`TrainError::EvaluationStopped`] after a signal; errors of the data or the
    /// device.
    pub fn measure(
        &self,
        state: &RunState,
        trainer: &mut Trainer<'_>,
        when: When,
    ) -> Result<Option<Measured>> {
        self.measure_set(state, trainer, self.metric_sets[when as usize], true)
    }

    /// Judges the weights after the last step by what was measured; returns whether they are the best so far.
    ///
    /// # Errors
    /// [`TrainError::JudgeUndefined`] if the evaluation rows do not define the metric that decides: no evaluation would.
    pub fn judge(&mut self, state: &mut RunState, measured: Option<Measured>) -> Result<bool> {
        let Some(mut measured) = measured else { return Ok(false) };
        self.check_defined(&measured.metrics)?;
        self.evaluated = Some((state.step, measured.set));
        let weights = measured.weights.take();
        let (better, is_last) = measured.better(&self.best);
        // Without a best one to keep, the averaged weights are the model.
        let judged = if is_last { better } else { &measured.metrics };
        let n_reductions = state.early_stopping.n_reductions;
        self.stopping.record(&mut state.early_stopping, judged.judged_by(self.stopping.metric()));
        // The lowest rate is reduced no further.
        let reduces = matches!(self.plan.config.schedule.shape, ScheduleShape::Plateau { factor, final_fraction, .. }
            if factor < 1.0 && factor.powf(n_reductions as f64) > final_fraction);
        if state.early_stopping.n_reductions > n_reductions && reduces {
            let EarlyStoppingState { best, n_worse, n_reductions } = state.early_stopping;
            let (metric, best) = (self.stopping.metric(), best.unwrap_or(f64::NAN));
            info!(
                "reduction {n_reductions} of the learning rate, after step {}: {metric} has not improved on {best:.6} in {n_worse} \
                 evaluations",
                state.step,
            );
        }
        let is_best = self.best.is_better(state, better);
        if is_best {
            self.best.record(state, better, is_last, weights);
        }
        self.warn_not_finite(state.step, &measured.metrics);
        state.eval = measured.metrics;
        state.last_eval = measured.last.unwrap_or_default();
        Ok(is_best)
    }

    /// Refuses metrics without the one that decides on the best weights or on early stopping. Outputs that are not finite define none
    /// either, and are reported elsewhere.
    fn check_defined(&self, metrics: &EvalMetrics) -> Result<()> {
        let Config { train, checkpoint, .. } = self.plan.config;
        let stops_by = self.stopping.is_used().then_some(&train.early_stop_metric);
        let judges = stops_by
            .map(|judge| ("train.early_stop_metric", judge))
            .into_iter()
            .chain(checkpoint.keep_best.iter().map(|judge| ("checkpoint.keep_best", judge)));
        for (key, judge) in judges {
            let is_undefined = metrics.judged_by(judge).is_none();
            if is_undefined && metrics.get(EvalMetric::Loss).is_some_and(f64::is_finite) {
                let rows = self.plan.data.eval.as_ref();
                let source_name = rows.map_or_else(String::new, |rows| rows.source().to_owned());
                return Err(TrainError::JudgeUndefined { metric: judge.clone(), key, source_name });
            }
        }
        Ok(())
    }

    /// Evaluates after a run's last step, unless the last evaluation was after the same step with the same metrics; returns
    /// whether the weights were judged for the first time and are the best so far.
    ///
    /// # Errors
    /// Same as [`Self::measure`].
    pub fn complete(&mut self, state: &mut RunState, trainer: &mut Trainer<'_>) -> Result<bool> {
        let (step, wanted) = (state.step, self.metric_sets[When::AtEnd as usize]);
        match self.evaluated {
            Some(evaluated) if evaluated == (step, wanted) => Ok(false),
            // The weights were judged already.
            Some((evaluated, _)) if evaluated == step => {
                if let Some(measured) = self.measure_set(state, trainer, wanted, false)? {
                    state.eval = measured.metrics;
                    state.last_eval = measured.last.unwrap_or_default();
                    self.evaluated = Some((step, wanted));
                }
                Ok(false)
            }
            _ => {
                let measured = self.measure(state, trainer, When::AtEnd)?;
                self.judge(state, measured)
            }
        }
    }

    /// Measures the metrics of the last evaluation by the best weights too, where fewer are known of these. Replaces the trainer's weights, which
    /// must have been saved. Collective.
    ///
    /// # Errors
    /// Same as [`Self::measure`].
    pub fn complete_best(&self, state: &mut RunState, trainer: &mut Trainer<'_>) -> Result<()> {
        let [during, at_end] = self.metric_sets;
        // Checkpoints hold neither metrics of heads nor tables.
        let lacks_parts = |best: &EvalMetrics| {
            best.heads().is_empty() && !state.eval.heads().is_empty()
                || best.tables().is_none() && state.eval.tables().is_some()
        };
        let is_due = self
            .best(state)
            .is_some_and(|best| best.step != state.step && (during != at_end || lacks_parts(&best.eval)));
        let Some(rows) = self.plan.data.eval.as_ref().filter(|_| is_due) else {
            return Ok(());
        };
        let own = self.best.weights(state).filter(|_| self.plan.world.rank().0 == 0);
        let own = own.map_or(&[][..], |weights| weights.as_slice());
        let shared = self.plan.world.group().all_gather_bytes(bytemuck::cast_slice(own))?;
        let weights: Vec<f32> = bytemuck::pod_collect_to_vec(&shared[0]);
        let request = self.request(at_end, rows);
        let (model, loss) = trainer.model_and_loss();
        model.set_weights_and_statistics(&weights)?;
        match self.evaluate(model, loss, &request, rows) {
            Ok(metrics) => state.best.iter_mut().for_each(|best| best.eval = metrics.clone()),
            // The run is complete, and only these figures are missing.
            Err(TrainError::EvaluationStopped) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Measures the metrics of all training rows, if they are requested.
    ///
    /// # Errors
    /// Same as [`Self::measure`].
    pub fn training_rows(&self, trainer: &mut Trainer<'_>) -> Result<TrainMetrics> {
        if !self.plan.config.train.train_metrics {
            return Ok(TrainMetrics::default());
        }
        let rows = &self.plan.data.plain;
        let request = self.request(self.metric_sets[When::During as usize], rows);
        let measure = |model: &mut Network, loss: &LossHead| self.evaluate(model, loss, &request, rows);
        let EvalPlan { statistics, signals, .. } = &self.plan;
        Ok(TrainMetrics(trainer.with_averaged_over(statistics.as_ref(), Some(signals), measure)?))
    }

    /// Reports that the run stops early, where it does.
    pub fn note_early_stop(&self, state: &RunState) {
        if self.stops(state) {
            let (metric, progress) = (self.stopping.metric(), &state.early_stopping);
            info!(
                "early stopping: {metric} has not improved on {:.6} in {} evaluations",
                progress.best.unwrap_or(f64::NAN),
                progress.n_worse,
            );
        }
    }

    /// Measures these metrics on the evaluation rows, if there are some. Where `keeps_best` is set and they are the best so far,
    /// also copies the evaluated weights, on ranks of a run that keep them.
    fn measure_set(
        &self,
        state: &RunState,
        trainer: &mut Trainer<'_>,
        set: MetricSet,
        keeps_best: bool,
    ) -> Result<Option<Measured>> {
        let Some(rows) = &self.plan.data.eval else { return Ok(None) };
        let request = self.request(set, rows);
        let is_kept = keeps_best && state.keeps_best_weights && self.keeps_weights(trainer);
        let EvalPlan { statistics, signals, .. } = &self.plan;
        let mut measured =
            trainer.with_averaged_over(statistics.as_ref(), Some(signals), |model, loss| {
                let metrics = self.evaluate(model, loss, &request, rows)?;
                let is_best = is_kept && self.best.is_better(state, &metrics);
                let weights = is_best.then(|| best_weights::to_host(model)).transpose()?;
                Ok(Measured { set, metrics, last: None, weights })
            })?;
        let Config { train, optimizer, .. } = self.plan.config;
        if optimizer.ema_decay > 0.0 && train.ema_eval == EmaEval::Both {
            let (model, loss) = trainer.model_and_loss();
            measured.last = Some(self.evaluate(model, loss, &request, rows)?);
            let (better, is_last) = measured.better(&self.best);
            if is_kept && is_last && self.best.is_better(state, better) {
                // Before the copy of the last ones: there is memory for one.
                measured.weights = None;
                measured.weights = Some(best_weights::to_host(model)?);
            }
        }
        Ok(Some(measured))
    }

    /// Whether this rank keeps the best weights: rank 0 does, and rank 1 where it could save after the loss of that one.
    fn keeps_weights(&self, trainer: &Trainer<'_>) -> bool {
        let saves = self.plan.config.watchdog.save_limit().is_some() && trainer.survives_loss();
        self.plan.world.rank().0 <= usize::from(saves)
    }

    fn request(&self, set: MetricSet, rows: &Arc<dyn Dataset>) -> MetricRequest {
        let names = self.plan.output_names.clone();
        MetricRequest { names, ..MetricRequest::new(self.plan.config.data.task, set) }
            .in_units_of(&self.plan.config.loss, rows.layout())
            .with_class_use()
    }

    fn evaluate(
        &self,
        model: &mut Network,
        loss: &LossHead,
        request: &MetricRequest,
        rows: &Arc<dyn Dataset>,
    ) -> Result<EvalMetrics> {
        let EvalPlan { world, partition, loading, signals, .. } = &self.plan;
        let until = Until { world, signals: Some(signals) };
        evaluate_until(until, model, loss, request, rows, *partition, loading)
    }

    fn warn_not_finite(&mut self, step: u64, metrics: &EvalMetrics) {
        if let Some((metric, value)) = metrics.not_finite().filter(|_| !self.warned_not_finite) {
            self.warned_not_finite = true;
            let message = format!(
                "{metric} is {value} after step {step}: this evaluation counts as no better than any other\n\
                 hint: outputs may overflow: {AGAINST_DIVERGENCE}"
            );
            warn_of_all_ranks(self.plan.world.rank().0, &message);
        }
    }
}

/// Whether `step` is one of those after which weights are evaluated within an epoch.
fn is_at_interval(step: u64, every: u64) -> bool {
    every > 0 && step > 0 && step.is_multiple_of(every)
}

/// Whether the weights of a saved run were evaluated before: after an epoch, or after `every` steps, unless a signal or a lost rank stopped
/// that.
fn was_evaluated(state: &RunState, every: u64) -> bool {
    let ends_epoch = state.cursor > 0 && state.rows_of_epoch() == 0;
    !state.evaluation_is_due && (ends_epoch || is_at_interval(state.step, every))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that f16 skips keeps the number of the one before, and must not evaluate it again in a resumed run either.
    #[test]
    fn a_saved_step_was_evaluated_unless_that_is_due() {
        let at = |step, cursor| RunState { step, cursor, n_rows: 100, ..RunState::default() };
        let was = |state: &RunState| [0, 4].map(|every| was_evaluated(state, every));
        assert_eq!(was(&at(0, 0)), [false, false], "a new run");
        assert_eq!(was(&at(8, 40)), [false, true]);
        assert_eq!(was(&at(9, 45)), [false, false]);
        assert_eq!(was(&at(9, 100)), [true, true], "an epoch has ended");
        for cursor in [40, 100] {
            let stopped = RunState { evaluation_is_due: true, ..at(8, cursor) };
            assert_eq!(was(&stopped), [false, false], "a signal stopped the evaluation");
        }
    }
}
