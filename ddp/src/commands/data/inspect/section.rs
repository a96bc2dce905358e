//! Writes the section `[data]` of a config for the inspected data.

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind};
use super::origin::Origin;
use super::warnings::{Warning, WarningKind};
use crate::config::{DataFormat, Task};
use crate::data::SourceSpec;

/// `[data]` in TOML, with all settings that differ from the defaults.
pub(super) fn lines(
    origin: &Origin,
    collected: &Collector,
    columns: &[ColumnProfile],
    task: Option<Task>,
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
    lines.extend(origin.keys.iter().cloned());
    let targets: Vec<String> = origin.targets.iter().map(|&target| columns[target].name.clone()).collect();
    match &targets[..] {
        [] if is_table => lines.push("target = \"\"  # the column to predict".to_owned()),
        [target] if is_table && target != "label" => lines.push(format!("target = {}", quoted(target))),
        [_, _, ..] if is_table => lines.push(format!("target = {}", list(&targets))),
        _ => {}
    }
    if !of_kinds(&[WarningKind::TargetText, WarningKind::TargetMissing]).is_empty() {
        lines.push(format!("# {} must hold numbers in all rows: see the warnings", targets.join(", ")));
    }
    if let Some(task) = task.filter(|task| *task != Task::Classification) {
        lines.push(format!("task = {}", quoted(task.name())));
    }
    let mut dropped = Vec::new();
    if is_table {
        dropped = of_kinds(&[
            WarningKind::Leak,
            WarningKind::Identifier,
            WarningKind::OddText,
            WarningKind::NotFinite,
        ]);
        // The first of several equal columns stays.
        let duplicates = warnings.iter().filter(|warning| warning.kind == WarningKind::Duplicate);
        dropped.extend(duplicates.flat_map(|warning| warning.columns[1..].to_vec()));
        // Constant numbers are harmless, but constant texts can't be read as numbers.
        let is_text =
            |name: &String| columns.iter().any(|column| column.name == *name && column.kind == Kind::Text);
        dropped.extend(of_kinds(&[WarningKind::Constant]).into_iter().filter(is_text));
        dropped.retain(|name| !targets.contains(name));
        dropped.sort_by_key(|name| origin.names.iter().position(|other| other == name));
        dropped.dedup();
        if !dropped.is_empty() {
            lines.push(format!("drop = {}  # see the warnings", list(&dropped)));
        }
        let mut categorical = of_kinds(&[WarningKind::Text]);
        categorical.retain(|name| !dropped.contains(name));
        if !categorical.is_empty() {
            lines.push(format!("categorical = {}", list(&categorical)));
        }
    }
    let numbers: Vec<&ColumnProfile> = columns
        .iter()
        .filter(|column| !column.is_target && !matches!(column.kind, Kind::Text | Kind::Category | Kind::Index))
        .filter(|column| !dropped.contains(&column.name))
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

/// A TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", quoted.join(", "))
}
