//! Writes the section `[data]` of a config for the inspected data.

use std::collections::HashSet;

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind};
use super::origin::Origin;
use super::warnings::{Warning, WarningKind};
use crate::config::{DataFormat, Delimiter, Task};
use crate::data::SourceSpec;
use crate::data::labels::MAX_CLASSES;

/// Task that fits the targets' values, as `data.task = "auto"` decides.
#[derive(Debug, Clone, Copy)]
pub(super) struct FittingTask {
    pub(super) task: Task,
    /// Number of distinct integers that may be classes or quantities, so that the config must name the task.
    pub(super) undecided: Option<usize>,
}

/// `[data]` in TOML, with all settings that differ from the defaults.
pub(super) fn lines(
    origin: &Origin,
    collected: &Collector,
    columns: &[ColumnProfile],
    task: Option<FittingTask>,
    warnings: &[Warning],
    dropped: &[String],
    spec: &SourceSpec<'_>,
) -> String {
    let is_table = is_table(origin, spec);
    let of_kinds = |kinds: &[WarningKind]| -> Vec<String> {
        let of = warnings.iter().filter(|warning| kinds.contains(&warning.kind));
        of.flat_map(|warning| warning.columns.clone()).collect()
    };
    let mut lines = vec!["[data]".to_owned(), format!("train = {}", quoted(spec.source))];
    match spec.labels {
        Some(labels) => lines.push(format!("labels = {}", quoted(labels))),
        None if !origin.arrays.is_empty() && origin.targets.is_empty() => {
            lines.push("labels = \"\"  # the file of the labels".to_owned());
        }
        None => {}
    }
    if spec.data.format != DataFormat::Auto {
        lines.push(format!("format = {}", quoted(spec.data.format.name())));
    }
    if spec.data.delimiter != Delimiter::Auto {
        lines.push(format!("delimiter = {}", quoted(spec.data.delimiter.name())));
    }
    if !spec.data.missing_values.is_empty() {
        lines.push(format!("missing_values = {}", list(&spec.data.missing_values)));
    }
    lines.extend(origin.keys.iter().cloned());
    let targets: Vec<String> = origin.targets.iter().map(|&target| columns[target].name.clone()).collect();
    match &targets[..] {
        [] if is_table => lines.push("target = \"\"  # the column to predict".to_owned()),
        [target] if is_table && target != "label" => lines.push(format!("target = {}", quoted(target))),
        [_, _, ..] if is_table => lines.push(format!("target = {}", list(&targets))),
        _ => {}
    }
    if !of_kinds(&[WarningKind::TargetMissing]).is_empty() {
        lines.push(format!("# {} must have a value in all rows: see the warnings", targets.join(", ")));
    }
    if !of_kinds(&[WarningKind::TargetText]).is_empty() {
        lines.push(format!("# {} must hold numbers in all rows: see the warnings", targets.join(", ")));
    }
    if !of_kinds(&[WarningKind::NoFeatures]).is_empty() {
        lines.push("# no column is left as a feature: see the warnings".to_owned());
    }
    match task {
        Some(FittingTask { task, undecided: Some(n) }) => {
            let other = if task == Task::Classification { Task::Regression } else { Task::Classification };
            let line = format!("task = {}", quoted(task.name()));
            lines.push(format!("{line}  # or {}: {n} distinct integers may be either", quoted(other.name())));
        }
        Some(FittingTask { task, .. }) if task != Task::Classification => {
            lines.push(format!("task = {}", quoted(task.name())));
        }
        _ => {}
    }
    let of_one_class = warnings.iter().any(|warning| warning.kind == WarningKind::OneClass);
    let are_integers = origin.targets.iter().all(|&target| columns[target].kind == Kind::Integer);
    if task.is_some_and(|fitting| fitting.task == Task::Classification) && of_one_class && are_integers {
        let label = origin.targets.iter().find_map(|&target| columns[target].range);
        // Other labels are no class numbers.
        if let Some(label) = label.filter(|label| label.min >= 0.0 && label.max < MAX_CLASSES as f64) {
            lines.push(format!("classes = {}  # see the warnings", (label.max as usize + 1).max(2)));
        }
    }
    if is_table {
        if !dropped.is_empty() {
            lines.push(format!("drop = {}  # see the warnings", list(dropped)));
        }
        let is_text = |column: &&ColumnProfile| column.kind == Kind::Text && !column.is_target;
        let mut categorical: Vec<String> =
            columns.iter().filter(is_text).map(|column| column.name.clone()).collect();
        let among_dropped: HashSet<&String> = dropped.iter().collect();
        categorical.retain(|name| !among_dropped.contains(name));
        if !categorical.is_empty() {
            lines.push(format!("categorical = {}", list(&categorical)));
        }
    }
    let among_dropped: HashSet<&String> = dropped.iter().collect();
    let numbers: Vec<&ColumnProfile> = columns
        .iter()
        .filter(|column| {
            !column.is_target
                && !matches!(column.kind, Kind::Text | Kind::Category | Kind::Index | Kind::Other)
        })
        .filter(|column| !among_dropped.contains(&column.name))
        .collect();
    if numbers.iter().any(|column| column.n_missing > 0) {
        lines.push("missing = \"mean\"".to_owned());
    }
    if numbers
        .iter()
        .any(|column| column.range.is_some_and(|range| range.min.abs().max(range.max.abs()) > 10.0))
    {
        lines.push("normalize = \"standard\"".to_owned());
    }
    // A class of one row trains, so there must be another one to evaluate on.
    let is_single = |&target: &usize| columns[target].n_distinct == Some(collected.n_rows);
    let are_single = task.is_some_and(|fitting| fitting.task == Task::Classification)
        && origin.targets.iter().any(is_single);
    if !spec.source.starts_with("builtin:") && collected.n_rows >= 10 && !are_single {
        lines.push("eval_fraction = 0.2".to_owned());
    }
    lines.join("\n") + "\n"
}

/// Whether the data are a table, whose columns have names.
pub(super) fn is_table(origin: &Origin, spec: &SourceSpec<'_>) -> bool {
    origin.arrays.is_empty() && !spec.source.starts_with("builtin:")
}

/// A TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", quoted.join(", "))
}
