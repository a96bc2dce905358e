//! Writes the section `[data]` of a config for the inspected data.

use std::collections::HashSet;

use ddp::config::{DataFormat, Decimal, Delimiter, Header, Task};
use ddp::data::{SourceSpec, holds_eval_rows};

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind, Range};
use super::origin::Origin;
use super::warning::{Warning, WarningKind};

/// Fewest rows of which the config holds out some for evaluation.
pub(super) const MIN_ROWS_TO_SPLIT: usize = 10;
/// Fewest distinct integers in a target that may be a rating rather than names of classes.
const MIN_RATINGS: usize = 5;
/// Largest rating.
const MAX_RATING: f64 = 100.0;
/// Most values of a column for which each becomes a feature; above, all columns of categories have embeddings.
const MAX_ONE_HOT: usize = 100;
/// Time after which weekdays repeat, so that the parts of a date hold more information than its place on a line.
const MIN_SPAN_OF_PARTS_S: f64 = 14.0 * 86_400.0;

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
    let has = |kind: WarningKind| warnings.iter().any(|warning| warning.kind == kind);
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
    if spec.data.header == Header::Absent {
        lines.push("header = false".to_owned());
    }
    if spec.data.delimiter != Delimiter::Auto {
        lines.push(format!("delimiter = {}", quoted(spec.data.delimiter.name())));
    }
    if spec.data.decimal != Decimal::Auto {
        lines.push(format!("decimal = {}", quoted(spec.data.decimal.name())));
    } else if has(WarningKind::Marks) {
        lines.push("decimal = \".\"  # or \",\": see the warnings".to_owned());
    }
    let mut marked: HashSet<String> = of_kinds(&[WarningKind::Marked]).into_iter().collect();
    dropped.iter().for_each(|name| _ = marked.remove(name));
    let mut marks = spec.data.missing_values.clone();
    for (column, collected) in columns.iter().zip(&collected.columns) {
        if marked.contains(&column.name) {
            marks.extend(collected.words.by_count().into_iter().map(|(word, _)| word.to_owned()));
        }
    }
    let mut seen = HashSet::new();
    marks.retain(|mark| seen.insert(mark.clone()));
    if !marks.is_empty() {
        lines.push(format!("missing_values = {}", list(&marks)));
    }
    if is_table {
        lines.extend(seeming_marks(collected, columns, &of_kinds(&[WarningKind::Sentinel])));
    }
    lines.extend(origin.keys.iter().cloned());
    let targets: Vec<String> = origin.targets.iter().map(|&target| columns[target].name.clone()).collect();
    match &targets[..] {
        [] if is_table => lines.push("target = \"\"  # the column to predict".to_owned()),
        [target] if is_table && target != "label" => lines.push(format!("target = {}", quoted(target))),
        [_, _, ..] if is_table => lines.push(format!("target = {}", list(&targets))),
        _ => {}
    }
    if is_table && (has(WarningKind::TargetMissing) || has(WarningKind::TargetEmpty)) {
        lines.push("missing_target = \"skip\"  # leaves out rows without a target".to_owned());
    } else if has(WarningKind::TargetMissing) {
        lines.push(format!("# {} must have a value in all rows: see the warnings", targets.join(", ")));
    }
    if has(WarningKind::TargetText) {
        lines.push(format!("# {} must hold numbers in all rows: see the warnings", targets.join(", ")));
    }
    if has(WarningKind::NoFeatures) {
        lines.push("# no column is left as a feature: see the warnings".to_owned());
    }
    if has(WarningKind::TargetEmpty) {
        lines.push(format!("# {} has no value in any row", of_kinds(&[WarningKind::TargetEmpty]).join(", ")));
    }
    if has(WarningKind::OneClass) {
        lines.push(format!("# {} has a single value: there is nothing to learn", targets.join(", ")));
    }
    // Few integers are taken for classes, but ratings have an order.
    let rating = match &origin.targets[..] {
        &[target] if is_table && is_of_ratings(&columns[target]) => columns[target].n_distinct,
        _ => None,
    };
    match task {
        Some(FittingTask { task: Task::Classification, undecided: None })
            if rating.is_some_and(|n| n >= MIN_RATINGS) =>
        {
            lines.push(format!(
                "task = \"classification\"  # or \"regression\": {} distinct integers may be either",
                rating.unwrap_or(0)
            ));
        }
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
    if is_table {
        if !dropped.is_empty() {
            lines.push(format!("drop = {}  # see the warnings", list(dropped)));
        }
        lines.extend(categories(columns, dropped, &marked));
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
    if is_table && have_parts(collected, columns, &numbers) {
        lines.push("datetime = \"parts\"".to_owned());
    }
    if !marked.is_empty() || numbers.iter().any(|column| column.n_missing > 0) {
        lines.push("missing = \"mean\"".to_owned());
    }
    if numbers
        .iter()
        .any(|column| column.range.is_some_and(|range| range.min.abs().max(range.max.abs()) > 10.0))
    {
        lines.push("normalize = \"standard\"".to_owned());
    }
    // A class of one row trains, so there must be another one to evaluate on.
    let is_single = |&target: &usize| columns[target].has_distinct_values(collected.n_rows);
    let are_single = task.is_some_and(|fitting| fitting.task == Task::Classification)
        && origin.targets.iter().any(is_single);
    // Test rows next to the training rows are evaluated on by themselves.
    let has_own = spec.source.starts_with("builtin:") || holds_eval_rows(spec.data, None).unwrap_or(false);
    let n_without = origin.targets.iter().map(|&target| columns[target].n_missing as usize).max();
    let n_rows = collected.n_rows - n_without.unwrap_or(0);
    if !has_own && n_rows >= MIN_ROWS_TO_SPLIT && !are_single {
        lines.push("eval_fraction = 0.2".to_owned());
    }
    lines.join("\n") + "\n"
}

/// A comment with the numbers that seem to mark missing values in the columns `named`; `None` without any.
fn seeming_marks(collected: &Collector, columns: &[ColumnProfile], named: &[String]) -> Option<String> {
    let of_columns =
        columns.iter().zip(&collected.columns).filter(|(column, _)| named.contains(&column.name));
    let sentinels = of_columns.flat_map(|(_, collected)| collected.extremes.sentinels());
    let mut marks: Vec<f64> = sentinels.map(|sentinel| sentinel.value).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let marks: Vec<String> = marks.iter().map(ToString::to_string).collect();
    (!marks.is_empty()).then(|| format!("# missing_values = {}  # see the warnings", list(&marks)))
}

/// Whether a target holds small integers; large ones number things.
fn is_of_ratings(target: &ColumnProfile) -> bool {
    let is_small = |range: Range| range.min >= -MAX_RATING && range.max <= MAX_RATING;
    target.kind == Kind::Integer && target.range.is_some_and(is_small)
}

/// The lines on columns of categories.
fn categories(columns: &[ColumnProfile], dropped: &[String], marked: &HashSet<String>) -> Vec<String> {
    let among_dropped: HashSet<&String> = dropped.iter().collect();
    let is_category = |column: &&ColumnProfile| {
        let is_left_out = among_dropped.contains(&column.name) || marked.contains(&column.name);
        column.kind == Kind::Text && !column.is_target && !is_left_out
    };
    let categories: Vec<&ColumnProfile> = columns.iter().filter(is_category).collect();
    if categories.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = categories.iter().map(|column| column.name.clone()).collect();
    let mut lines = vec![format!("categorical = {}", list(&names))];
    let widest = categories.iter().max_by_key(|column| column.n_distinct.unwrap_or(usize::MAX));
    if let Some(widest) = widest.filter(|column| column.n_distinct.is_none_or(|n| n > MAX_ONE_HOT)) {
        let n = widest.n_distinct.map_or("too many values to count".to_owned(), |n| format!("{n} values"));
        let name = quoted(&widest.name).replace('\n', " ");
        lines.push(format!("encode = \"embedding\"  # {name} has {n}"));
    }
    lines
}

/// Whether some feature holds dates whose parts can hold more information than the seconds since 1970, and each date has parts.
fn have_parts(collected: &Collector, columns: &[ColumnProfile], features: &[&ColumnProfile]) -> bool {
    let dates: Vec<_> = features.iter().filter(|column| column.kind == Kind::Date).collect();
    let is_long = |column: &ColumnProfile| {
        column.range.is_some_and(|range| range.max - range.min > MIN_SPAN_OF_PARTS_S)
    };
    let is_mixed = |column: &ColumnProfile| {
        let index = columns.iter().position(|other| other.name == column.name);
        index.is_some_and(|index| collected.columns[index].has_times_of_day)
    };
    dates.iter().any(|column| is_long(column)) && !dates.iter().any(|column| is_mixed(column))
}

/// Whether the data are a table, whose columns have names.
pub(super) fn is_table(origin: &Origin, spec: &SourceSpec<'_>) -> bool {
    origin.arrays.is_empty() && !spec.source.starts_with("builtin:")
}

/// A TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

pub(super) fn list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", quoted.join(", "))
}
