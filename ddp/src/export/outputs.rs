//! The outputs of a graph, by the task: probabilities and labels, or predictions.

use std::sync::Arc;

use super::graph::{Attribute, Graph, Value};
use super::proto::ElementType;
use crate::config::{Loss, Task};
use crate::data::{Label, LabelVocabulary, OutputUnits, Preprocessor, TargetScale};

/// Name of the output of probabilities.
const PROBABILITIES: &str = "probabilities";
/// Name of the output of labels.
const LABEL: &str = "label";
/// Name of the output of quantities.
const PREDICTION: &str = "prediction";
/// All of them.
pub(super) const NAMES: [&str; 3] = [PROBABILITIES, LABEL, PREDICTION];

/// Meaning of the last layer's outputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Head {
    /// One class, with these labels.
    Classes(Arc<LabelVocabulary>),
    /// One yes or no per output.
    Labels,
    /// Quantities in these units.
    Values(OutputUnits),
}

impl Head {
    /// The head of a model for `task`.
    pub(super) fn new(task: Task, loss: &Loss, preprocessor: &Preprocessor, n_outputs: usize) -> Self {
        match task {
            Task::Classification => {
                let numbers = || Arc::new(LabelVocabulary::numbers(n_outputs));
                Head::Classes(preprocessor.labels.clone().unwrap_or_else(numbers))
            }
            Task::Multilabel => Head::Labels,
            Task::Regression => Head::Values(OutputUnits::new(loss, preprocessor.target_scale.as_ref())),
        }
    }

    /// Adds the graph's outputs, computed from `[N, n_outputs]` of the last layer.
    pub(super) fn add(&self, graph: &mut Graph, outputs: &Value, n_outputs: usize) {
        match self {
            Head::Classes(labels) => add_classes(graph, outputs, n_outputs, labels),
            Head::Labels => add_labels(graph, outputs, n_outputs),
            Head::Values(units) => add_values(graph, outputs, n_outputs, units),
        }
    }
}

/// The outputs in the user's units in f64, as [`OutputUnits::to_user_units`].
fn add_values(graph: &mut Graph, outputs: &Value, n_outputs: usize, units: &OutputUnits) {
    graph.output(PREDICTION, ElementType::Double, Some(n_outputs), "predicted quantities");
    let TargetScale { shift, scale } = match units {
        OutputUnits::Targets => {
            let to = [("to", Attribute::Int(ElementType::Double as i64))];
            graph.output_op("Cast", &[outputs], &to, PREDICTION);
            return;
        }
        OutputUnits::Logarithms => {
            let logarithms = graph.cast(outputs, ElementType::Double, "target.logarithms");
            graph.output_op("Exp", &[&logarithms], &[], PREDICTION);
            return;
        }
        OutputUnits::Standardized(scale) => scale,
    };
    let shift = graph.doubles("target.shift", shift.clone());
    let scale = graph.doubles("target.scale", scale.clone());
    let outputs = graph.cast(outputs, ElementType::Double, "target.standardized");
    let scaled = graph.op("Mul", &[&outputs, &scale], "target.scaled");
    graph.output_op("Add", &[&scaled, &shift], &[], PREDICTION);
}

fn add_classes(graph: &mut Graph, outputs: &Value, n_outputs: usize, labels: &LabelVocabulary) {
    graph.output_op("Softmax", &[outputs], &[("axis", Attribute::Int(-1))], PROBABILITIES);
    graph.output(PROBABILITIES, ElementType::Float, Some(n_outputs), "probability of each class");
    let first_of_largest = [("axis", Attribute::Int(1)), ("keepdims", Attribute::Int(0))];
    if labels.is_numbers() {
        graph.output_op("ArgMax", &[outputs], &first_of_largest, LABEL);
        graph.output(LABEL, ElementType::Int64, None, "the most probable class");
        return;
    }
    let class = graph.op_with("ArgMax", &[outputs], &first_of_largest, "label.class");
    let integer = |label: Label| match label {
        Label::Integer(number) => Some(number),
        Label::Text(_) => None,
    };
    // One output has one type: integers next to texts are texts.
    let (all, element) = match labels.labels().map(integer).collect::<Option<Vec<i64>>>() {
        Some(integers) => (graph.integers("label.all", integers), ElementType::Int64),
        None => {
            let texts = labels.labels().map(|label| label.to_string()).collect();
            (graph.texts("label.all", texts), ElementType::String)
        }
    };
    graph.output_op("Gather", &[&all, &class], &[], LABEL);
    graph.output(LABEL, element, None, "label of the most probable class");
}

/// A label applies where its output is at least 0, that is its probability at least 1/2, as in `predict` without a threshold.
fn add_labels(graph: &mut Graph, outputs: &Value, n_outputs: usize) {
    graph.output_op("Sigmoid", &[outputs], &[], PROBABILITIES);
    graph.output(PROBABILITIES, ElementType::Float, Some(n_outputs), "probability of each label");
    let zero = graph.floats("label.threshold", &[], vec![0.0]);
    let applies = graph.op("GreaterOrEqual", &[outputs, &zero], "label.applies");
    let to = [("to", Attribute::Int(ElementType::Int64 as i64))];
    graph.output_op("Cast", &[&applies], &to, LABEL);
    graph.output(LABEL, ElementType::Int64, Some(n_outputs), "1 where the label applies, else 0");
}
