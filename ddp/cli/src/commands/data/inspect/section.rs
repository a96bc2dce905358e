//! Writes the section `[data]` of a config for the inspected data.

use std::collections::HashSet;

use ddp::config::{DataFormat, Decimal, Delimiter, Header, Task};
use ddp_tables::source::SourceSpec;
use ddp_tables::split::own_eval::holds_eval_rows;
use ddp_tables::values::time::PARTS;

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind, Origin};
use super::warning::{Warning, WarningKind, columns_of};

/// Fewest rows of which the config holds out some for evaluation.
pub(super) const MIN_ROWS_TO_SPLIT: usize = 10;
/// Fewest distinct integers in a target that may be a rating rather than names of classes.
const MIN_RATINGS: usize = 5;
/// Most values of a column for which each becomes a feature; above, all columns of categories have embeddings.
const MAX_ONE_HOT: usize = 100;
/// Time after which weekdays repeat, so that the parts of a date hold more information than its place on a line.
const MIN_SPAN_OF_PARTS_S: f64 = 14.0 * 86_400.0;

/// Keys that say which rows are evaluated.
const OF_EVALUATION: [&str; 4] = ["eval", "eval_fraction", "fold", "split"];
/// Keys whose line already holds what the user gave.
const JOINED: [&str; 7] = ["train", "labels", "format", "target", "drop", "categorical", "missing_values"];

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
    let of_user = &spec.data.drop;
    let dropped: Vec<String> =
        dropped.iter().filter(|name| !spec.data.categorical.contains(name)).cloned().collect();
    let dropped = &dropped[..];
    let has = |kind: WarningKind| warnings.iter().any(|warning| warning.kind == kind);
    let mut lines = vec!["[data]".to_owned(), format!("train = {}", quoted(spec.source))];
    lines.extend(source_lines(origin, spec, has(WarningKind::Marks)));
    let among_dropped: HashSet<&String> = dropped.iter().collect();
    let mut marked: HashSet<String> = columns_of(warnings, &[WarningKind::Marked]).into_iter().collect();
    marked.retain(|name| !among_dropped.contains(name));
    let mut marks = spec.data.missing_values.clone();
    for (column, collected) in columns.iter().zip(&collected.columns) {
        if marked.contains(&column.name) {
            let words = collected.words.by_count().into_iter().map(|(word, _)| word.to_owned());
            words.for_each(|word| {
                if !marks.contains(&word) {
                    marks.push(word)
                }
            });
        }
    }
    let has_na_code = origin.targets.iter().any(|&target| collected.columns[target].has_na_code());
    if has_na_code && marks.is_empty() {
        marks.push(String::new());
    }
    if !marks.is_empty() {
        lines.push(format!("missing_values = {}", list(&marks)));
    }
    lines.extend(origin.keys.iter().cloned());
    lines.extend(target_lines(origin, columns, warnings, has_na_code));
    lines.extend(task.and_then(|fitting| task_line(fitting, origin, columns)));
    match (&of_user[..], dropped) {
        ([], []) => {}
        (of_user, []) => lines.push(format!("drop = {}", list(of_user))),
        (of_user, dropped) => {
            lines.push(format!("drop = {}  # see the warnings", list(&[of_user, dropped].concat())));
        }
    }
    let kept: Vec<usize> = (0..columns.len())
        .filter(|&at| columns[at].is_feature() && !among_dropped.contains(&columns[at].name))
        .collect();
    let numbers: Vec<usize> =
        kept.iter().copied().filter(|&at| !matches!(columns[at].kind, Kind::Text | Kind::Other)).collect();
    if origin.is_table {
        let is_category =
            |at: &&usize| columns[**at].kind == Kind::Text && !marked.contains(&columns[**at].name);
        let categories: Vec<&ColumnProfile> =
            kept.iter().filter(is_category).map(|&at| &columns[at]).collect();
        lines.extend(category_lines(&spec.data.categorical, &categories));
        if have_parts(collected, columns, &kept) {
            lines.push("datetime = \"parts\"".to_owned());
        }
    }
    if !marked.is_empty() || collected.is_partial || numbers.iter().any(|&at| columns[at].n_missing > 0) {
        lines.push("missing = \"mean\"".to_owned());
    }
    let size = |at: &usize| columns[*at].range.map_or(0.0, |range| range.min.abs().max(range.max.abs()));
    if numbers.iter().any(|at| size(at) > 10.0) {
        lines.push("normalize = \"standard\"".to_owned());
    }
    // A class of one row trains, so there must be another one to evaluate on.
    let are_single = task.is_some_and(|fitting| fitting.task == Task::Classification)
        && origin.targets.iter().any(|&target| columns[target].has_distinct_values(collected.n_rows));
    // Test rows next to the training rows are evaluated on by themselves.
    let has_own = spec.source.starts_with("builtin:") || holds_eval_rows(spec.data, None).unwrap_or(false);
    let n_without = origin.targets.iter().map(|&target| columns[target].n_missing as usize).max();
    let n_rows = collected.n_rows - n_without.unwrap_or(0);
    if !has_own && n_rows >= MIN_ROWS_TO_SPLIT && !are_single {
        lines.push("eval_fraction = 0.2".to_owned());
    }
    lines.join("\n") + "\n"
}

/// The section with the keys that the user has `given`, by section, name and value, in place of what the rows suggest for them.
pub(super) fn with_given(section: &str, given: &[(&str, &str, String)]) -> String {
    let of_data =
        || given.iter().filter(|(section, ..)| *section == "data").map(|(_, key, value)| (*key, value));
    let mut lines: Vec<String> = section.trim_end().split('\n').map(str::to_owned).collect();
    if of_data().any(|(key, _)| OF_EVALUATION.contains(&key)) {
        lines.retain(|line| !line.starts_with("eval_fraction = "));
    }
    for (key, value) in of_data().filter(|(key, _)| !JOINED.contains(key)) {
        let line = format!("{key} = {value}");
        match lines.iter_mut().find(|line| line.starts_with(&format!("{key} = "))) {
            Some(suggested) => *suggested = line,
            None => lines.push(line),
        }
    }
    let mut open_section = "data";
    for (section, key, value) in given.iter().filter(|(section, ..)| *section != "data") {
        if section.is_empty() {
            lines.insert(0, format!("{key} = {value}"));
            continue;
        }
        if *section != open_section {
            open_section = section;
            lines.push(format!("\n[{section}]"));
        }
        lines.push(format!("{key} = {value}"));
    }
    lines.join("\n") + "\n"
}

/// The lines that say how the files are read.
fn source_lines(origin: &Origin, spec: &SourceSpec<'_>, is_unclear: bool) -> Vec<String> {
    let data = spec.data;
    let mut lines = Vec::new();
    match spec.labels {
        Some(labels) => lines.push(format!("labels = {}", quoted(labels))),
        None if !origin.arrays.is_empty() && origin.targets.is_empty() => {
            lines.push("labels = \"\"  # the file of the labels".to_owned());
        }
        None => {}
    }
    if let Some(filter) = &data.filter {
        lines.push(format!("filter = {}", quoted(filter)));
    }
    if let Some(max_rows) = data.max_rows {
        lines.push(format!("max_rows = {max_rows}"));
    }
    if data.format != DataFormat::Auto {
        lines.push(format!("format = {}", quoted(data.format.name())));
    }
    if data.header == Header::Absent {
        lines.push("header = false".to_owned());
    }
    if data.delimiter != Delimiter::Auto {
        lines.push(format!("delimiter = {}", quoted(data.delimiter.name())));
    }
    if data.decimal != Decimal::Auto {
        lines.push(format!("decimal = {}", quoted(data.decimal.name())));
    } else if is_unclear {
        lines.push("decimal = \".\"  # or \",\": see the warnings".to_owned());
    }
    lines
}

/// The lines on the targets of a table.
fn target_lines(
    origin: &Origin,
    columns: &[ColumnProfile],
    warnings: &[Warning],
    has_na_code: bool,
) -> Vec<String> {
    let has = |kind: WarningKind| warnings.iter().any(|warning| warning.kind == kind);
    let targets: Vec<String> = origin.targets.iter().map(|&target| columns[target].name.clone()).collect();
    let mut lines = match &targets[..] {
        _ if !origin.is_table => Vec::new(),
        [] => vec!["target = \"\"  # the column to predict".to_owned()],
        [target] if target == "label" => Vec::new(),
        [target] => vec![format!("target = {}", quoted(target))],
        _ => vec![format!("target = {}", list(&targets))],
    };
    if origin.is_table && !has_na_code && (has(WarningKind::TargetMissing) || has(WarningKind::TargetEmpty)) {
        lines.push("missing_target = \"skip\"  # leaves out rows without a target".to_owned());
    }
    lines
}

/// The line on the task, unless it is classification for certain.
fn task_line(fitting: FittingTask, origin: &Origin, columns: &[ColumnProfile]) -> Option<String> {
    let FittingTask { task, undecided } = fitting;
    // Few integers are taken for classes, but ratings have an order.
    let of_ratings = match &origin.targets[..] {
        &[target] if origin.is_table && columns[target].kind == Kind::Integer => columns[target].n_distinct,
        _ => None,
    };
    let either = undecided.or(of_ratings.filter(|&n| task == Task::Classification && n >= MIN_RATINGS));
    let line = format!("task = {}", quoted(task.name()));
    let other = if task == Task::Classification { Task::Regression } else { Task::Classification };
    match either {
        Some(n) => {
            Some(format!("{line}  # or {}: {n} distinct integers may be either", quoted(other.name())))
        }
        None => (task != Task::Classification).then_some(line),
    }
}

/// The lines on columns of categories: those that the user names, and `categories`.
fn category_lines(of_user: &[String], categories: &[&ColumnProfile]) -> Vec<String> {
    let mut names = of_user.to_vec();
    names.extend(categories.iter().map(|column| column.name.clone()).filter(|name| !of_user.contains(name)));
    if names.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("categorical = {}", list(&names))];
    let Some(widest) = categories.iter().max_by_key(|column| column.n_distinct.unwrap_or(usize::MAX)) else {
        return lines;
    };
    if widest.n_distinct.is_none_or(|n| n > MAX_ONE_HOT) {
        let n = widest.n_distinct.map_or("too many values to count".to_owned(), |n| format!("{n} values"));
        let name = quoted(&widest.name).replace('\n', " ");
        lines.push(format!("encode = \"embedding\"  # {name} has {n}"));
    }
    lines
}

/// Whether some feature holds dates whose parts can hold more information than the seconds since 1970, and each date has parts,
/// whose names no other feature has.
fn have_parts(collected: &Collector, columns: &[ColumnProfile], features: &[usize]) -> bool {
    let dates: Vec<usize> = features.iter().copied().filter(|&at| columns[at].kind == Kind::Date).collect();
    let is_long =
        |&at: &usize| columns[at].range.is_some_and(|range| range.max - range.min > MIN_SPAN_OF_PARTS_S);
    let is_part = |at: &usize| {
        let of = |date: &usize| columns[*at].name.strip_prefix(&*columns[*date].name);
        dates.iter().any(|date| of(date).is_some_and(|part| PARTS.contains(&part)))
    };
    let has_times = dates.iter().any(|&at| collected.columns[at].types.n_times > 0);
    dates.iter().any(is_long) && !has_times && !features.iter().any(is_part)
}

/// A TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", quoted.join(", "))
}
