//! Outputs of a model, and their interpretation as classes, probabilities or values.

use ddp::config::Task;
use ddp::data::{HeadOutputs, OutputUnits, cumulative};

/// Predictions for consecutive rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Predictions {
    task: Task,
    /// `[n_rows, n_outputs]`, row-major.
    outputs: Vec<f32>,
    n_outputs: usize,
    units: OutputUnits,
    /// The heads of [`Task::Heads`].
    heads: Vec<HeadOutputs>,
}

impl Predictions {
    pub(super) fn new(task: Task, outputs: Vec<f32>, n_outputs: usize, units: OutputUnits) -> Self {
        Predictions { task, outputs, n_outputs, units, heads: Vec::new() }
    }

    /// Assigns the outputs to their heads.
    pub(super) fn with_heads(mut self, heads: &[HeadOutputs]) -> Self {
        self.heads = heads.to_vec();
        self
    }

    /// The predictions of the head of this name, for a model of several heads.
    pub fn head(&self, name: &str) -> Option<Predictions> {
        let HeadOutputs { targets, outputs: columns, units, .. } =
            self.heads.iter().find(|head| head.targets.name == name)?;
        let outputs = HeadOutputs::select(columns, &self.outputs, self.n_outputs);
        Some(Predictions::new(targets.task, outputs, columns.len(), units.clone()))
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.outputs.len() / self.n_outputs
    }

    /// The outputs of the network, `[n_rows, n_outputs]`: logits of classes or labels, standardized values, or logarithms of
    /// rates.
    pub fn outputs(&self) -> &[f32] {
        &self.outputs
    }

    /// Regression: the predicted values in the units of the targets, `[n_rows, n_outputs]`.
    pub fn values(&self) -> Vec<f64> {
        self.units.values(&self.outputs, self.n_outputs)
    }

    /// Classification: the class with the largest logit of each row, the first one if several are equal, 0 where they are
    /// NaN; for the ordinal loss, the number of logits above 0.
    pub fn classes(&self) -> Vec<usize> {
        let class = |row| class_of(row, &self.units);
        self.outputs.chunks_exact(self.n_outputs).map(class).collect()
    }

    /// Probabilities, `[n_rows, n_outputs]`: softmax in classification, sigmoid of each label in multilabel tasks. Empty in
    /// regression and for several heads (see [`Predictions::head`]). For the ordinal loss `[n_rows, n_outputs + 1]`: differences
    /// of the sigmoids of neighboring logits.
    pub fn probabilities(&self) -> Vec<f32> {
        match self.task {
            Task::Classification => {
                let of_row = |row| probabilities(row, &self.units);
                self.outputs.chunks_exact(self.n_outputs).flat_map(of_row).collect()
            }
            Task::Multilabel => self.outputs.iter().map(|&logit| sigmoid(logit)).collect(),
            Task::Regression | Task::Heads => Vec::new(),
        }
    }
}

/// The class of a row of logits in these units.
pub(super) fn class_of(logits: &[f32], units: &OutputUnits) -> usize {
    match units {
        OutputUnits::Cumulative => cumulative::class_of(logits).unwrap_or(0),
        _ => argmax(logits),
    }
}

/// Probabilities of the classes of a row of logits in these units.
pub(super) fn probabilities(logits: &[f32], units: &OutputUnits) -> Vec<f32> {
    match units {
        OutputUnits::Cumulative => {
            cumulative::probabilities(logits).into_iter().map(|value| value as f32).collect()
        }
        _ => softmax(logits).collect(),
    }
}

/// Index of the largest value, the first one if several are equal.
fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

/// `p[k] = exp(z[k] - max(z)) / Σ exp(z[j] - max(z))`, computed in f64.
fn softmax(logits: &[f32]) -> impl Iterator<Item = f32> + '_ {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let power = move |logit: &f32| f64::from(logit - max).exp();
    let sum: f64 = logits.iter().map(power).sum();
    logits.iter().map(move |logit| (power(logit) / sum) as f32)
}

/// `1 / (1 + exp(-z))`, computed in f64.
pub(super) fn sigmoid(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}

#[cfg(test)]
mod tests {
    use ddp::data::TargetScale;

    use super::*;

    #[test]
    fn classes_and_probabilities() {
        let predictions = Predictions::new(
            Task::Classification,
            vec![1.0, 1.0, -2.0, 0.0, 1000.0, 2.0],
            3,
            OutputUnits::Targets,
        );
        assert_eq!((predictions.n_rows(), predictions.classes()), (2, vec![0, 1]));
        let p = predictions.probabilities();
        assert!((p[..3].iter().sum::<f32>() - 1.0).abs() < 1e-6 && p[0] == p[1]);
        assert_eq!(p[3..], [0.0, 1.0, 0.0]);
        let labels = Predictions::new(Task::Multilabel, vec![0.0, -800.0], 2, OutputUnits::Targets);
        assert_eq!(labels.probabilities(), [0.5, 0.0]);
        let scale = TargetScale { shift: vec![100.0], scale: vec![10.0] };
        assert_eq!(
            Predictions::new(Task::Regression, vec![0.5], 1, OutputUnits::Standardized(scale)).values(),
            [105.0]
        );
        assert!(
            Predictions::new(Task::Regression, vec![3.5], 1, OutputUnits::Targets).probabilities().is_empty()
        );
    }
}
