//! One finding about inspected data, and the words that findings share.

use serde::Serialize;

use ddp::config::Task;

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
    OneHot,
    Spelling,
    Marks,
    NotFinite,
    Encoding,
    Unusable,
    Formatted,
    OddText,
    Marked,
    Text,
    Codes,
    Sentinel,
    FarValue,
    Missing,
    Zones,
    Leak,
    Determines,
    Identifier,
    Constant,
    Duplicate,
    Imbalance,
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

/// The columns of the warnings of these kinds.
pub(super) fn columns_of(warnings: &[Warning], kinds: &[WarningKind]) -> Vec<String> {
    let of_kinds = warnings.iter().filter(|warning| kinds.contains(&warning.kind));
    of_kinds.flat_map(|warning| warning.columns.clone()).collect()
}

/// Names in a list, truncated if there are many.
pub(super) fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| cut(name, 30)).collect();
    let more = names.len() - shown.len();
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// A text, truncated if it is long.
pub(super) fn cut(text: &str, n_chars: usize) -> String {
    match text.char_indices().nth(n_chars) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// A number with its noun.
pub(super) fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
