//! Builds the profile of data after all rows were read.

use ddp::config::Task;
use ddp_tables::labels::task::{TargetFacts, decide};
use ddp_tables::source::SourceSpec;
use serde::Serialize;

use super::collector::{Collector, Column};
use super::column_profile::{ArrayShape, ColumnProfile, FileSize, Kind, Origin, ValueCount};
use super::section::{self, FittingTask};
use super::warning::{Warning, dropped, has_features};
use super::warnings;

/// The result of an inspection, printed as text or as one JSON object.
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
    /// The task of a model; `None` without a target.
    pub(super) task: Option<&'static str>,
    /// Columns that are not used unasked, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) left_out: Vec<String>,
    pub(super) warnings: Vec<Warning>,
    /// Section `[data]` of a config.
    pub(super) data_section: String,
}

impl Profile {
    /// Derives columns, task, warnings and config from the collected values.
    pub(super) fn new(origin: Origin, collected: &Collector, spec: &SourceSpec<'_>) -> Self {
        let columns: Vec<ColumnProfile> =
            (0..origin.names.len()).map(|index| ColumnProfile::new(&origin, collected, index)).collect();
        let task = task(&origin, collected, &columns);
        let mut warnings = warnings::warnings(&origin, collected, &columns, task.map(|fitting| fitting.task));
        let mut dropped_columns = Vec::new();
        if origin.is_table {
            if collected.is_partial {
                // The rows that follow may tell otherwise.
                warnings.retain(|warning| !warning.depends_on_all_rows());
            }
            dropped_columns = dropped(&columns, &warnings);
            if !has_features(&dropped_columns, &columns) {
                warnings::no_features_left(&mut warnings, &dropped_columns);
            }
        }
        let data_section =
            section::lines(&origin, collected, &columns, task, &warnings, &dropped_columns, spec);
        Profile {
            source: spec.source.to_owned(),
            format: origin.format,
            files: origin.files,
            arrays: origin.arrays,
            n_rows: collected.n_rows,
            columns,
            task: task.map(|fitting| fitting.task.name()),
            left_out: origin.left_out,
            warnings,
            data_section,
        }
    }

    /// Whether the suggested config can't train a model until the problems in the warnings are corrected.
    pub(super) fn stops_training(&self) -> bool {
        let task = Task::ALL.iter().copied().find(|task| Some(task.name()) == self.task);
        self.warnings.iter().any(|warning| warning.stops_training(task))
    }
}

/// The task that fits the targets' values; `None` without a target.
fn task(origin: &Origin, collected: &Collector, columns: &[ColumnProfile]) -> Option<FittingTask> {
    let facts: Vec<TargetFacts> =
        origin.targets.iter().map(|&index| facts(&collected.columns[index], &columns[index])).collect();
    let names: Vec<String> = origin.targets.iter().map(|&index| origin.names[index].clone()).collect();
    let n_distinct = facts.first()?.n_distinct;
    // Few integers are taken for classes, but not if every row has a different one.
    let is_of_quantities = |&target: &usize| {
        collected.n_rows >= section::MIN_ROWS_TO_SPLIT
            && columns[target].kind == Kind::Integer
            && columns[target].has_distinct_values(collected.n_rows)
    };
    Some(match decide(&names, &facts) {
        Ok(choice) if choice.task == Task::Classification && origin.targets.iter().all(is_of_quantities) => {
            FittingTask { task: Task::Regression, undecided: n_distinct }
        }
        Ok(choice) => {
            let is_guess =
                choice.task == Task::Regression && columns[origin.targets[0]].kind == Kind::Integer;
            let n = n_distinct.unwrap_or(collected.n_rows);
            FittingTask { task: choice.task, undecided: (is_guess && origin.targets.len() == 1).then_some(n) }
        }
        Err(_) => {
            let task = if are_even(&collected.columns[origin.targets[0]]) {
                Task::Classification
            } else {
                Task::Regression
            };
            FittingTask { task, undecided: n_distinct }
        }
    })
}

/// Whether each value of a column occurs often enough to be a class, and none much less often than the others: counts and amounts
/// have rare values.
fn are_even(column: &Column) -> bool {
    const MIN_ROWS: u64 = 5;
    let (least, mean) = column.values.least_and_mean();
    least >= MIN_ROWS && 4.0 * least as f64 >= mean
}

fn facts(column: &Column, profile: &ColumnProfile) -> TargetFacts {
    /// 2^63
    const END_OF_I64: f64 = 9_223_372_036_854_775_808.0;
    let is_truth = |value: &ValueCount| ["true", "false"].contains(&value.value.to_lowercase().as_str());
    let has_text = matches!(profile.kind, Kind::Text | Kind::Boolean | Kind::Date | Kind::Time);
    TargetFacts {
        n_distinct: profile.n_distinct,
        has_text,
        is_boolean: has_text && !profile.values.is_empty() && profile.values.iter().all(is_truth),
        // Integers beyond i64 are quantities, as in training.
        has_fractions: column.has_fractions()
            || profile.range.is_some_and(|range| range.max >= END_OF_I64 || range.min < -END_OF_I64),
        is_binary: !column.has_fractions()
            && profile.range.is_some_and(|range| range.min >= 0.0 && range.max <= 1.0),
        range: profile
            .range
            .filter(|_| profile.kind == Kind::Integer)
            .map(|range| [range.min as i64, range.max as i64]),
    }
}
