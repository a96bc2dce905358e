//! The outputs of a graph, which depend on the task: probabilities and labels, or predictions.

use std::ops::Range;
use std::sync::Arc;

use ddp::config::{Loss, Task};
use ddp::data::{HeadOutputs, HeadTargets, Label, LabelVocabulary, OutputUnits, TargetScale, cumulative};

use crate::export::graph::{Attribute, Graph, Value};
use crate::export::proto::ElementType;
use crate::fit::preprocess::Preprocessor;

/// Name of the output of probabilities.
const PROBABILITIES: &str = "probabilities";
/// Name of the output of labels.
const LABEL: &str = "label";
/// Name of the output of quantities.
const PREDICTION: &str = "prediction";

/// Meaning of the last layer's outputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Head {
    /// One class with one of these labels.
    Classes(Arc<LabelVocabulary>),
    /// One of these ordered classes, by cumulative logits.
    Ordered(Arc<LabelVocabulary>),
    /// Yes or no for each output.
    Labels,
    /// Quantities in these units.
    Values(OutputUnits),
    /// Several heads, each with some of the outputs; the names of a head's outputs begin with the head's name and a dot.
    Several(Vec<(String, Range<usize>, Head)>),
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
            Task::Heads => {
                let Preprocessor { heads, target_scale, .. } = preprocessor;
                let heads = HeadOutputs::from_loss(loss, heads, target_scale.as_ref()).into_iter();
                Head::Several(heads.map(Head::one_of_several).collect())
            }
        }
    }

    fn one_of_several(head: HeadOutputs) -> (String, Range<usize>, Head) {
        let HeadOutputs { targets: HeadTargets { name, task, labels, .. }, loss, outputs, units, .. } = head;
        let head = match (task, labels) {
            (_, Some(labels)) if loss == Loss::Ordinal => Head::Ordered(labels),
            (_, Some(labels)) => Head::Classes(labels),
            (Task::Multilabel, None) => Head::Labels,
            (_, None) => Head::Values(units),
        };
        (name, outputs, head)
    }

    /// Names of the graph's outputs.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Head::Several(heads) => heads
                .iter()
                .flat_map(|(name, _, head)| head.names().into_iter().map(move |of| format!("{name}.{of}")))
                .collect(),
            Head::Values(_) => vec![PREDICTION.to_owned()],
            _ => vec![PROBABILITIES.to_owned(), LABEL.to_owned()],
        }
    }

    /// Labels of the classes, if there are classes.
    pub(super) fn labels(&self) -> Option<&LabelVocabulary> {
        match self {
            Head::Classes(labels) | Head::Ordered(labels) => Some(labels),
            Head::Labels | Head::Values(_) | Head::Several(_) => None,
        }
    }

    /// Adds the graph's outputs, computed from `[N, n_outputs]` of the last layer.
    pub(super) fn add(&self, graph: &mut Graph, outputs: &Value, n_outputs: usize) {
        self.add_named(&mut Named { graph, prefix: String::new() }, outputs, n_outputs);
    }

    fn add_named(&self, graph: &mut Named<'_>, outputs: &Value, n_outputs: usize) {
        match self {
            Head::Classes(labels) => add_classes(graph, outputs, n_outputs, labels),
            Head::Ordered(labels) => add_ordered(graph, outputs, n_outputs, labels),
            Head::Labels => add_labels(graph, outputs, n_outputs),
            Head::Values(units) => add_values(graph, outputs, n_outputs, units),
            Head::Several(heads) => {
                for (name, columns, head) in heads {
                    let bound = |graph: &mut Graph, at: usize| graph.integers("head.column", vec![at as i64]);
                    let (start, end) = (bound(graph.graph, columns.start), bound(graph.graph, columns.end));
                    let axis = graph.graph.integers("head.axis", vec![1]);
                    let own =
                        graph.graph.op("Slice", &[outputs, &start, &end, &axis], &format!("{name}.outputs"));
                    let mut graph = Named { graph: &mut *graph.graph, prefix: format!("{name}.") };
                    head.add_named(&mut graph, &own, columns.len());
                }
            }
        }
    }
}

/// A graph that adds a prefix to the names of its outputs.
struct Named<'a> {
    graph: &'a mut Graph,
    prefix: String,
}

impl Named<'_> {
    fn output(&mut self, name: &str, element: ElementType, width: Option<usize>, about: &str) {
        self.graph.output(&format!("{}{name}", self.prefix), element, width, about);
    }

    fn output_op(
        &mut self,
        op_type: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute<'_>)],
        name: &str,
    ) {
        self.graph.output_op(op_type, inputs, attributes, &format!("{}{name}", self.prefix));
    }
}

/// The outputs in the user's units in f64; see [`OutputUnits::to_user_units`].
fn add_values(graph: &mut Named<'_>, outputs: &Value, n_outputs: usize, units: &OutputUnits) {
    graph.output(PREDICTION, ElementType::Double, Some(n_outputs), "predicted quantities");
    let TargetScale { shift, scale } = match units {
        OutputUnits::Targets | OutputUnits::Cumulative => {
            let to = [("to", Attribute::Int(ElementType::Double as i64))];
            graph.output_op("Cast", &[outputs], &to, PREDICTION);
            return;
        }
        OutputUnits::Logarithms => {
            let logarithms = graph.graph.cast(outputs, ElementType::Double, "target.logarithms");
            graph.output_op("Exp", &[&logarithms], &[], PREDICTION);
            return;
        }
        OutputUnits::Standardized(scale) => scale,
    };
    let shift = graph.graph.doubles("target.shift", shift.clone());
    let scale = graph.graph.doubles("target.scale", scale.clone());
    let outputs = graph.graph.cast(outputs, ElementType::Double, "target.standardized");
    let scaled = graph.graph.op("Mul", &[&outputs, &scale], "target.scaled");
    graph.output_op("Add", &[&scaled, &shift], &[], PREDICTION);
}

fn add_classes(graph: &mut Named<'_>, outputs: &Value, n_outputs: usize, labels: &LabelVocabulary) {
    graph.output_op("Softmax", &[outputs], &[("axis", Attribute::Int(-1))], PROBABILITIES);
    graph.output(PROBABILITIES, ElementType::Float, Some(n_outputs), "probability of each class");
    let first_of_largest = [("axis", Attribute::Int(1)), ("keepdims", Attribute::Int(0))];
    if labels.is_numbers() {
        graph.output_op("ArgMax", &[outputs], &first_of_largest, LABEL);
        graph.output(LABEL, ElementType::Int64, None, "the most probable class");
        return;
    }
    let class = graph.graph.op_with("ArgMax", &[outputs], &first_of_largest, "label.class");
    add_label(graph, &class, labels, "label of the most probable class");
}

/// The class is the number of logits above 0; the probabilities are computed as in [`cumulative::probabilities`], in f32.
fn add_ordered(graph: &mut Named<'_>, outputs: &Value, n_outputs: usize, labels: &LabelVocabulary) {
    const ABOUT: &str = "the class, by the number of outputs above 0";
    let n_classes = n_outputs + 1;
    // Class k: minus the probability of being above k, plus the probability of being above k - 1, which is 1 for class 0.
    let differences = (0..n_outputs * n_classes).map(|at| match (at / n_classes, at % n_classes) {
        (logit, class) if class == logit => -1.0,
        (logit, class) if class == logit + 1 => 1.0,
        _ => 0.0,
    });
    let differences =
        graph.graph.floats("ordinal.differences", &[n_outputs, n_classes], differences.collect());
    let first = (0..n_classes).map(|class| if class == 0 { 1.0 } else { 0.0 });
    let first = graph.graph.floats("ordinal.first", &[n_classes], first.collect());
    let least = graph.graph.floats("ordinal.least", &[], vec![cumulative::MIN_PROBABILITY as f32]);
    let above = graph.graph.op("Sigmoid", &[outputs], "ordinal.above");
    let of_class = graph.graph.op("Gemm", &[&above, &differences, &first], "ordinal.of_class");
    let at_least = graph.graph.op("Max", &[&of_class, &least], "ordinal.at_least");
    let axis = graph.graph.integers("ordinal.axis", vec![1]);
    let sum = graph.graph.op("ReduceSum", &[&at_least, &axis], "ordinal.sum");
    graph.output_op("Div", &[&at_least, &sum], &[], PROBABILITIES);
    graph.output(PROBABILITIES, ElementType::Float, Some(n_classes), "probability of each class");
    let zero = graph.graph.floats("ordinal.zero", &[], vec![0.0]);
    let is_above = graph.graph.op("Greater", &[outputs, &zero], "ordinal.is_above");
    let is_above = graph.graph.cast(&is_above, ElementType::Int64, "ordinal.votes");
    let flat = [("keepdims", Attribute::Int(0))];
    if labels.is_numbers() {
        graph.output_op("ReduceSum", &[&is_above, &axis], &flat, LABEL);
        graph.output(LABEL, ElementType::Int64, None, ABOUT);
        return;
    }
    let class = graph.graph.op_with("ReduceSum", &[&is_above, &axis], &flat, "label.class");
    add_label(graph, &class, labels, ABOUT);
}

/// Adds the output of labels for the classes of the rows.
fn add_label(graph: &mut Named<'_>, class: &Value, labels: &LabelVocabulary, about: &str) {
    let integer = |label: Label| match label {
        Label::Integer(number) => Some(number),
        Label::Text(_) => None,
    };
    // An output has a single type: integers mixed with strings become strings.
    let (all, element) = match labels.labels().map(integer).collect::<Option<Vec<i64>>>() {
        Some(integers) => (graph.graph.integers("label.all", integers), ElementType::Int64),
        None => {
            let texts = labels.labels().map(|label| label.to_string()).collect();
            (graph.graph.texts("label.all", texts), ElementType::String)
        }
    };
    graph.output_op("Gather", &[&all, class], &[], LABEL);
    graph.output(LABEL, element, None, about);
}

/// A label applies if its output is at least 0, that is, its probability at least 1/2, as in `predict` without a threshold.
fn add_labels(graph: &mut Named<'_>, outputs: &Value, n_outputs: usize) {
    graph.output_op("Sigmoid", &[outputs], &[], PROBABILITIES);
    graph.output(PROBABILITIES, ElementType::Float, Some(n_outputs), "probability of each label");
    let zero = graph.graph.floats("label.threshold", &[], vec![0.0]);
    let applies = graph.graph.op("GreaterOrEqual", &[outputs, &zero], "label.applies");
    let to = [("to", Attribute::Int(ElementType::Int64 as i64))];
    graph.output_op("Cast", &[&applies], &to, LABEL);
    graph.output(LABEL, ElementType::Int64, Some(n_outputs), "1 where the label applies, else 0");
}
