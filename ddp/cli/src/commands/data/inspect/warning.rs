//! One finding about inspected data, the questions and words that findings share, and the columns that a config leaves out.

use std::collections::HashSet;

use ddp::config::Task;
use ddp_tables::formats::table::types::Found;
use serde::Serialize;

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind, Origin};

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
    InfiniteDates,
    Leak,
    Determines,
    Identifier,
    Constant,
    Duplicate,
    Imbalance,
    FewRows,
}

impl Warning {
    /// Whether it may hold for the first rows of a table alone.
    pub(super) fn depends_on_all_rows(&self) -> bool {
        use WarningKind::{Constant, Determines, Duplicate, OneClass, TargetEmpty};
        matches!(self.kind, Constant | Determines | Duplicate | OneClass | TargetEmpty)
    }

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

/// Names of the columns of a table that would stop training or mislead, in the order of the file.
pub(super) fn dropped(columns: &[ColumnProfile], warnings: &[Warning]) -> Vec<String> {
    use WarningKind::{Constant, Duplicate, Encoding, Identifier, Leak, NotFinite, OddText, Unusable};
    let mut found =
        columns_of(warnings, &[Leak, Identifier, OddText, NotFinite, Unusable, Encoding, Constant]);
    // The first of several equal columns stays.
    let duplicates = warnings.iter().filter(|warning| warning.kind == Duplicate);
    found.extend(duplicates.flat_map(|warning| warning.columns[1..].to_vec()));
    // Numbers and dates that are written for people are no categories if nearly each has its own.
    let are_single = |column: &&ColumnProfile| {
        column.n_values >= MIN_ROWS as u64 && column.n_distinct.is_none_or(|n| 2 * n as u64 > column.n_values)
    };
    let formatted = columns_of(warnings, &[WarningKind::Formatted]);
    let of_formatted = columns.iter().filter(|column| formatted.contains(&column.name)).filter(are_single);
    found.extend(of_formatted.map(|column| column.name.clone()));
    let features = columns.iter().filter(|column| column.is_feature());
    let found: HashSet<String> = found.into_iter().collect();
    let is_found = |column: &&ColumnProfile| found.contains(&column.name);
    let mut dropped: Vec<String> =
        features.clone().filter(is_found).map(|column| column.name.clone()).collect();
    // A model needs a feature.
    if !has_features(&dropped, columns) {
        let is_usable =
            |column: &&ColumnProfile| !column.has_faults && !matches!(column.kind, Kind::Other | Kind::Empty);
        if let Some(kept) = features.clone().find(is_usable) {
            dropped.retain(|name| *name != kept.name);
        }
    }
    dropped
}

/// Whether a column is left as a feature.
pub(super) fn has_features(dropped: &[String], columns: &[ColumnProfile]) -> bool {
    let dropped: HashSet<&String> = dropped.iter().collect();
    columns.iter().any(|column| column.is_feature() && !dropped.contains(&column.name))
}

/// Fewest rows for findings that could arise by chance.
pub(super) const MIN_ROWS: usize = 30;

/// Inspected columns, and the task of a model for their targets.
pub(super) struct Inspected<'a> {
    pub(super) origin: &'a Origin,
    pub(super) collected: &'a Collector,
    pub(super) columns: &'a [ColumnProfile],
    pub(super) task: Option<Task>,
    pub(super) warnings: Vec<Warning>,
}

impl Inspected<'_> {
    pub(super) fn features(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|&index| self.columns[index].is_feature()).collect()
    }

    /// Features that satisfy `is_one`.
    pub(super) fn features_where(&self, is_one: impl Fn(usize) -> bool) -> Vec<usize> {
        self.features().into_iter().filter(|&index| is_one(index)).collect()
    }

    /// Adds a warning about columns, if there are any.
    pub(super) fn about(
        &mut self,
        kind: WarningKind,
        indices: &[usize],
        message: impl FnOnce(&str) -> String,
    ) {
        if !indices.is_empty() {
            let columns: Vec<String> =
                indices.iter().map(|&index| self.columns[index].name.clone()).collect();
            let message = message(&listed(&columns));
            self.warnings.push(Warning { kind, columns, message });
        }
    }

    pub(super) fn first(&self, found: &Found) -> String {
        let first = found.first.as_ref();
        first.map_or(String::new(), |(place, _)| format!(", first in {}", self.origin.place(*place)))
    }

    /// Place and text of the first odd value.
    pub(super) fn odd(&self, odd: &Found) -> String {
        odd.first.as_ref().map_or(String::new(), |(place, text)| {
            format!("\"{}\" in {}", cut(text, 40), self.origin.place(*place))
        })
    }

    pub(super) fn n_values(&self, index: usize) -> u64 {
        self.collected.n_rows as u64 - self.collected.columns[index].types.missing.n
    }

    /// Whether a model would read a column as text although most of its values are numbers or dates for people.
    pub(super) fn is_formatted(&self, index: usize) -> bool {
        let column = &self.collected.columns[index];
        // Without other texts, the file stores numbers or dates as text.
        let is_stored_so =
            column.types.texts.n == 0 && column.types.n_truths == 0 && self.n_values(index) > 0;
        self.columns[index].kind == Kind::Text
            && (is_stored_so || column.n_formatted > 0 && 2 * column.n_formatted >= column.types.texts.n)
    }

    /// Whether a column is one of words rather than of numbers with a few odd texts.
    pub(super) fn is_of_words(&self, index: usize) -> bool {
        let column = &self.collected.columns[index];
        !self.columns[index].has_strays
            && (2 * column.n_words() > self.n_values(index)
                || self.columns[index].kind == Kind::Text && column.types.texts.n == 0)
    }
}
