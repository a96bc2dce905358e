//! Weights of the best evaluation so far, in host memory of rank 0: the run's model at the end.
//!
//! ```
//! use ddp::checkpoint::RunState;
//! use ddp::train::{EvalMetric, EvalMetrics};
//! use ddp::train::best_weights::BestWeights;
//!
//! let mut state = RunState { step: 3, keeps_best_weights: true, ..RunState::default() };
//! let mut best = BestWeights::new(Some(EvalMetric::Accuracy.into()), None);
//! let measured = |accuracy: f64| EvalMetrics::default().with(EvalMetric::Accuracy, accuracy);
//! assert!(best.is_better(&state, &measured(0.5)));
//! best.record(&mut state, &measured(0.5), false, Some(vec![1.0, 2.0]));
//!
//! assert!(!best.is_better(&state, &measured(0.25)) && best.is_better(&state, &measured(0.75)));
//! assert_eq!(best.best(&state).map(|best| best.step), Some(3));
//! ```

use std::sync::Arc;

use crate::checkpoint::{Best, RunState};
use crate::config::JudgeMetric;
use crate::model::Network;
use crate::report::EvalMetrics;
use crate::train::error::Result;

/// Judges evaluations by one metric and keeps the weights of the best.
#[derive(Debug)]
pub struct BestWeights {
    /// None where nothing is to be kept.
    metric: Option<JudgeMetric>,
    /// On rank 0, once there is a best evaluation; shared with a checkpoint that is being written.
    weights: Option<Arc<Vec<f32>>>,
}

impl BestWeights {
    /// Judges by `metric`; a resumed run has the weights of its best evaluation so far, on rank 0.
    pub fn new(metric: Option<JudgeMetric>, weights: Option<Vec<f32>>) -> Self {
        BestWeights { metric, weights: weights.map(Arc::new) }
    }

    /// Whether the first evaluation is better than the second; a missing value and one that is not finite are never better.
    pub fn is_first_better(&self, first: &EvalMetrics, second: &EvalMetrics) -> bool {
        let Some(judge) = &self.metric else { return false };
        let [first, second] = [first, second].map(|of| of.judged_by(judge).filter(|value| value.is_finite()));
        match (first, second) {
            (Some(first), Some(second)) => {
                if judge.metric.grows() {
                    first > second
                } else {
                    first < second
                }
            }
            (first, None) => first.is_some(),
            (None, Some(_)) => false,
        }
    }

    /// Whether an evaluation is better than the run's best so far. NaN, infinity and a missing value are never better.
    pub fn is_better(&self, state: &RunState, metrics: &EvalMetrics) -> bool {
        let Some(judge) = &self.metric else { return false };
        let best = state.best.as_ref().filter(|best| best.metric == judge.to_string()).map(|best| best.value);
        let Some(value) = metrics.judged_by(judge).filter(|value| value.is_finite()) else { return false };
        best.is_none_or(|best| if judge.metric.grows() { value > best } else { value < best })
    }

    /// Makes this evaluation the run's best. `weights` are those that were evaluated, on rank 0 of a run that keeps them; `is_last` says
    /// that they are those after the step, where an average is kept too.
    pub fn record(
        &mut self,
        state: &mut RunState,
        metrics: &EvalMetrics,
        is_last: bool,
        weights: Option<Vec<f32>>,
    ) {
        let Some((metric, value)) =
            self.metric.as_ref().and_then(|judge| Some((judge, metrics.judged_by(judge)?)))
        else {
            return;
        };
        state.best = Some(Best {
            metric: metric.to_string(),
            value,
            step: state.step,
            epoch: state.epoch_under_way(),
            eval: metrics.clone(),
            class_use: metrics.class_use().cloned(),
            is_last,
        });
        self.weights = weights.map(Arc::new);
    }

    /// The best evaluation, if the run keeps its weights.
    pub fn best<'a>(&self, state: &'a RunState) -> Option<&'a Best> {
        let metric = self.metric.as_ref()?.to_string();
        state.best.as_ref().filter(|best| state.keeps_best_weights && best.metric == metric)
    }

    /// Its weights on rank 0.
    pub fn weights(&self, state: &RunState) -> Option<&Arc<Vec<f32>>> {
        self.best(state).and(self.weights.as_ref())
    }

    /// The weights for a checkpoint's file of its own: none if they are the checkpoint's, which are `current` unless an average
    /// was evaluated.
    pub fn for_checkpoint(&self, state: &RunState, is_averaged: bool) -> Option<Arc<Vec<f32>>> {
        if self.is_apart(state, is_averaged) { self.weights.clone() } else { None }
    }

    /// Whether a checkpoint has a file of its own for the best weights, on any rank.
    pub fn is_apart(&self, state: &RunState, is_averaged: bool) -> bool {
        self.best(state).is_some_and(|best| best.step != state.step || is_averaged)
    }
}

/// Copies the weights, followed by the statistics, to the host.
pub(crate) fn to_host(model: &Network) -> Result<Vec<f32>> {
    Ok(model.weights_and_statistics()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EvalMetric;

    fn metrics(loss: f64, accuracy: f64) -> EvalMetrics {
        [(EvalMetric::Loss, loss), (EvalMetric::Accuracy, accuracy)].into_iter().collect()
    }

    #[test]
    fn only_a_better_number_is_better() {
        let mut state = RunState { step: 3, keeps_best_weights: true, ..RunState::default() };
        let mut best = BestWeights::new(Some(EvalMetric::Accuracy.into()), None);
        assert!(!best.is_better(&state, &metrics(1.0, f64::NAN)));
        assert!(best.is_better(&state, &metrics(f64::NAN, 0.5)));
        best.record(&mut state, &metrics(f64::NAN, 0.5), false, Some(vec![1.0]));
        for accuracy in [0.5, 0.25, f64::NAN, f64::INFINITY] {
            assert!(!best.is_better(&state, &metrics(0.0, accuracy)), "{accuracy}");
        }
        assert!(best.is_better(&state, &metrics(2.0, 0.75)));
        // A run that is judged by another metric from now on has no best yet.
        let other = BestWeights::new(Some(EvalMetric::Loss.into()), None);
        assert!(other.best(&state).is_none() && other.is_better(&state, &metrics(9.0, 0.0)));
        assert!(!BestWeights::new(None, None).is_better(&state, &metrics(0.0, 1.0)));
    }

    #[test]
    fn a_checkpoint_holds_weights_once() {
        let mut state = RunState { step: 3, keeps_best_weights: true, ..RunState::default() };
        let mut best = BestWeights::new(Some(EvalMetric::Loss.into()), None);
        assert_eq!(best.for_checkpoint(&state, false), None);
        best.record(&mut state, &metrics(1.0, 0.0), false, Some(vec![1.0]));
        assert_eq!(best.for_checkpoint(&state, false), None);
        assert_eq!(best.for_checkpoint(&state, true).as_deref(), Some(&vec![1.0]));
        state.step = 4;
        assert_eq!(best.for_checkpoint(&state, false).as_deref(), Some(&vec![1.0]));
        // Runs of earlier versions keep none.
        state.keeps_best_weights = false;
        assert_eq!((best.for_checkpoint(&state, false), best.weights(&state)), (None, None));
    }
}
