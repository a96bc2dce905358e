//! The metrics of an evaluation, as a map by name.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::config::EvalMetric;

/// Exact values over all evaluation rows, in the order of [`EvalMetric::ALL`]. A metric that was not measured is absent.
///
/// Serialised as a map from names such as `eval_loss`; a value that is not finite becomes `null`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EvalMetrics {
    values: [Option<f64>; EvalMetric::ALL.len()],
}

impl EvalMetrics {
    /// Returns the value of a metric, if it was measured.
    pub fn get(&self, metric: EvalMetric) -> Option<f64> {
        self.values[metric as usize]
    }

    /// Sets or removes the value of a metric.
    #[must_use]
    pub fn with(mut self, metric: EvalMetric, value: impl Into<Option<f64>>) -> Self {
        self.values[metric as usize] = value.into();
        self
    }

    /// Iterates over the metrics that were measured.
    pub fn iter(&self) -> impl Iterator<Item = (EvalMetric, f64)> {
        EvalMetric::ALL.iter().copied().zip(self.values).filter_map(|(metric, value)| Some((metric, value?)))
    }
}

impl FromIterator<(EvalMetric, f64)> for EvalMetrics {
    fn from_iter<I: IntoIterator<Item = (EvalMetric, f64)>>(metrics: I) -> Self {
        metrics.into_iter().fold(EvalMetrics::default(), |all, (metric, value)| all.with(metric, value))
    }
}

impl Serialize for EvalMetrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (metric, value) in self.iter() {
            map.serialize_entry(metric.name(), &value)?;
        }
        map.end()
    }
}
