//! Writes the section `[data]` of a config for the inspected data.

use std::collections::{HashMap, HashSet};

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind};
use super::origin::Origin;
use super::warnings::{Warning, WarningKind};
use crate::config::{DataFormat, Delimiter, Task};
use crate::data::SourceSpec;

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
    spec: &SourceSpec<'_>,
) -> String {
    let is_table = origin.arrays.is_empty() && !spec.source.starts_with("builtin:");
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
        let largest = origin.targets.iter().filter_map(|&target| columns[target].range);
        let n_classes = largest.fold(2, |n, range| n.max(range.max as usize + 1));
        lines.push(format!("classes = {n_classes}  # see the warnings"));
    }
    let mut dropped = Vec::new();
    if is_table {
        dropped = of_kinds(&[
            WarningKind::Leak,
            WarningKind::Identifier,
            WarningKind::OddText,
            WarningKind::NotFinite,
            WarningKind::Unusable,
            WarningKind::Encoding,
        ]);
        // The first of several equal columns stays.
        let duplicates = warnings.iter().filter(|warning| warning.kind == WarningKind::Duplicate);
        dropped.extend(duplicates.flat_map(|warning| warning.columns[1..].to_vec()));
        // Constant numbers are harmless, but constant texts can't be read as numbers.
        let is_useless = |column: &&ColumnProfile| matches!(column.kind, Kind::Text | Kind::Empty);
        let useless: HashSet<&str> = columns.iter().filter(is_useless).map(|column| &*column.name).collect();
        let constant = of_kinds(&[WarningKind::Constant]);
        dropped.extend(constant.into_iter().filter(|name| useless.contains(name.as_str())));
        dropped.retain(|name| !targets.contains(name));
        let places: HashMap<&String, usize> = origin.names.iter().zip(0..).collect();
        dropped.sort_by_key(|name| places.get(name));
        dropped.dedup();
        keep_one(&mut dropped, columns);
        if !dropped.is_empty() {
            lines.push(format!("drop = {}  # see the warnings", list(&dropped)));
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
    if !spec.source.starts_with("builtin:") && collected.n_rows >= 10 {
        lines.push("eval_fraction = 0.2".to_owned());
    }
    lines.join("\n") + "\n"
}

/// Takes a column that can be a feature out of `dropped` if no other feature is left: a model needs one.
fn keep_one(dropped: &mut Vec<String>, columns: &[ColumnProfile]) {
    let is_feature = |column: &&ColumnProfile| !column.is_target && column.kind != Kind::Index;
    let among_dropped: HashSet<&String> = dropped.iter().collect();
    if columns.iter().filter(is_feature).any(|column| !among_dropped.contains(&column.name)) {
        return;
    }
    let is_usable = |column: &&ColumnProfile| {
        let is_clean = !column.has_faults;
        is_clean && !matches!(column.kind, Kind::Other | Kind::Empty)
    };
    if let Some(kept) = columns.iter().filter(is_feature).find(is_usable) {
        dropped.retain(|name| *name != kept.name);
    }
}

/// A TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", quoted.join(", "))
}
