//! The outputs of a graph, by the task: probabilities and labels, or predictions.

use std::sync::Arc;

use super::graph::{Attribute, Graph, Value};
use super::proto::ElementType;
use crate::config::{Loss, Task};
use crate::data::{Label, LabelVocabulary, OutputUnits, Preprocessor, TargetScale, cumulative};

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
    /// One class of those in this order, by cumulative logits.
    Ordered(Arc<LabelVocabulary>),
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
                let numbers = || Arc::new(LabelVocabulary::numbers(loss.n_targets(n_outputs)));
                let labels = preprocessor.labels.clone().unwrap_or_else(numbers);
                if *loss == Loss::Ordinal { Head::Ordered(labels) } else { Head::Classes(labels) }
            }
            Task::Multilabel => Head::Labels,
            Task::Regression => Head::Values(OutputUnits::new(loss, preprocessor.target_scale.as_ref())),
        }
    }

    /// Labels of the classes, if there are classes.
    pub(super) fn labels(&self) -> Option<&LabelVocabulary> {
        match self {
            Head::Classes(labels) | Head::Ordered(labels) => Some(labels),
            Head::Labels | Head::Values(_) => None,
        }
    }

    /// Adds the graph's outputs, computed from `[N, n_outputs]` of the last layer.
    pub(super) fn add(&self, graph: &mut Graph, outputs: &Value, n_outputs: usize) {
        match self {
            Head::Classes(labels) => add_classes(graph, outputs, n_outputs, labels),
            Head::Ordered(labels) => add_ordered(graph, outputs, n_outputs, labels),
            Head::Labels => add_labels(graph, outputs, n_outputs),
            Head::Values(units) => add_values(graph, outputs, n_outputs, units),
        }
    }
}

/// The outputs in the user's units in f64, as [`OutputUnits::to_user_units`].
fn add_values(graph: &mut Graph, outputs: &Value, n_outputs: usize, units: &OutputUnits) {
    graph.output(PREDICTION, ElementType::Double, Some(n_outputs), "predicted quantities");
    let TargetScale { shift, scale } = match units {
        OutputUnits::Targets | OutputUnits::Cumulative => {
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
    add_label(graph, &class, labels, "label of the most probable class");
}

/// The class is the number of logits above 0; probabilities are those of [`cumulative::probabilities`], in f32.
fn add_ordered(graph: &mut Graph, outputs: &Value, n_outputs: usize, labels: &LabelVocabulary) {
    const ABOUT: &str = "the class, by the number of outputs above 0";
    let n_classes = n_outputs + 1;
    // Class k: minus the probability to be above k, plus that to be above k - 1, which is 1 for class 0.
    let differences = (0..n_outputs * n_classes).map(|at| match (at / n_classes, at % n_classes) {
        (logit, class) if class == logit => -1.0,
        (logit, class) if class == logit + 1 => 1.0,
        _ => 0.0,
    });
    let differences = graph.floats("ordinal.differences", &[n_outputs, n_classes], differences.collect());
    let first = (0..n_classes).map(|class| if class == 0 { 1.0 } else { 0.0 });
    let first = graph.floats("ordinal.first", &[n_classes], first.collect());
    let least = graph.floats("ordinal.least", &[], vec![cumulative::MIN_PROBABILITY as f32]);
    let above = graph.op("Sigmoid", &[outputs], "ordinal.above");
    let of_class = graph.op("Gemm", &[&above, &differences, &first], "ordinal.of_class");
    let at_least = graph.op("Max", &[&of_class, &least], "ordinal.at_least");
    let axis = graph.integers("ordinal.axis", vec![1]);
    let sum = graph.op("ReduceSum", &[&at_least, &axis], "ordinal.sum");
    graph.output_op("Div", &[&at_least, &sum], &[], PROBABILITIES);
    graph.output(PROBABILITIES, ElementType::Float, Some(n_classes), "probability of each class");
    let zero = graph.floats("ordinal.zero", &[], vec![0.0]);
    let is_above = graph.op("Greater", &[outputs, &zero], "ordinal.is_above");
    let is_above = graph.cast(&is_above, ElementType::Int64, "ordinal.votes");
    let flat = [("keepdims", Attribute::Int(0))];
    if labels.is_numbers() {
        graph.output_op("ReduceSum", &[&is_above, &axis], &flat, LABEL);
        graph.output(LABEL, ElementType::Int64, None, ABOUT);
        return;
    }
    let class = graph.op_with("ReduceSum", &[&is_above, &axis], &flat, "label.class");
    add_label(graph, &class, labels, ABOUT);
}

/// The output of labels, from the classes of the rows.
fn add_label(graph: &mut Graph, class: &Value, labels: &LabelVocabulary, about: &str) {
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
    graph.output_op("Gather", &[&all, class], &[], LABEL);
    graph.output(LABEL, element, None, about);
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
