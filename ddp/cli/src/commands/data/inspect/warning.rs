//! One finding about inspected data.

use ddp::config::Task;
use serde::Serialize;

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Warning {
    pub(super) kind: WarningKind,
    /// The affected columns.
    pub(super) columns: Vec<String>,
    /// The problem and the remedy.
    pub(super) message: String,
}

/// In the order of the report: problems that stop training come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WarningKind {
    NoFeatures,
    TargetEmpty,
    TargetText,
    TargetMissing,
    OneClass,
    ManyClasses,
    Spelling,
    OneRow,
    Marks,
    NotFinite,
    Encoding,
    Unusable,
    Formatted,
    OddText,
    Marked,
    Text,
    NestedLists,
    Codes,
    Sentinel,
    Missing,
    Leak,
    Identifier,
    Constant,
    Duplicate,
    Imbalance,
    Signs,
    FewRows,
}

impl Warning {
    /// Whether a model for `task` can't be trained before this is corrected.
    pub(super) fn stops_training(&self, task: Option<Task>) -> bool {
        match self.kind {
            WarningKind::NoFeatures | WarningKind::TargetEmpty => true,
            WarningKind::OneClass => task == Some(Task::Classification),
            _ => false,
        }
    }
}
