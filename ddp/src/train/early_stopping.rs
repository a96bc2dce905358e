//! When evaluations stop getting better: for early stopping, and for which checkpoint is the best.

use crate::checkpoint::EarlyStoppingState;
use crate::config::EvalMetric;

/// Watches one metric of the evaluations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStopping {
    metric: EvalMetric,
    /// 0 for never.
    patience: u64,
    min_delta: f64,
    progress: EarlyStoppingState,
}

/// What an evaluation meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the best so far, by more than `min_delta`.
    Better,
    /// It is not, and training goes on.
    Worse,
    /// It is not, and patience is at its end: training stops.
    Stop,
}

impl EarlyStopping {
    /// Stops after `patience` evaluations in a row of which none is better than the best before them by more than
    /// `min_delta`; 0 never stops.
    pub fn new(metric: EvalMetric, patience: u64, min_delta: f64) -> Self {
        EarlyStopping { metric, patience, min_delta, progress: EarlyStoppingState::default() }
    }

    /// Goes on from what a checkpoint has kept.
    #[must_use]
    pub fn resumed(self, progress: EarlyStoppingState) -> Self {
        EarlyStopping { progress, ..self }
    }

    /// What it looks at.
    pub fn metric(&self) -> EvalMetric {
        self.metric
    }

    /// What a checkpoint must keep.
    pub fn progress(&self) -> EarlyStoppingState {
        self.progress
    }

    /// Whether patience is at its end.
    pub fn is_over(&self) -> bool {
        self.patience > 0 && self.progress.n_worse >= self.patience
    }

    /// Takes the metric's value of the next evaluation. NaN, infinity, and a metric that it didn't give are never better.
    ///
    /// Source: `torch`'s `ReduceLROnPlateau` with `threshold_mode="abs"` counts alike; the first evaluation is always the
    /// best.
    pub fn evaluated(&mut self, value: Option<f64>) -> Verdict {
        let value = value.unwrap_or(f64::NAN);
        let EarlyStoppingState { best, n_worse } = &mut self.progress;
        let gain = |best: f64| if self.metric.grows() { value - best } else { best - value };
        if value.is_finite() && best.is_none_or(|best| gain(best) > self.min_delta) {
            *best = Some(value);
            *n_worse = 0;
            return Verdict::Better;
        }
        *n_worse += 1;
        if self.is_over() { Verdict::Stop } else { Verdict::Worse }
    }
}

#[cfg(test)]
mod tests {
    use Verdict::{Better, Stop, Worse};

    use super::*;

    fn verdicts(mut stopping: EarlyStopping, values: &[f64]) -> Vec<Verdict> {
        values.iter().map(|value| stopping.evaluated(Some(*value))).collect()
    }

    #[test]
    fn a_loss_must_fall_and_an_accuracy_rise() {
        let loss = EarlyStopping::new(EvalMetric::Loss, 2, 0.0);
        assert_eq!(
            verdicts(loss, &[1.0, 0.5, 0.5, 0.4, 0.6, 0.7]),
            [Better, Better, Worse, Better, Worse, Stop]
        );
        for metric in [EvalMetric::Accuracy, EvalMetric::R2] {
            let stopping = EarlyStopping::new(metric, 2, 0.0);
            assert_eq!(verdicts(stopping, &[0.1, 0.2, 0.2, 0.15]), [Better, Better, Worse, Stop]);
        }
    }

    #[test]
    fn an_improvement_must_exceed_min_delta_over_the_best() {
        let stopping = EarlyStopping::new(EvalMetric::Loss, 3, 0.25);
        // 0.75 is exactly min_delta better than 1; 0.5 is more than that better, though not than the one before.
        assert_eq!(
            verdicts(stopping, &[1.0, 0.75, 0.5, 0.375, 0.26, 0.25]),
            [Better, Worse, Better, Worse, Worse, Stop]
        );
    }

    #[test]
    fn what_is_no_number_is_never_better() {
        let mut stopping = EarlyStopping::new(EvalMetric::Loss, 2, 0.0);
        assert_eq!(stopping.evaluated(Some(f64::NAN)), Worse);
        assert_eq!(stopping.progress(), EarlyStoppingState { best: None, n_worse: 1 });
        assert_eq!(stopping.evaluated(Some(3.0)), Better);
        assert_eq!(stopping.evaluated(None), Worse);
        // It would be better, but no checkpoint could keep it.
        assert_eq!(stopping.evaluated(Some(f64::NEG_INFINITY)), Stop);
        assert_eq!(stopping.progress(), EarlyStoppingState { best: Some(3.0), n_worse: 2 });
    }

    #[test]
    fn without_patience_it_only_tells_the_best() {
        let stopping = EarlyStopping::new(EvalMetric::Loss, 0, 0.0);
        assert!(verdicts(stopping, &[1.0; 100])[1..].iter().all(|verdict| *verdict == Worse));
    }

    #[test]
    fn resumes_where_it_was() {
        let new = EarlyStopping::new(EvalMetric::Loss, 3, 0.0);
        let values = [1.0, 0.5, 0.7, f64::NAN, 0.6];
        let whole = verdicts(new, &values);
        for cut in 0..=values.len() {
            let mut first = new;
            let mut seen: Vec<_> = values[..cut].iter().map(|value| first.evaluated(Some(*value))).collect();
            let kept = serde_json::to_string(&first.progress()).unwrap();
            let second = new.resumed(serde_json::from_str(&kept).unwrap());
            seen.extend(verdicts(second, &values[cut..]));
            assert_eq!(seen, whole, "cut after {cut}");
        }
        assert_eq!(*whole.last().unwrap(), Stop);
    }
}
