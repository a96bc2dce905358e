//! Early stopping: ends a run whose evaluations no longer improve.
//!
//! ```
//! use ddp::config::EvalMetric;
//! use ddp::train::early_stopping::EarlyStopping;
//!
//! let mut stopping = EarlyStopping::new(EvalMetric::Loss, 2, 0.0);
//! let is_best = [1.0, 0.5, 0.6].map(|loss| stopping.record(Some(loss)));
//! assert_eq!(is_best, [true, true, false]);
//! assert!(!stopping.is_over());
//! stopping.record(Some(0.7));
//! assert!(stopping.is_over(), "two evaluations in a row were not better");
//! ```

use crate::checkpoint::EarlyStoppingState;
use crate::config::JudgeMetric;

/// Tracks one metric of the evaluations.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyStopping {
    metric: JudgeMetric,
    /// Evaluations without improvement before training stops; 0 never stops.
    patience: u64,
    min_delta: f64,
    progress: EarlyStoppingState,
}

impl EarlyStopping {
    /// Stops after `patience` evaluations in a row of which none is better than the best before them by more than
    /// `min_delta`; 0 never stops.
    pub fn new(metric: impl Into<JudgeMetric>, patience: u64, min_delta: f64) -> Self {
        EarlyStopping { metric: metric.into(), patience, min_delta, progress: EarlyStoppingState::default() }
    }

    /// Resumes from a checkpoint's state.
    #[must_use]
    pub fn resumed(self, progress: EarlyStoppingState) -> Self {
        EarlyStopping { progress, ..self }
    }

    /// The tracked metric.
    pub fn metric(&self) -> &JudgeMetric {
        &self.metric
    }

    /// The state for a checkpoint.
    pub fn progress(&self) -> EarlyStoppingState {
        self.progress
    }

    /// Whether patience is exhausted, so that training stops.
    pub fn is_over(&self) -> bool {
        self.patience > 0 && self.progress.n_worse >= self.patience
    }

    /// Records the metric's value of the next evaluation; returns whether it is the best so far by more than `min_delta`.
    /// NaN, infinity and a missing value are never better.
    ///
    /// Source: `torch`'s `ReduceLROnPlateau` with `threshold_mode="abs"` counts alike; the first evaluation is always the
    /// best.
    pub fn record(&mut self, value: Option<f64>) -> bool {
        let value = value.unwrap_or(f64::NAN);
        let EarlyStoppingState { best, n_worse } = &mut self.progress;
        let gain = |best: f64| if self.metric.metric.grows() { value - best } else { best - value };
        let is_best = value.is_finite() && best.is_none_or(|best| gain(best) > self.min_delta);
        if is_best {
            (*best, *n_worse) = (Some(value), 0);
        } else {
            *n_worse += 1;
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

    fn record(stopping: &mut EarlyStopping, value: Option<f64>) -> Outcome {
        (stopping.record(value), stopping.is_over())
    }

    fn outcomes(mut stopping: EarlyStopping, values: &[f64]) -> Vec<Outcome> {
        values.iter().map(|value| record(&mut stopping, Some(*value))).collect()
    }

    #[test]
    fn a_loss_must_fall_and_an_accuracy_rise() {
        let loss = EarlyStopping::new(EvalMetric::Loss, 2, 0.0);
        assert_eq!(
            outcomes(loss, &[1.0, 0.5, 0.5, 0.4, 0.6, 0.7]),
            [BETTER, BETTER, WORSE, BETTER, WORSE, STOP]
        );
        for metric in [EvalMetric::Accuracy, EvalMetric::R2] {
            let stopping = EarlyStopping::new(metric, 2, 0.0);
            assert_eq!(outcomes(stopping, &[0.1, 0.2, 0.2, 0.15]), [BETTER, BETTER, WORSE, STOP]);
        }
    }

    #[test]
    fn an_improvement_must_exceed_min_delta_over_the_best() {
        let stopping = EarlyStopping::new(EvalMetric::Loss, 3, 0.25);
        // 0.75 is exactly min_delta better than 1; 0.5 is more than that better, though not than the one before.
        assert_eq!(
            outcomes(stopping, &[1.0, 0.75, 0.5, 0.375, 0.26, 0.25]),
            [BETTER, WORSE, BETTER, WORSE, WORSE, STOP]
        );
    }

    #[test]
    fn what_is_no_number_is_never_better() {
        let mut stopping = EarlyStopping::new(EvalMetric::Loss, 2, 0.0);
        assert_eq!(record(&mut stopping, Some(f64::NAN)), WORSE);
        assert_eq!(stopping.progress(), EarlyStoppingState { best: None, n_worse: 1 });
        assert_eq!(record(&mut stopping, Some(3.0)), BETTER);
        assert_eq!(record(&mut stopping, None), WORSE);
        // It would be better, but no checkpoint could keep it.
        assert_eq!(record(&mut stopping, Some(f64::NEG_INFINITY)), STOP);
        assert_eq!(stopping.progress(), EarlyStoppingState { best: Some(3.0), n_worse: 2 });
    }

    #[test]
    fn without_patience_it_only_tracks_the_best() {
        let stopping = EarlyStopping::new(EvalMetric::Loss, 0, 0.0);
        assert!(outcomes(stopping, &[1.0; 100])[1..].iter().all(|outcome| *outcome == WORSE));
    }

    #[test]
    fn resumes_where_it_was() {
        let new = EarlyStopping::new(EvalMetric::Loss, 3, 0.0);
        let values = [1.0, 0.5, 0.7, f64::NAN, 0.6];
        let whole = outcomes(new.clone(), &values);
        for split in 0..=values.len() {
            let mut first = new.clone();
            let mut seen: Vec<_> =
                values[..split].iter().map(|value| record(&mut first, Some(*value))).collect();
            let kept = serde_json::to_string(&first.progress()).unwrap();
            let second = new.clone().resumed(serde_json::from_str(&kept).unwrap());
            seen.extend(outcomes(second, &values[split..]));
            assert_eq!(seen, whole, "resumed after {split}");
        }
        assert_eq!(*whole.last().unwrap(), STOP);
    }
}
