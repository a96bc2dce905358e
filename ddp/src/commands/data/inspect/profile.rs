//! What is known of data after all rows were read.

use serde::Serialize;

use super::collector::{Collector, Column, Place};
use super::section;
use super::warnings::{self, Warning};
use crate::config::Task;
use crate::data::SourceSpec;

/// All of it, one JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Profile {
    pub(super) source: String,
    pub(super) format: String,
    pub(super) files: Vec<FileSize>,
    /// Arrays in the files, for formats of arrays.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) arrays: Vec<ArrayShape>,
    pub(super) n_rows: usize,
    pub(super) columns: Vec<ColumnProfile>,
    /// What a model would learn; None without a target.
    pub(super) task: Option<&'static str>,
    pub(super) warnings: Vec<Warning>,
    /// Lines of a config.
    pub(super) data_section: String,
}

#[derive(Debug, Serialize)]
pub(super) struct FileSize {
    pub(super) path: String,
    pub(super) size_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct ArrayShape {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) shape: Vec<usize>,
}

#[derive(Debug, Serialize)]
pub(super) struct ColumnProfile {
    pub(super) name: String,
    pub(super) is_target: bool,
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    pub(super) n_missing: u64,
    /// None where there are too many to count.
    pub(super) n_distinct: Option<usize>,
    #[serde(flatten)]
    pub(super) range: Option<Range>,
    /// The values, where they are few; the most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) values: Vec<ValueCount>,
}

/// What the values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Integer,
    Number,
    Text,
    /// Numbers of categories.
    Category,
    /// No value at all.
    Empty,
    /// An element of an array.
    #[serde(untagged)]
    Element(&'static str),
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Range {
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) mean: f64,
    pub(super) standard_deviation: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct ValueCount {
    pub(super) value: String,
    pub(super) n_rows: u64,
    /// Of the rows in which the column has a value.
    pub(super) share: f64,
}

/// Where rows came from, and what is known of their columns beforehand.
pub(super) struct Origin {
    pub(super) format: String,
    pub(super) files: Vec<FileSize>,
    pub(super) arrays: Vec<ArrayShape>,
    pub(super) names: Vec<String>,
    /// Indices of the targets.
    pub(super) targets: Vec<usize>,
    /// What is known of the columns' types; None where their values tell.
    pub(super) kinds: Vec<Option<Kind>>,
    /// "line" or "row".
    pub(super) place: &'static str,
    /// Lines of the config that name arrays.
    pub(super) keys: Vec<String>,
}

impl Origin {
    /// A place in words.
    pub(super) fn place(&self, place: Place) -> String {
        let number = format!("{} {}", self.place, place.number);
        if self.files.len() > 1 { format!("{number} of {}", self.files[place.file].path) } else { number }
    }
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Text => "text",
            Kind::Category => "category",
            Kind::Empty => "empty",
            Kind::Element(name) => name,
        }
    }
}

/// Distinct values that are shown one by one.
pub(super) const MAX_SHOWN_VALUES: usize = 20;

impl Profile {
    /// What was collected, judged.
    pub(super) fn new(origin: Origin, collected: &Collector, spec: &SourceSpec<'_>) -> Self {
        let columns: Vec<ColumnProfile> =
            (0..origin.names.len()).map(|index| column(&origin, collected, index)).collect();
        let task = task(&origin, collected, &columns);
        let warnings = warnings::warnings(&origin, collected, &columns, task);
        let data_section = section::lines(&origin, collected, &columns, task, &warnings, spec);
        Profile {
            source: spec.source.to_owned(),
            format: origin.format,
            files: origin.files,
            arrays: origin.arrays,
            n_rows: collected.n_rows,
            columns,
            task: task.map(Task::name),
            warnings,
            data_section,
        }
    }
}

fn column(origin: &Origin, collected: &Collector, index: usize) -> ColumnProfile {
    let column = &collected.columns[index];
    let stats = &collected.stats;
    let range = (stats.count[index] > 0.0).then(|| Range {
        min: stats.min[index],
        max: stats.max[index],
        mean: stats.mean[index],
        standard_deviation: stats.standard_deviation(index),
    });
    let kind = origin.kinds[index].unwrap_or_else(|| kind(column, range.is_some()));
    let counts = column.values.by_count();
    let n: u64 = counts.iter().map(|(_, count)| count).sum();
    let values = if counts.len() <= MAX_SHOWN_VALUES { counts } else { Vec::new() };
    let share = |count: u64| count as f64 / n.max(1) as f64;
    ColumnProfile {
        name: origin.names[index].clone(),
        is_target: origin.targets.contains(&index),
        kind,
        n_missing: column.n_missing,
        n_distinct: column.values.len(),
        range: range.filter(|_| !matches!(kind, Kind::Text | Kind::Category)),
        values: values
            .into_iter()
            .map(|(value, n_rows)| ValueCount { value, n_rows, share: share(n_rows) })
            .collect(),
    }
}

fn kind(column: &Column, has_numbers: bool) -> Kind {
    match () {
        () if column.texts.n > 0 => Kind::Text,
        () if column.has_fractions || column.not_finite.n > 0 => Kind::Number,
        () if has_numbers => Kind::Integer,
        () => Kind::Empty,
    }
}

/// What a model for the targets would learn, as far as they tell.
fn task(origin: &Origin, collected: &Collector, columns: &[ColumnProfile]) -> Option<Task> {
    const MAX_CLASSES: usize = 1000;
    let is_class = |&index: &usize| {
        let (column, profile) = (&collected.columns[index], &columns[index]);
        let is_whole = !column.has_fractions && profile.range.is_none_or(|range| range.min >= 0.0);
        let is_few = profile.n_distinct.is_some_and(|n| n <= MAX_CLASSES && n <= collected.n_rows / 5 + 2);
        is_few && (profile.kind == Kind::Text || is_whole)
    };
    let is_binary = |&index: &usize| {
        let range = columns[index].range;
        range.is_some_and(|range| range.min >= 0.0 && range.max <= 1.0)
            && !collected.columns[index].has_fractions
    };
    match &origin.targets[..] {
        [] => None,
        [target] if is_class(target) => Some(Task::Classification),
        [_] => Some(Task::Regression),
        targets if targets.iter().all(is_binary) => Some(Task::Multilabel),
        _ => Some(Task::Regression),
    }
}
