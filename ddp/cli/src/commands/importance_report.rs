//! Result of `ddp-train eval --importance` as a table or JSON.

use ddp::config::EvalMetric;
use ddp::report::metrics::json_line;
use ddp::train::importance::{ColumnImportance, ImportanceOptions};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::commands::eval_report::{EvalReport, number};
use crate::report::table::table;

/// The importance of the columns, and the evaluation that it is relative to.
#[derive(Debug)]
pub(super) struct ImportanceReport<'a> {
    /// The evaluation without a permutation.
    pub(super) of: EvalReport<'a>,
    /// The columns, most important first.
    pub(super) columns: &'a [ColumnImportance],
    /// Measured importance.
    pub(super) options: &'a ImportanceOptions,
}

impl ImportanceReport<'_> {
    pub(super) fn to_json(&self) -> String {
        json_line(self)
    }

    pub(super) fn to_text(&self) -> String {
        let ImportanceOptions { metric, n_repeats, seed } = self.options;
        let value = self.of.metrics.of_judge(metric).unwrap_or(f64::NAN);
        let line = |column: &ColumnImportance| {
            vec![column.column.clone(), number(column.mean()), number(column.standard_deviation())]
        };
        let lines: Vec<_> = self.columns.iter().map(line).collect();
        let title = format!("{} of {}", direction(metric.metric), metric.title());
        format!(
            "{}\n\n{} {}, in {}\nmean and deviation over {n_repeats} permutations of each column, seed {seed}\n\n{}\n\
             Positive: the model relies on the column. Around 0: it does not.\n",
            self.of.headline(),
            metric.title(),
            number(value),
            unit(metric.metric),
            table(&["<column", &title, "deviation"], &lines),
        )
    }
}

impl Serialize for ImportanceReport<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ImportanceOptions { metric, n_repeats, seed } = self.options;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("metric", &metric.to_string())?;
        map.serialize_entry("unit", unit(metric.metric))?;
        map.serialize_entry("direction", direction(metric.metric))?;
        map.serialize_entry("baseline", &self.of.metrics.of_judge(metric))?;
        map.serialize_entry("repeats", n_repeats)?;
        map.serialize_entry("seed", seed)?;
        map.serialize_entry("importance", &self.columns.iter().map(Figures::of).collect::<Vec<_>>())?;
        map.serialize_entry("rows", &self.of.rows)?;
        if let Some(skipped) = self.of.skipped_rows {
            map.serialize_entry("skipped_rows", &skipped)?;
        }
        map.serialize_entry("data", self.of.data)?;
        map.serialize_entry("model", self.of.model)?;
        map.end()
    }
}

/// The figures of one column in JSON.
#[derive(Serialize)]
struct Figures<'a> {
    column: &'a str,
    mean: f64,
    std: f64,
    repeats: &'a [f64],
}

impl<'a> Figures<'a> {
    fn of(column: &'a ColumnImportance) -> Self {
        let (mean, std) = (column.mean(), column.standard_deviation());
        Figures { column: &column.column, mean, std, repeats: &column.repeats }
    }
}

/// Meaning of a positive importance for the metric.
fn direction(metric: EvalMetric) -> &'static str {
    if metric.grows() { "drop" } else { "increase" }
}

/// The unit of a metric and of its differences.
fn unit(metric: EvalMetric) -> &'static str {
    match metric {
        EvalMetric::Mae | EvalMetric::Rmse => "units of the targets",
        EvalMetric::R2 => "shares of the targets' variance",
        EvalMetric::Loss => "units of the training loss",
        EvalMetric::LogLoss => "nats",
        _ => "shares from 0 to 1",
    }
}
