//! Calibration: the temperature with which the probabilities of a classifier fit rows that it was not trained on.
//!
//! The logits are divided by the temperature that minimizes the log loss; classes and accuracy stay as they are. The temperature
//! becomes part of the output layer, so whatever reads the model applies it.
//!
//! Source: arXiv:1706.04599.
//!
//! ```
//! use ddp::nn::{ModelSpec, ParamLayout};
//! use ddp::ops::Activation;
//! use ddp::train::calibration::with_temperature;
//!
//! let layout = ParamLayout::new(&ModelSpec::plain(&[3, 2], Activation::Relu));
//! let weights = vec![1.0; layout.flat_len()];
//! let weights = with_temperature(&layout, 0, weights, 2.0);
//! let bias = layout.find("layers.0.bias").expect("the output layer has one");
//! assert_eq!(weights[bias.range()], [0.5, 0.5]);
//! ```

use std::sync::Arc;

use ddp_comm::World;
use ddp_kernels::{Device, Tensor};

use crate::config::{EvalMetric, MetricSet};
use crate::data::Dataset;
use crate::data::loader::LoaderOptions;
use crate::data::order::partition::EvalPartition;
use crate::model::{LossHead, Network, ParamLayout};
use crate::report::EvalMetrics;
use crate::train::error::Result;
use crate::train::evaluate::evaluate;
use crate::train::metrics::request::MetricRequest;

/// Temperatures that are considered: from 1/20 to 20.
const MAX_TEMPERATURE: f64 = 20.0;
/// Width of the interval of ln T at which the search ends.
const TOLERANCE: f64 = 1e-3;

/// A temperature and the metrics without and with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Divisor of the logits; 1 without a fit.
    pub temperature: f64,
    /// Accuracy, log loss and ECE of the model as it was.
    pub before: EvalMetrics,
    /// The same with the temperature.
    pub after: EvalMetrics,
    /// Why no temperature fits these rows.
    pub no_fit: Option<NoFit>,
}

/// Why no temperature fits the rows of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NoFit {
    /// The log loss falls with the temperature without end.
    #[error(
        "the model is right on all rows, so their log loss falls the more the surer it is: a fit needs rows on which it is wrong"
    )]
    AllRight,
    /// The search ended at the lowest or highest temperature.
    #[error(
        "the log loss is lowest at the limit of the search, temperature {0}: these rows are too few, or the model knows too little about them"
    )]
    AtLimit(f64),
    /// The model fits the rows as it is, to within the interval at which the search ends.
    #[error("no temperature makes the log loss smaller")]
    NoneIsBetter,
    /// The log loss of the model as it was is infinite or not a number.
    #[error("the log loss of the model is not a finite number")]
    NotFinite,
}

/// Rows of a calibration, as an evaluation reads them.
#[derive(Debug)]
pub struct CalibrationRows<'a> {
    /// Rows that the model was not trained on.
    pub rows: &'a Arc<dyn Dataset>,
    /// Partition over the ranks.
    pub partition: EvalPartition,
    /// Options for loading them.
    pub loading: &'a LoaderOptions,
}

/// Fits the temperature of a classifier whose output layer is `layers.{output_layer}`, by a golden-section search; each of its steps is
/// an evaluation. Leaves the model with the temperature. A minimum at the limit of the search is no fit. Collective.
///
/// # Errors
/// See [`evaluate`].
pub fn calibrate(
    world: &World,
    model: &mut Network,
    loss: &LossHead,
    request: &MetricRequest,
    rows: &CalibrationRows<'_>,
    output_layer: usize,
) -> Result<Calibration> {
    let metrics = [EvalMetric::Accuracy, EvalMetric::LogLoss, EvalMetric::Ece];
    let metrics = metrics.into_iter().fold(MetricSet::default(), MetricSet::with);
    let request = request.clone().with_metrics(metrics);
    let flat = model.weights().to_vec::<f32>()?;
    let layout = model.layout().clone();
    let mut measure = |temperature: f64| -> Result<EvalMetrics> {
        let scaled = with_temperature(&layout, output_layer, flat.clone(), temperature);
        model.set_weights(Tensor::from_slice(&scaled, &[scaled.len()], Device::Cpu)?.view())?;
        evaluate(world, model, loss, &request, rows.rows, rows.partition, rows.loading)
    };
    let before = measure(1.0)?;
    let log_loss = |metrics: &EvalMetrics| metrics.get(EvalMetric::LogLoss).unwrap_or(f64::INFINITY);
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (-MAX_TEMPERATURE.ln(), MAX_TEMPERATURE.ln());
    let (mut a, mut b) = (high - golden * (high - low), low + golden * (high - low));
    let (mut at_a, mut at_b) = (log_loss(&measure(a.exp())?), log_loss(&measure(b.exp())?));
    while high - low > TOLERANCE {
        if at_a <= at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - golden * (high - low);
            at_a = log_loss(&measure(a.exp())?);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + golden * (high - low);
            at_b = log_loss(&measure(b.exp())?);
        }
    }
    let middle = f64::midpoint(low, high);
    let temperature = middle.exp();
    let after = measure(temperature)?;
    let Some(no_fit) = no_fit(middle, &before, &after) else {
        return Ok(Calibration { temperature, before, after, no_fit: None });
    };
    let after = measure(1.0)?;
    Ok(Calibration { temperature: 1.0, before, after, no_fit: Some(no_fit) })
}

/// Why the temperature at which a search has ended is no fit.
///
/// - `middle`: its logarithm
/// - `before`, `after`: metrics of the model as it was, and with it
fn no_fit(middle: f64, before: &EvalMetrics, after: &EvalMetrics) -> Option<NoFit> {
    let log_loss = |metrics: &EvalMetrics| metrics.get(EvalMetric::LogLoss).unwrap_or(f64::INFINITY);
    let limit = MAX_TEMPERATURE.ln();
    // Below the limit by less than the last interval of the search.
    let is_at_limit = limit - middle.abs() <= TOLERANCE;
    if !log_loss(before).is_finite() {
        Some(NoFit::NotFinite)
    } else if before.get(EvalMetric::Accuracy) == Some(1.0) {
        Some(NoFit::AllRight)
    } else if is_at_limit {
        Some(NoFit::AtLimit(if middle < 0.0 { MAX_TEMPERATURE.recip() } else { MAX_TEMPERATURE }))
    } else if middle.abs() > TOLERANCE && log_loss(after) < log_loss(before) {
        None
    } else {
        Some(NoFit::NoneIsBetter)
    }
}

/// Divides weight and bias of the output layer by a temperature, in the flat weights of `layout`.
pub fn with_temperature(
    layout: &ParamLayout,
    output_layer: usize,
    mut flat: Vec<f32>,
    temperature: f64,
) -> Vec<f32> {
    for part in ["weight", "bias"] {
        if let Some(entry) = layout.find(&format!("layers.{output_layer}.{part}")) {
            for weight in &mut flat[entry.range()] {
                *weight = (f64::from(*weight) / temperature) as f32;
            }
        }
    }
    flat
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_at_the_limit_is_no_fit() {
        let metrics = |accuracy: f64, log_loss: f64| {
            EvalMetrics::default().with(EvalMetric::Accuracy, accuracy).with(EvalMetric::LogLoss, log_loss)
        };
        let limit = MAX_TEMPERATURE.ln();
        let of = |middle, before: (f64, f64), after| {
            no_fit(middle, &metrics(before.0, before.1), &metrics(before.0, after))
        };
        assert_eq!(of(0.7, (0.9, 0.4), 0.3), None);
        assert_eq!(of(0.7, (0.9, 0.3), 0.3), Some(NoFit::NoneIsBetter));
        // The search cannot tell such a temperature from 1.
        for middle in [TOLERANCE / 2.0, -TOLERANCE / 2.0] {
            assert_eq!(of(middle, (0.9, 0.300_001), 0.3), Some(NoFit::NoneIsBetter));
        }
        assert_eq!(of(2.0 * TOLERANCE, (0.9, 0.300_001), 0.3), None);
        for middle in [-limit + TOLERANCE / 2.0, -limit + TOLERANCE / 3.0] {
            assert_eq!(of(middle, (1.0, 0.2), 0.0), Some(NoFit::AllRight));
            assert_eq!(of(middle, (0.9, 0.2), 0.1), Some(NoFit::AtLimit(0.05)));
        }
        assert_eq!(of(limit - TOLERANCE / 2.0, (0.5, 0.9), 0.7), Some(NoFit::AtLimit(20.0)));
        assert_eq!(of(0.7, (0.9, f64::NAN), 0.3), Some(NoFit::NotFinite));
    }
}
