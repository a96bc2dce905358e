//! The scale on which predictions of several models are averaged: probabilities of classes and labels, values in the user's units.

use std::ops::Range;

use ddp::config::Task;
use ddp::data::{OutputUnits, cumulative};

use crate::predict::saved_model::SavedModel;

/// Columns of a model's outputs, and what they mean.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    parts: Vec<(Range<usize>, Meaning)>,
    pub(super) n_outputs: usize,
}

#[derive(Debug, Clone)]
enum Meaning {
    /// Logits of classes, one of which applies.
    Classes,
    /// Logits of labels.
    Labels,
    /// Logits of the classes above each in an order.
    Ordered,
    /// Values in these units.
    Values(OutputUnits),
}

impl Meaning {
    fn new(task: Task, units: OutputUnits) -> Self {
        match (task, &units) {
            (_, OutputUnits::Cumulative) => Meaning::Ordered,
            (Task::Multilabel, _) => Meaning::Labels,
            (Task::Classification, _) => Meaning::Classes,
            _ => Meaning::Values(units),
        }
    }
}

impl Scale {
    pub(super) fn of(model: &SavedModel) -> Self {
        let n_outputs = model.n_outputs;
        let parts = match &model.heads()[..] {
            [] => vec![(0..n_outputs, Meaning::new(model.config.data.task, model.output_units()))],
            heads => {
                let of_head = heads.iter();
                of_head
                    .map(|head| (head.outputs.clone(), Meaning::new(head.targets.task, head.units.clone())))
                    .collect()
            }
        };
        Scale { parts, n_outputs }
    }

    /// Whether the outputs of another model mean the same, be it in other units.
    pub(super) fn is_like(&self, other: &Scale) -> bool {
        let kinds = |scale: &Scale| {
            let kind =
                |(columns, of): &(Range<usize>, Meaning)| (columns.clone(), std::mem::discriminant(of));
            scale.parts.iter().map(kind).collect::<Vec<_>>()
        };
        kinds(self) == kinds(other)
    }

    /// Converts the outputs of a row to the scale.
    pub(super) fn scaled(&self, outputs: &[f32], out: &mut [f64]) {
        for (columns, of) in &self.parts {
            let (outputs, out) = (&outputs[columns.clone()], &mut out[columns.clone()]);
            for (target, (value, output)) in out.iter_mut().zip(outputs).enumerate() {
                let output = f64::from(*output);
                *value = match of {
                    Meaning::Classes => output,
                    Meaning::Labels | Meaning::Ordered => 1.0 / (1.0 + (-output).exp()),
                    Meaning::Values(units) => units.to_user_units(target, output),
                };
            }
            if matches!(of, Meaning::Ordered) {
                // The least probability of a class counts in its model, not in the mean.
                let of_classes = cumulative::probabilities(outputs);
                let mut above = 1.0;
                for (value, of_class) in out.iter_mut().zip(of_classes) {
                    above -= of_class;
                    *value = above;
                }
            }
            if matches!(of, Meaning::Classes) {
                let max = out.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                out.iter_mut().for_each(|value| *value = (*value - max).exp());
                let sum: f64 = out.iter().sum();
                out.iter_mut().for_each(|value| *value /= sum);
            }
        }
    }

    /// Converts back to outputs: the inverse of [`Scale::scaled`], but for a constant that all logits of classes share.
    pub(super) fn unscaled(&self, values: &[f64], outputs: &mut [f32]) {
        for (columns, of) in &self.parts {
            let (values, outputs) = (&values[columns.clone()], &mut outputs[columns.clone()]);
            for (target, (output, &value)) in outputs.iter_mut().zip(values).enumerate() {
                *output = match of {
                    Meaning::Classes => value.ln(),
                    Meaning::Labels | Meaning::Ordered => (value / (1.0 - value)).ln(),
                    Meaning::Values(units) => units.from_user_units(target, value),
                } as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ddp::data::TargetScale;

    use super::*;

    #[test]
    fn outputs_come_back_from_each_scale() {
        let standardized = TargetScale { shift: vec![1e9, -3.0], scale: vec![10.0, 0.5] };
        for (task, units) in [
            (Task::Classification, OutputUnits::Targets),
            (Task::Classification, OutputUnits::Cumulative),
            (Task::Multilabel, OutputUnits::Targets),
            (Task::Regression, OutputUnits::Targets),
            (Task::Regression, OutputUnits::Logarithms),
            (Task::Regression, OutputUnits::Standardized(standardized)),
        ] {
            let meaning = Meaning::new(task, units);
            let is_classes = matches!(meaning, Meaning::Classes);
            let is_ordered = matches!(meaning, Meaning::Ordered);
            let scale = Scale { parts: vec![(0..2, meaning)], n_outputs: 2 };
            for outputs in [[0.5, -2.0], [15.0, 4.0], [-0.25, -0.125]] {
                // Rising logits belong to no probabilities.
                if is_ordered && outputs[1] > outputs[0] {
                    continue;
                }
                let (mut values, mut back) = ([0.0; 2], [0.0; 2]);
                scale.scaled(&outputs, &mut values);
                scale.unscaled(&values, &mut back);
                let constant = if is_classes { outputs[0] - back[0] } else { 0.0 };
                let near = |i: usize| (back[i] + constant - outputs[i]).abs() < 1e-4;
                assert!(near(0) && near(1), "{scale:?}: {outputs:?} -> {values:?} -> {back:?}");
            }
        }
    }

    #[test]
    fn means_of_ordered_classes_are_those_of_their_probabilities() {
        let scale = Scale { parts: vec![(0..2, Meaning::Ordered)], n_outputs: 2 };
        let models = [[-1.0f32, 2.0], [3.0, 0.5]];
        let mut sums = [0.0; 2];
        for outputs in &models {
            let mut values = [0.0; 2];
            scale.scaled(outputs, &mut values);
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value / 2.0);
        }
        let mut outputs = [0.0f32; 2];
        scale.unscaled(&sums, &mut outputs);
        let of_models = models.map(|outputs| cumulative::probabilities(&outputs));
        for (class, got) in cumulative::probabilities(&outputs).into_iter().enumerate() {
            let want = f64::midpoint(of_models[0][class], of_models[1][class]);
            assert!((got - want).abs() < 1e-6, "{class}: {got} {want}");
        }
    }
}
