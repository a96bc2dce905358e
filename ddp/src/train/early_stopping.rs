//! Early stopping: ends a run whose evaluations no longer improve, and counts the reductions of a learning rate that follows them.
//!
//! ```
//! use ddp::checkpoint::EarlyStoppingState;
//! use ddp::train::EvalMetric;
//! use ddp::train::early_stopping::EarlyStopping;
//!
//! let (stopping, mut state) = (EarlyStopping::new(EvalMetric::Loss, 2, 0.0), EarlyStoppingState::default());
//! let is_best = [1.0, 0.5, 0.6].map(|loss| stopping.record(&mut state, Some(loss)));
//! assert_eq!(is_best, [true, true, false]);
//! assert!(!stopping.is_over(&state));
//! stopping.record(&mut state, Some(0.7));
//! assert!(stopping.is_over(&state), "two evaluations in a row were not better");
//! ```

use crate::checkpoint::EarlyStoppingState;
use crate::config::{Config, JudgeMetric, ScheduleShape};

/// Judges the evaluations of a run by one metric; how far it has come is in the run's state.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyStopping {
    metric: JudgeMetric,
    /// Evaluations without improvement before training stops; 0 never stops.
    patience: u64,
    min_delta: f64,
    /// Evaluations without improvement before the learning rate is reduced; 0 never reduces it.
    plateau: u64,
}

impl EarlyStopping {
    /// Stops after `patience` evaluations in a row of which none is better than the best before them by more than
    /// `min_delta`; 0 never stops.
    pub fn new(metric: impl Into<JudgeMetric>, patience: u64, min_delta: f64) -> Self {
        EarlyStopping { metric: metric.into(), patience, min_delta, plateau: 0 }
    }

    /// Judges as the config of a run says.
    pub fn of(Config { train, schedule, .. }: &Config) -> Self {
        let plateau = match schedule.shape {
            ScheduleShape::Plateau { patience, .. } => patience,
            _ => 0,
        };
        let new =
            Self::new(train.early_stop_metric.clone(), train.early_stop_patience, train.early_stop_min_delta);
        EarlyStopping { plateau, ..new }
    }

    /// Whether the run depends on the metric.
    pub fn is_used(&self) -> bool {
        self.patience > 0 || self.plateau > 0
    }

    /// The tracked metric.
    pub fn metric(&self) -> &JudgeMetric {
        &self.metric
    }

    /// Whether patience is exhausted, so that training stops.
    pub fn is_over(&self, state: &EarlyStoppingState) -> bool {
        self.patience > 0 && state.n_worse >= self.patience
    }

    /// Records the metric's value of the next evaluation; returns whether it is the best so far by more than `min_delta`.
    /// NaN, infinity and a missing value are never better. Counts a reduction of the learning rate after as many evaluations in a row
    /// that are not better as the schedule waits for.
    ///
    /// Source: `torch`'s `ReduceLROnPlateau` with `threshold_mode="abs"` counts alike; the first evaluation is always the
    /// best.
    pub fn record(&self, state: &mut EarlyStoppingState, value: Option<f64>) -> bool {
        let value = value.unwrap_or(f64::NAN);
        let EarlyStoppingState { best, n_worse, n_reductions } = state;
        let gain = |best: f64| if self.metric.metric.grows() { value - best } else { best - value };
        let is_best = value.is_finite() && best.is_none_or(|best| gain(best) > self.min_delta);
        if is_best {
            (*best, *n_worse) = (Some(value), 0);
        } else {
            *n_worse += 1;
            *n_reductions += u64::from(self.plateau > 0 && n_worse.is_multiple_of(self.plateau));
        }
        is_best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EvalMetric;

    /// Whether an evaluation is the best so far, and whether training stops after it.
    type Outcome = (bool, bool);
    const BETTER: Outcome = (true, false);
    const WORSE: Outcome = (false, false);
    const STOP: Outcome = (false, true);

    fn outcomes(stopping: &EarlyStopping, values: &[f64]) -> Vec<Outcome> {
        let mut state = EarlyStoppingState::default();
        let record = |value: &f64| (stopping.record(&mut state, Some(*value)), stopping.is_over(&state));
        values.iter().map(record).collect()
    }

    #[test]
    fn a_loss_must_fall_and_an_accuracy_rise() {
        let loss = EarlyStopping::new(EvalMetric::Loss, 2, 0.0);
        assert_eq!(
            outcomes(&loss, &[1.0, 0.5, 0.5, 0.4, 0.6, 0.7]),
            [BETTER, BETTER, WORSE, BETTER, WORSE, STOP]
        );
        for metric in [EvalMetric::Accuracy, EvalMetric::R2] {
            let stopping = EarlyStopping::new(metric, 2, 0.0);
            assert_eq!(outcomes(&stopping, &[0.1, 0.2, 0.2, 0.15]), [BETTER, BETTER, WORSE, STOP]);
        }
    }

    #[test]
    fn an_improvement_must_exceed_min_delta_over_the_best() {
        let stopping = EarlyStopping::new(EvalMetric::Loss, 3, 0.25);
        // 0.75 is exactly min_delta better than 1; 0.5 is more than that better, though not than the one before.
        assert_eq!(
            outcomes(&stopping, &[1.0, 0.75, 0.5, 0.375, 0.26, 0.25]),
            [BETTER, WORSE, BETTER, WORSE, WORSE, STOP]
        );
    }

    #[test]
    fn what_is_no_number_is_never_better() {
        let (stopping, mut state) =
            (EarlyStopping::new(EvalMetric::Loss, 2, 0.0), EarlyStoppingState::default());
        let mut record = |value| {
            let is_best = stopping.record(&mut state, value);
            ((is_best, stopping.is_over(&state)), state)
        };
        assert_eq!(
            record(Some(f64::NAN)),
            (WORSE, EarlyStoppingState { n_worse: 1, ..EarlyStoppingState::default() })
        );
        assert_eq!(record(Some(3.0)).0, BETTER);
        assert_eq!(record(None).0, WORSE);
        // It would be better, but no checkpoint could keep it.
        let want = EarlyStoppingState { best: Some(3.0), n_worse: 2, n_reductions: 0 };
        assert_eq!(record(Some(f64::NEG_INFINITY)), (STOP, want));
    }

    #[test]
    fn a_plateau_counts_each_time_its_patience_is_over() {
        let stopping = EarlyStopping { plateau: 2, ..EarlyStopping::new(EvalMetric::Loss, 0, 0.0) };
        let mut state = EarlyStoppingState::default();
        let mut reductions = |value| {
            stopping.record(&mut state, Some(value));
            state.n_reductions
        };
        let values = [1.0, 1.0, 1.5, 2.0, 1.0, 0.5, 0.6, 0.4, 0.4, f64::NAN];
        assert_eq!(values.map(&mut reductions), [0, 0, 1, 1, 2, 2, 2, 2, 2, 3]);
    }

    #[test]
    fn without_patience_it_only_tracks_the_best() {
        let stopping = EarlyStopping::new(EvalMetric::Loss, 0, 0.0);
        assert!(outcomes(&stopping, &[1.0; 100])[1..].iter().all(|outcome| *outcome == WORSE));
    }
}
