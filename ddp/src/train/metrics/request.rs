//! The metrics that an evaluation measures, and the names under which it reports them.

use std::sync::Arc;

use ddp_kernels::Device;

use crate::config::{Loss, MetricSet, MetricTable, Task};
use crate::data::{HeadOutputs, OutputUnits, RowLayout};
use crate::model::LossHead;

/// Most classes of a confusion matrix, and of areas that are computed from bins.
const MAX_TABLE_CLASSES: usize = 1024;

/// The metrics of an evaluation.
#[derive(Debug, Clone)]
pub struct MetricRequest {
    /// Task of the model.
    pub task: Task,
    /// Metrics and tables to measure.
    pub metrics: MetricSet,
    /// Names of the classes, labels or targets in the order of the outputs; `None` for their numbers.
    pub names: Option<Vec<String>>,
    /// Meaning of the outputs of a regression: errors are reported in the units of the targets.
    pub units: OutputUnits,
    /// The heads of [`Task::Heads`].
    pub heads: Vec<HeadRequest>,
    /// Whether the use that the model makes of its classes is counted, whatever the metrics.
    pub class_use: bool,
}

/// The metrics of one head.
#[derive(Debug, Clone)]
pub struct HeadRequest {
    pub(crate) of: HeadOutputs,
    /// The loss, on the CPU.
    pub(crate) loss: Arc<LossHead>,
    pub(crate) request: MetricRequest,
}

impl HeadRequest {
    fn new(of: HeadOutputs, metrics: MetricSet) -> Self {
        let loss = LossHead::new(&of.loss, Device::Cpu).expect("weights of classes in host memory");
        let request = MetricRequest {
            task: of.targets.task,
            metrics: metrics.for_task(of.targets.task),
            names: Some(of.targets.names()),
            units: of.units.clone(),
            heads: Vec::new(),
            class_use: false,
        };
        HeadRequest { of, loss: Arc::new(loss), request }
    }
}

impl MetricRequest {
    /// These metrics, with numbers for names and targets that are not scaled.
    pub fn new(task: Task, metrics: MetricSet) -> Self {
        let (names, units, heads) = (None, OutputUnits::Targets, Vec::new());
        MetricRequest { task, metrics, names, units, heads, class_use: false }
    }

    /// The task's default metrics.
    pub fn defaults(task: Task) -> Self {
        Self::new(task, MetricSet::defaults(task))
    }

    /// For a model that was trained with `loss`, evaluated on rows with this layout.
    #[must_use]
    pub fn in_units_of(mut self, loss: &Loss, layout: &RowLayout) -> Self {
        let scale = layout.target_scale.as_ref();
        self.units = OutputUnits::new(loss, scale);
        let heads = HeadOutputs::from_loss(loss, layout.targets.heads(), scale).into_iter();
        self.heads = heads.map(|head| HeadRequest::new(head, self.metrics)).collect();
        self
    }

    /// The same evaluation that also counts the use that the model makes of its classes.
    #[must_use]
    pub fn with_class_use(mut self) -> Self {
        self.class_use = true;
        self.heads.iter_mut().for_each(|head| head.request.class_use = true);
        self
    }

    /// The same evaluation with these metrics, which each head gives as far as they fit its task.
    #[must_use]
    pub fn with_metrics(mut self, metrics: MetricSet) -> Self {
        self.metrics = metrics;
        for HeadRequest { request, .. } in &mut self.heads {
            request.metrics = metrics.for_task(request.task);
        }
        self
    }

    /// Name of an output's class, label or target: as the user wrote it where names are known.
    pub fn output_name(&self, output: usize) -> String {
        let name = self.names.as_ref().and_then(|names| names.get(output));
        name.cloned().unwrap_or_else(|| output.to_string())
    }

    /// Whether the outputs are cumulative logits of classes in an order.
    pub(crate) fn is_cumulative(&self) -> bool {
        self.units == OutputUnits::Cumulative
    }

    /// Classes, labels or targets of a model with this many outputs.
    pub(crate) fn n_targets(&self, n_outputs: usize) -> usize {
        n_outputs + usize::from(self.is_cumulative())
    }

    /// Whether the confusion matrix is asked for and not too large.
    pub(crate) fn has_confusion_matrix(&self, n_outputs: usize) -> bool {
        self.metrics.has_table(MetricTable::ConfusionMatrix) && n_outputs <= MAX_TABLE_CLASSES
    }

    /// Warnings about metrics that are left out for `n_targets` classes, or for the classes of heads.
    pub fn left_out(&self, n_targets: usize) -> Vec<String> {
        let of_head = |head: &HeadRequest| {
            let targets = &head.of.targets;
            head.request.without_matrix(targets.n_targets(), &format!(" of head \"{}\"", targets.name))
        };
        match self.task {
            Task::Heads => self.heads.iter().filter_map(of_head).collect(),
            Task::Classification | Task::Multilabel | Task::Regression => {
                self.without_matrix(n_targets, "").into_iter().collect()
            }
        }
    }

    fn without_matrix(&self, n_classes: usize, place: &str) -> Option<String> {
        let has_matrix = self.metrics.has_table(MetricTable::ConfusionMatrix);
        (has_matrix && !self.has_confusion_matrix(n_classes)).then(|| {
            format!(
                "the confusion matrix{place} is left out: {n_classes} classes, expected at most {MAX_TABLE_CLASSES}\n\
                 hint: eval_per_class has the figures of each class"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HeadLoss;
    use crate::data::{HeadTargets, LabelVocabulary};

    #[test]
    fn outputs_have_their_name_or_number() {
        let mut request = MetricRequest::defaults(Task::Classification);
        assert_eq!(request.output_name(7), "7");
        request.names = Some(vec!["setosa".to_owned()]);
        assert_eq!((request.output_name(0), request.output_name(1)), ("setosa".to_owned(), "1".to_owned()));
    }

    #[test]
    fn a_huge_confusion_matrix_is_left_out_and_said_so() {
        let all = MetricRequest::new(Task::Classification, MetricSet::all(Task::Classification));
        assert!(all.has_confusion_matrix(1024) && all.left_out(1024).is_empty());
        assert!(!all.has_confusion_matrix(1025));
        assert!(all.left_out(1025)[0].contains("1025 classes"));
        assert_eq!(MetricRequest::defaults(Task::Classification).left_out(1025), [""; 0]);
    }

    #[test]
    fn each_head_has_a_confusion_matrix_of_its_own() {
        let head = |name: &str, n_classes: usize| HeadTargets {
            name: name.to_owned(),
            task: Task::Classification,
            columns: vec![name.to_owned()],
            labels: Some(Arc::new(LabelVocabulary::numbers(n_classes))),
        };
        let loss = || Loss::CrossEntropy { label_smoothing: 0.0, class_weights: None, focal_gamma: 0.0 };
        let request = |sizes: [usize; 2]| {
            let names = ["kind", "place"];
            let loss_of = |name: &str| HeadLoss { name: name.to_owned(), weight: 1.0, loss: loss() };
            let heads = names.iter().zip(sizes).map(|(name, n)| head(name, n)).collect::<Vec<_>>();
            let of_heads = HeadOutputs::from_loss(&Loss::Heads(names.map(loss_of).to_vec()), &heads, None);
            let all = MetricSet::all(Task::Heads);
            let heads = of_heads.into_iter().map(|of| HeadRequest::new(of, all)).collect();
            MetricRequest { heads, ..MetricRequest::new(Task::Heads, all) }
        };
        assert_eq!(request([600, 700]).left_out(1300), [""; 0]);
        let left_out = request([3, 1025]).left_out(1028);
        assert_eq!(left_out.len(), 1);
        assert!(left_out[0].contains("of head \"place\" is left out: 1025 classes"), "{left_out:?}");
    }
}
