//! Errors of targets and labels.

use ddp::data::labels::{Label, LabelVocabulary};

use crate::formats::error::CellProblem;

/// Targets or labels that do not fit the task or the model.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum TargetError {
    /// Rows with a label each, of which `data.eval_fraction` leaves all to training.
    #[error(
        "{source_name}: the {n_rows} rows have {n_rows} different labels, such as \"{label}\", so that none can be held out: a class of \
         one row trains"
    )]
    #[diagnostic(help(
        "for a quantity, set `data.task` to \"regression\"; is it an identifier, or a number written as text? `ddp-train data \
         inspect` says more, and `data.target` names another column"
    ))]
    LoneLabels {
        source_name: String,
        /// Rows before the split, and labels.
        n_rows: usize,
        /// One of the labels.
        label: String,
    },
    /// A table of which no row has a target.
    #[error("`{source_name}`: no row has a value of {targets}")]
    #[diagnostic(help("name another column in `data.target`"))]
    NoTargets {
        source_name: String,
        /// Names of the targets.
        targets: String,
    },
    /// A head whose target is not a column of the table.
    #[error("`{source_name}`: no column \"{column}\", which is a target of `heads`")]
    #[diagnostic(help("name the target columns of each head by `target`"))]
    HeadWithoutColumn {
        source_name: String,
        /// The target.
        column: String,
    },
    /// A table whose columns are all targets of heads.
    #[error("`{source_name}`: every column is a target, so that no feature is left")]
    #[diagnostic(help("take columns out of `heads`"))]
    OnlyTargets { source_name: String },
    /// A row without a target of a head, or with a label that the training rows lack.
    #[error("{place}: no target \"{column}\", or a label that the training rows do not have")]
    #[diagnostic(help(
        "set `data.missing_target` to \"skip\" to leave the row out of the loss of that head alone"
    ))]
    NoTargetOfHead {
        /// File and row.
        place: String,
        /// The target.
        column: String,
    },
    /// Heads on rows that are not a table.
    #[error("`{source_name}` is not a table: `heads` name its columns")]
    #[diagnostic(help("write the rows to CSV, Parquet or another table, or leave out `heads`"))]
    HeadsWithoutTable { source_name: String },
    /// Features without labels.
    #[error("`{source_name}` has no labels")]
    #[diagnostic(help("{hint}"))]
    NoLabels { source_name: String, hint: &'static str },
    /// NaN or infinity among the targets, which can't be filled in.
    #[error("{place}, {column}: expected a finite number, got {value}")]
    #[diagnostic(help("correct the targets, or remove rows without one"))]
    TargetNotFinite {
        /// File and row.
        place: String,
        /// The target.
        column: String,
        /// NaN or infinity.
        value: f64,
    },
    /// A label that exceeds the number of classes.
    #[error("{place}: label {label} is out of range, expected 0 to {} ({classes} classes)", classes - 1)]
    #[diagnostic(help(
        "set `data.classes` to {} or more, number the classes from 0, or leave out such evaluation rows with \
         `data.unknown_label` = \"skip\"",
        label.saturating_add(1)
    ))]
    LabelOutOfRange {
        /// File and row.
        place: String,
        label: i64,
        classes: usize,
    },
    /// A negative label.
    #[error("{place}: expected a class number of 0 or above, got {label}")]
    #[diagnostic(help("number the classes from 0"))]
    LabelNegative {
        /// File and row.
        place: String,
        label: i64,
    },
    /// Training rows that all weigh nothing.
    #[error("the weights of all {n_rows} training rows of {source_name} are 0: there is nothing to learn")]
    #[diagnostic(help("give rows a weight above 0, or leave out `data.weight`"))]
    NoWeight { source_name: String, n_rows: usize },
    /// Evaluation rows that all weigh nothing.
    #[error("the weights of all {n_rows} evaluation rows of {source_name} are 0: no metric is defined")]
    #[diagnostic(help("give rows to evaluate on a weight above 0"))]
    NoEvalWeight { source_name: String, n_rows: usize },
    /// A label that is not a class.
    #[error("{place}: label \"{label}\" is none of the {n_classes} classes of the training rows: {classes}")]
    #[diagnostic(help(
        "correct the label, or leave out such evaluation rows with `data.unknown_label` = \"skip\""
    ))]
    LabelUnknown {
        /// File and row.
        place: String,
        label: String,
        n_classes: usize,
        /// The classes in one line.
        classes: String,
    },
    /// A label that can't be used.
    #[error("{place}: {problem}")]
    #[diagnostic(forward(problem))]
    Label {
        /// File, row and column.
        place: String,
        problem: CellProblem,
    },
    /// Labels that are neither numbers nor text.
    #[error("{place}: the label is missing")]
    #[diagnostic(help("fill in the label, or remove rows without one"))]
    LabelMissing {
        /// File and row.
        place: String,
    },
    /// Evaluation rows all of whose labels are unknown.
    #[error("`{source_name}`: no row has a label that occurs in training")]
    #[diagnostic(help("check `data.target` or `data.eval_labels`"))]
    NoKnownLabels { source_name: String },
    /// Targets that may be classes or quantities.
    #[error("`{source_name}`: \"{column}\" holds {values}, which may be classes or quantities")]
    #[diagnostic(help("set `data.task` to \"classification\" or \"regression\""))]
    TaskUndecided {
        source_name: String,
        /// The target.
        column: String,
        /// Its values in words.
        values: String,
    },
    /// Labels with too many distinct values.
    #[error("`{source_name}`: more than {limit} distinct labels")]
    #[diagnostic(help(
        "is the target an identifier? name another column in `data.target`; for real-valued targets set `data.task` to \"regression\"; labels that are numbers from 0 may be more with `data.classes`"
    ))]
    TooManyClasses { source_name: String, limit: usize },
    /// Targets of a type that the task does not take.
    #[error("{place}: expected numbers, got text")]
    #[diagnostic(help("{hint}"))]
    TargetText {
        /// The file, quoted, or the file and row.
        place: String,
        hint: &'static str,
    },
    /// A label with a fraction.
    #[error("{place}: expected a whole class number, got {label}")]
    #[diagnostic(help("for real-valued targets set `data.task` to \"regression\""))]
    LabelNotWhole {
        /// File and row.
        place: String,
        label: f64,
    },
    /// Labels of a single class.
    #[error("`{source_name}`: all {n_rows} rows have label {label}, expected two classes or more")]
    #[diagnostic(help("check `data.target` or `data.labels`, or set `data.classes`"))]
    SingleClass {
        source_name: String,
        n_rows: usize,
        /// The only label.
        label: String,
    },
    /// A label that `data.class_order` does not list, or lists twice in two spellings.
    #[error("`{source_name}`: label \"{label}\" must appear once in `data.class_order`, which lists {order}")]
    #[diagnostic(help("list each label of the training rows once, the lowest first"))]
    LabelNotInOrder {
        source_name: String,
        label: String,
        /// The labels of the config.
        order: String,
    },
    /// A multilabel target that is neither 0 nor 1.
    #[error("{place}, {column}: expected 0 or 1 for task \"multilabel\", got {value}")]
    #[diagnostic(help("for real-valued targets set `data.task` to \"regression\""))]
    NotBinary {
        /// File and row.
        place: String,
        column: String,
        value: f64,
    },
    /// A target below 0 for a loss that takes counts.
    #[error(
        "`{source_name}`, target \"{column}\": the smallest value is {value}, but the loss \"poisson\" takes counts from 0"
    )]
    #[diagnostic(help("correct the targets, or leave out `loss.kind` to train on the squared error"))]
    NegativeCount {
        source_name: String,
        column: String,
        /// Its smallest value.
        value: f64,
    },
    /// Labels whose shape does not fit the task.
    #[error("the labels in `{source_name}` have shape {shape:?}, expected {expected}")]
    #[diagnostic(help("{hint}"))]
    LabelShape {
        /// Where they are.
        source_name: String,
        shape: Vec<usize>,
        expected: String,
        hint: &'static str,
    },
}

impl TargetError {
    /// Whether a label is not a class of the training rows.
    pub(crate) fn is_unknown_label(&self) -> bool {
        match self {
            Self::LabelUnknown { .. } | Self::LabelOutOfRange { .. } | Self::LabelNegative { .. } => true,
            Self::Label { problem, .. } => problem.is_unknown_label(),
            _ => false,
        }
    }

    /// The error for a label that is not a class.
    pub fn unknown_label(place: String, label: &Label, vocabulary: &LabelVocabulary) -> Self {
        match label {
            Label::Integer(label) if vocabulary.is_numbers() && *label < 0 => {
                TargetError::LabelNegative { place, label: *label }
            }
            Label::Integer(label) if vocabulary.is_numbers() => {
                TargetError::LabelOutOfRange { place, label: *label, classes: vocabulary.len() }
            }
            label => TargetError::LabelUnknown {
                place,
                label: label.to_string(),
                n_classes: vocabulary.len(),
                classes: vocabulary.summary(),
            },
        }
    }
}
