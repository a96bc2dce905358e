//! Metrics of evaluations by name, and sets of them: `train.eval_metrics`, `eval --metrics`.

use std::fmt;

use super::data_values::Task;
use super::error::Result;
use super::nearest::similar;
use super::setting::Setting;
use super::value::{ConfigEnum, ConfigValue, config_enum};

config_enum! {
    /// A metric of an evaluation: one value over all evaluation rows.
    pub enum EvalMetric {
        /// Mean of the training loss, in the loss's units; lower is better.
        Loss = "eval_loss",
        /// Fraction of correct predictions (classification: rows; multilabel: labels).
        Accuracy = "eval_accuracy",
        /// Fraction of rows whose labels are all correct (multilabel).
        SubsetAccuracy = "eval_subset_accuracy",
        /// Mean recall over the classes that occur (classification).
        BalancedAccuracy = "eval_balanced_accuracy",
        /// Mean precision over the classes.
        PrecisionMacro = "eval_precision_macro",
        /// Mean recall over the classes.
        RecallMacro = "eval_recall_macro",
        /// Mean F1 over the classes.
        F1Macro = "eval_f1_macro",
        /// Mean F1 over the classes, each weighted by its rows.
        F1Weighted = "eval_f1_weighted",
        /// F1 of the counts of all classes together.
        F1Micro = "eval_f1_micro",
        /// Fraction of rows whose label is among the five largest outputs (classification with more than five classes).
        Top5Accuracy = "eval_top_5_accuracy",
        /// Mean of `-ln p(label)`, without smoothing and class weights (classification); lower is better.
        LogLoss = "eval_log_loss",
        /// Area under the ROC curve: for class 1 if there are two classes, else the mean over classes or labels, one against the
        /// rest.
        RocAuc = "eval_roc_auc",
        /// Average precision: for class 1 if there are two classes, else the mean over classes or labels, one against the rest.
        AveragePrecision = "eval_average_precision",
        /// Expected calibration error in 15 equal-width bins of the largest probability (classification); lower is better.
        Ece = "eval_ece",
        /// Mean distance between label and prediction in classes, for ordered classes (classification); lower is better.
        ClassMae = "eval_class_mae",
        /// Cohen's kappa with quadratic weights, for ordered classes (classification).
        QuadraticKappa = "eval_quadratic_kappa",
        /// Mean absolute error (regression); lower is better.
        Mae = "eval_mae",
        /// Root mean squared error (regression); lower is better.
        Rmse = "eval_rmse",
        /// Fraction of the targets' variance that is explained (regression).
        R2 = "eval_r2",
    }
}

use EvalMetric as M;

impl EvalMetric {
    /// Whether evaluations of this task can measure the metric; for several heads, whether those of at least one head can.
    pub fn fits(self, task: Task) -> bool {
        match self {
            M::Loss => true,
            M::Accuracy | M::PrecisionMacro | M::RecallMacro | M::F1Macro | M::F1Weighted | M::F1Micro => {
                task != Task::Regression
            }
            M::RocAuc | M::AveragePrecision => task != Task::Regression,
            M::BalancedAccuracy | M::Top5Accuracy | M::LogLoss | M::Ece | M::ClassMae | M::QuadraticKappa => {
                matches!(task, Task::Classification | Task::Heads)
            }
            M::SubsetAccuracy => matches!(task, Task::Multilabel | Task::Heads),
            M::Mae | M::Rmse | M::R2 => matches!(task, Task::Regression | Task::Heads),
        }
    }

    /// Returns the metric's name in tables and sentences.
    pub fn title(self) -> &'static str {
        match self {
            M::Loss => "loss",
            M::Accuracy => "accuracy",
            M::SubsetAccuracy => "subset accuracy",
            M::BalancedAccuracy => "balanced accuracy",
            M::PrecisionMacro => "precision (macro)",
            M::RecallMacro => "recall (macro)",
            M::F1Macro => "F1 (macro)",
            M::F1Weighted => "F1 (weighted)",
            M::F1Micro => "F1 (micro)",
            M::Top5Accuracy => "top-5 accuracy",
            M::LogLoss => "log loss",
            M::RocAuc => "ROC AUC",
            M::AveragePrecision => "average precision",
            M::Ece => "ECE",
            M::ClassMae => "MAE of classes",
            M::QuadraticKappa => "quadratic kappa",
            M::Mae => "MAE",
            M::Rmse => "RMSE",
            M::R2 => "R²",
        }
    }

    /// Whether higher values are better.
    pub fn grows(self) -> bool {
        !matches!(self, M::Loss | M::LogLoss | M::Ece | M::ClassMae | M::Mae | M::Rmse)
    }
}

/// Results of an evaluation that are more than a single value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricTable {
    /// Precision, recall, F1 and number of rows of each class or label, and the areas under its curves if these are requested.
    PerClass,
    /// Counts of rows by true and predicted class.
    ConfusionMatrix,
    /// MAE, RMSE and R² of each target.
    PerTarget,
}

impl MetricTable {
    /// All tables.
    pub const ALL: [Self; 3] = [Self::PerClass, Self::ConfusionMatrix, Self::PerTarget];

    /// Key of the table in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::PerClass => "eval_per_class",
            Self::ConfusionMatrix => "eval_confusion_matrix",
            Self::PerTarget => "eval_per_target",
        }
    }

    /// Whether evaluations of this task can measure the table.
    pub fn fits(self, task: Task) -> bool {
        match self {
            Self::PerClass => task != Task::Regression,
            Self::ConfusionMatrix => matches!(task, Task::Classification | Task::Heads),
            Self::PerTarget => matches!(task, Task::Regression | Task::Heads),
        }
    }
}

/// A set of metrics and tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetricSet {
    metrics: [bool; M::ALL.len()],
    tables: [bool; MetricTable::ALL.len()],
}

impl MetricSet {
    /// The most important metrics of this task: evaluations measure them unless others are requested.
    pub fn defaults(task: Task) -> Self {
        let metrics: &[M] = match task {
            Task::Classification => &[M::Loss, M::Accuracy, M::BalancedAccuracy, M::F1Macro],
            Task::Multilabel => &[M::Loss, M::Accuracy, M::SubsetAccuracy, M::F1Macro],
            Task::Regression => &[M::Loss, M::Mae, M::Rmse, M::R2],
            Task::Heads => {
                let of_heads = [Task::Classification, Task::Multilabel, Task::Regression];
                return of_heads
                    .into_iter()
                    .fold(MetricSet::default(), |set, task| set.union(Self::defaults(task)));
            }
        };
        metrics.iter().fold(MetricSet::default(), |set, metric| set.with(*metric))
    }

    /// All metrics and tables of this task.
    pub fn all(task: Task) -> Self {
        let mut set = MetricSet::default();
        M::ALL.iter().for_each(|metric| set.metrics[*metric as usize] = metric.fits(task));
        MetricTable::ALL.iter().for_each(|table| set.tables[*table as usize] = table.fits(task));
        set
    }

    /// Adds a metric.
    #[must_use]
    pub fn with(mut self, metric: EvalMetric) -> Self {
        self.metrics[metric as usize] = true;
        self
    }

    /// Adds a table.
    #[must_use]
    fn with_table(mut self, table: MetricTable) -> Self {
        self.tables[table as usize] = true;
        self
    }

    /// Removes the metrics that need all scores in memory, and the tables with a row per class.
    #[must_use]
    pub fn without_costly(mut self) -> Self {
        (self.metrics[M::RocAuc as usize], self.metrics[M::AveragePrecision as usize]) = (false, false);
        self.tables[MetricTable::ConfusionMatrix as usize] = false;
        self
    }

    /// Adds the metrics and tables of `other`.
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        self.metrics.iter_mut().zip(other.metrics).for_each(|(mine, theirs)| *mine |= theirs);
        self.tables.iter_mut().zip(other.tables).for_each(|(mine, theirs)| *mine |= theirs);
        self
    }

    /// The metrics of the set that evaluations of this task can measure.
    #[must_use]
    pub fn for_task(mut self, task: Task) -> Self {
        M::ALL.iter().for_each(|metric| self.metrics[*metric as usize] &= metric.fits(task));
        MetricTable::ALL.iter().for_each(|table| self.tables[*table as usize] &= table.fits(task));
        self
    }

    /// Whether the set contains this metric.
    pub fn has(&self, metric: EvalMetric) -> bool {
        self.metrics[metric as usize]
    }

    /// Whether the set contains any of these metrics.
    pub fn has_any(&self, metrics: &[EvalMetric]) -> bool {
        metrics.iter().any(|metric| self.has(*metric))
    }

    /// Whether the set contains this table.
    pub fn has_table(&self, table: MetricTable) -> bool {
        self.tables[table as usize]
    }

    /// Returns the set for a list of names: `all`, `default`, and metrics and tables with or without `eval_`. The loss is always
    /// included.
    ///
    /// # Errors
    /// The first name that evaluations of this task do not measure, and what to write instead.
    pub fn from_names(names: &[String], task: Task) -> Result<Self, UnknownMetric> {
        let mut set = MetricSet::default().with(M::Loss);
        for name in names {
            let full = if name.starts_with("eval_") { name.clone() } else { format!("eval_{name}") };
            let metric = M::ALL.iter().find(|metric| metric.name() == full && metric.fits(task));
            let table = MetricTable::ALL.iter().find(|table| table.name() == full && table.fits(task));
            set = match (name.as_str(), metric, table) {
                ("all", ..) => set.union(MetricSet::all(task)),
                ("default", ..) => set.union(MetricSet::defaults(task)),
                (_, Some(metric), _) => set.with(*metric),
                (_, _, Some(table)) => set.with_table(*table),
                (_, None, None) => return Err(UnknownMetric::new(name, task)),
            };
        }
        Ok(set)
    }
}

/// A name that is not a metric of the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownMetric {
    /// The unknown name, without the name of a known head in front.
    pub name: String,
    /// The names that can be used.
    pub expected: String,
    /// The most similar valid name, or the reason why there is none.
    pub hint: String,
}

impl UnknownMetric {
    fn new(name: &str, task: Task) -> Self {
        let metrics = M::ALL.iter().filter(|metric| metric.fits(task)).map(|metric| metric.name());
        let tables = MetricTable::ALL.iter().filter(|table| table.fits(task)).map(|table| table.name());
        let short = |name: &'static str| name.trim_start_matches("eval_");
        let names: Vec<_> = ["all", "default"].into_iter().chain(metrics.chain(tables).map(short)).collect();
        let is_of_other_task =
            M::ALL.iter().map(|metric| metric.name()).any(|full| short(full) == short_of(name));
        let hint = match similar(short_of(name), &names) {
            _ if is_of_other_task => format!("task \"{task}\" does not give it"),
            Some(name) => format!("did you mean {name}?"),
            None => "docs/metrics.md defines them".to_owned(),
        };
        UnknownMetric { name: name.to_owned(), expected: names.join(", "), hint }
    }
}

fn short_of(name: &str) -> &str {
    name.trim_start_matches("eval_")
}

/// The metric that a run is judged by: a metric of all rows, or of one of several heads.
///
/// Written as `eval_accuracy`, or with the name of the head in front as `species.eval_accuracy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgeMetric {
    /// Name of the head; `None` if the metric covers all rows.
    pub head: Option<String>,
    /// Metric of the head, or of all rows.
    pub metric: EvalMetric,
}

impl JudgeMetric {
    /// The name used in sentences: "accuracy", or "accuracy of species".
    pub fn title(&self) -> String {
        let title = self.metric.title();
        self.head.as_ref().map_or_else(|| title.to_owned(), |head| format!("{title} of {head}"))
    }
}

impl From<EvalMetric> for JudgeMetric {
    fn from(metric: EvalMetric) -> Self {
        JudgeMetric { head: None, metric }
    }
}

impl fmt::Display for JudgeMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.head {
            None => f.pad(self.metric.name()),
            Some(head) => f.pad(&format!("{head}.{}", self.metric)),
        }
    }
}

impl ConfigValue for JudgeMetric {
    fn read(setting: &Setting) -> Result<Self> {
        let (head, name) = setting.head_and_name()?;
        let metric = M::ALL.iter().find(|metric| metric.name() == name);
        Ok(JudgeMetric { head, metric: *metric.expect("the row has the names of metrics") })
    }

    fn write(&self) -> String {
        self.to_string().write()
    }
}

/// The names of [`EvalMetric`], and [`NONE`].
pub(super) const NAMES_OR_NONE: &[&str] = &{
    let mut names = [NONE; M::ALL.len() + 1];
    let mut i = 0;
    while i < M::ALL.len() {
        names[i] = <M as ConfigEnum>::NAMES[i];
        i += 1;
    }
    names
};
/// Name that selects no metric.
const NONE: &str = "none";

impl ConfigValue for Option<JudgeMetric> {
    fn read(setting: &Setting) -> Result<Self> {
        match setting.head_and_name()? {
            (None, NONE) => Ok(None),
            _ => JudgeMetric::read(setting).map(Some),
        }
    }

    fn write(&self) -> String {
        self.as_ref().map_or_else(|| NONE.to_owned().write(), ConfigValue::write)
    }
}

/// Checks the names of a `train.eval_metrics`.
pub(super) fn check_names(setting: &Setting, names: &[String], task: Task) -> Result<()> {
    MetricSet::from_names(names, task).map(|_| ()).map_err(|unknown| {
        setting.bad(format!("names of metrics for task \"{task}\": {}", unknown.expected), unknown.hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str], task: Task) -> Result<MetricSet, UnknownMetric> {
        MetricSet::from_names(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), task)
    }

    #[test]
    fn names_with_and_without_prefix_make_a_set() {
        let got = set(&["eval_roc_auc", "f1_micro", "confusion_matrix"], Task::Classification).unwrap();
        let want = MetricSet::default().with(M::Loss).with(M::RocAuc).with(M::F1Micro);
        assert_eq!(got, want.with_table(MetricTable::ConfusionMatrix));
        for task in [Task::Classification, Task::Multilabel, Task::Regression] {
            let defaults = set(&["default"], task).unwrap();
            assert_eq!(defaults, MetricSet::defaults(task));
            assert_eq!(M::ALL.iter().filter(|metric| defaults.has(**metric)).count(), 4, "{task}");
            let all = set(&["all"], task).unwrap();
            assert_eq!(all.union(defaults), all);
            assert!(M::ALL.iter().all(|metric| all.has(*metric) == metric.fits(task)));
        }
        let cheap = MetricSet::all(Task::Classification).without_costly();
        assert!(!cheap.has_any(&[M::RocAuc, M::AveragePrecision]) && cheap.has(M::Ece));
    }

    #[test]
    fn unknown_names_get_the_likeliest_one() {
        let hint = |name, task| set(&[name], task).unwrap_err().hint;
        assert_eq!(hint("f1", Task::Classification), "did you mean f1_macro?");
        assert_eq!(hint("auc", Task::Multilabel), "did you mean roc_auc?");
        assert_eq!(hint("eval_acuracy", Task::Classification), "did you mean accuracy?");
        assert_eq!(hint("r2", Task::Classification), "task \"classification\" does not give it");
        assert_eq!(hint("blorp", Task::Regression), "docs/metrics.md defines them");
        assert_eq!(similar("eval_f1", <M as ConfigEnum>::NAMES), Some("eval_f1_macro"));
        assert_eq!(similar("accuracy", <M as ConfigEnum>::NAMES), Some("eval_accuracy"));
    }
}
