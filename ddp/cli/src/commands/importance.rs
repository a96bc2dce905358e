//! `ddp-train eval --importance`: how much a model relies on each column.

use std::path::Path;

use ddp::config::{
    Config, EvalMetric, HeadConfig, JudgeMetric, MetricSet, MetricTable, Task, UnknownMetric, nearest,
};
use ddp::report::metrics::json_line;
use ddp_comm::World;
use ddp_tables::importance::measure::{
    ColumnImportance, EvalSetup, ImportanceOptions, permutation_importance,
};
use ddp_tables::importance::user_columns::user_columns;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use tracing::{info, warn};

use crate::cli::EvalArgs;
use crate::commands::eval_report::{EvalReport, number};
use crate::error::command::CommandError;
use crate::error::{Error, ModelCommand, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::stdout::{print_result, table};

/// The metric whose drop is measured: the metric in `--metrics`, or the one that the run is judged by, or, if that is the loss,
/// the most commonly used metric of the task.
///
/// # Errors
/// [`CommandError::ImportanceMetrics`] for several names or a table; [`CommandError::UnknownMetric`].
pub(super) fn metric(args: &EvalArgs, config: &Config) -> Result<JudgeMetric> {
    let Config { train, checkpoint, data, .. } = config;
    let usual = usual_metric(data.task);
    let stops_by = (train.early_stop_patience > 0).then_some(&train.early_stop_metric);
    let judge = stops_by.or(checkpoint.keep_best.as_ref());
    let judge = judge.filter(|judge| **judge != EvalMetric::Loss.into());
    match &args.metrics[..] {
        [] => Ok(judge.cloned().unwrap_or(usual.into())),
        [name] => match name.rsplit_once('.') {
            Some((_, metric)) if data.heads.is_empty() => {
                let fitting = EvalMetric::ALL.iter().filter(|metric| metric.fits(data.task));
                let expected = fitting.map(|metric| short(*metric)).collect::<Vec<_>>().join(", ");
                let hint = format!("the model has no heads: write {metric} alone");
                let unknown = UnknownMetric { name: name.clone(), expected, hint };
                Err(CommandError::UnknownMetric(Box::new(unknown)).into())
            }
            Some((head, metric)) => {
                let head = head_of_name(name, head, &data.heads)?;
                let metric = one_metric(args, metric, head.task, &format!("{}.", head.name))?;
                Ok(JudgeMetric { head: Some(head.name.clone()), metric })
            }
            None => match (one_metric(args, name, data.task, "")?, &data.heads[..]) {
                (metric, []) | (metric @ EvalMetric::Loss, _) => Ok(metric.into()),
                (_, [head, ..]) => {
                    let usual = short(usual_metric(head.task));
                    let hint = format!("metrics of a head are written as {}.{usual}", head.name);
                    Err(no_metric_of_a_head(name, &data.heads, hint).into())
                }
            },
        },
        _ => Err(not_one(args, short(usual).to_owned()).into()),
    }
}

/// The most commonly used metric of the task.
fn usual_metric(task: Task) -> EvalMetric {
    match task {
        Task::Regression => EvalMetric::R2,
        Task::Classification | Task::Multilabel => EvalMetric::Accuracy,
        Task::Heads => EvalMetric::Loss,
    }
}

/// The head in `name`, which consists of a head and a metric.
fn head_of_name<'a>(name: &str, head: &str, heads: &'a [HeadConfig]) -> Result<&'a HeadConfig> {
    heads.iter().find(|of| of.name == head).ok_or_else(|| {
        let nearest = nearest(head, heads.iter().map(|head| head.name.as_str()));
        let hint = nearest.map(|name| format!("did you mean the head {name}?"));
        let hint = hint.unwrap_or_else(|| "write the name of a head, a point and a metric".to_owned());
        no_metric_of_a_head(name, heads, hint).into()
    })
}

fn no_metric_of_a_head(name: &str, heads: &[HeadConfig], hint: String) -> CommandError {
    let names = heads.iter().map(|head| format!("{}.METRIC", head.name));
    let expected = std::iter::once("loss".to_owned()).chain(names).collect::<Vec<_>>().join(", ");
    CommandError::UnknownMetric(Box::new(UnknownMetric { name: name.to_owned(), expected, hint }))
}

/// The metric with this name in an evaluation of this task; `place` is the prefix of its name.
fn one_metric(args: &EvalArgs, name: &str, task: Task, place: &str) -> Result<EvalMetric> {
    let named = MetricSet::from_names(&[name.to_owned()], task)
        .map_err(|unknown| CommandError::UnknownMetric(Box::new(unknown)))?;
    let found: Vec<EvalMetric> =
        EvalMetric::ALL.iter().copied().filter(|metric| named.has(*metric)).collect();
    let has_table = MetricTable::ALL.iter().any(|table| named.has_table(*table));
    // Every set contains the loss.
    match found[..] {
        [metric] | [EvalMetric::Loss, metric] if !has_table => Ok(metric),
        _ => Err(not_one(args, format!("{place}{}", short(usual_metric(task)))).into()),
    }
}

fn not_one(args: &EvalArgs, example: String) -> CommandError {
    CommandError::ImportanceMetrics { names: args.metrics.join(","), example }
}

fn short(metric: EvalMetric) -> &'static str {
    metric.name().trim_start_matches("eval_")
}

/// Rows and model of a measurement, for its report.
pub(super) struct Subject<'a> {
    pub(super) skipped_rows: Option<usize>,
    pub(super) is_held_out: bool,
    pub(super) model: &'a Path,
}

/// Measures the importance of all columns and prints it on rank 0; every rank of the world calls it.
pub(super) fn measure(
    world: &World,
    log: &Log,
    args: &EvalArgs,
    setup: EvalSetup<'_>,
    metric: JudgeMetric,
    subject: &Subject<'_>,
) -> Result<(), Stop> {
    let rows = setup.rows.clone();
    let n_rows = rows.len();
    let columns = user_columns(rows.layout());
    let options = ImportanceOptions { metric, n_repeats: args.repeats, seed: args.seed };
    let n_evaluations = 1 + columns.len() * options.n_repeats;
    let mut bar = None;
    if world.rank().0 == 0 && n_rows > 1 {
        info!(
            "{n_evaluations} evaluations of {n_rows} rows: {} per column, and one without a permutation",
            args.repeats
        );
        let terminal = log.terminal();
        let total = n_evaluations * n_rows;
        bar = terminal.takes_bar().then(|| terminal.show_bar(total as u64, 0, true, "starting"));
    }
    let done = |column: &str| {
        if let Some(bar) = &bar {
            bar.set_message(column);
            bar.advance(n_rows as u64);
        }
    };
    let importance = permutation_importance(world, setup, &columns, &options, done);
    let of_rows = |error| Error::from_model_data(error, ModelCommand::Eval);
    let importance = importance.map_err(|stop| stop.map(of_rows))?;
    drop(bar);
    let printed = match world.rank().0 {
        0 => {
            if let Some((metric, value)) = importance.baseline.not_finite() {
                warn!("{metric} is {value}\nhint: look for outputs that overflow, and for damaged weights");
            }
            let report = ImportanceReport {
                of: EvalReport {
                    metrics: &importance.baseline,
                    rows: n_rows,
                    skipped_rows: subject.skipped_rows,
                    data: rows.source(),
                    is_held_out: subject.is_held_out,
                    model: subject.model,
                },
                columns: &importance.columns,
                options: &options,
            };
            print_result(&if args.json { report.to_json() } else { report.to_text() })
        }
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}

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
        let value = self.of.metrics.judged_by(metric).unwrap_or(f64::NAN);
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
            table(&["<column", &title, "std. dev."], &lines),
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
        map.serialize_entry("baseline", &self.of.metrics.judged_by(metric))?;
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
    use EvalMetric as M;
    match metric {
        M::Mae | M::Rmse => "units of the targets",
        M::R2 => "shares of the targets' variance",
        M::Loss => "units of the training loss",
        M::LogLoss => "nats",
        M::ClassMae => "classes",
        M::QuadraticKappa => "units of kappa, from -1 to 1, 0 by chance",
        M::Accuracy | M::SubsetAccuracy | M::BalancedAccuracy | M::Top5Accuracy => "a fraction",
        M::PrecisionMacro | M::RecallMacro | M::F1Macro | M::F1Weighted | M::F1Micro => "a fraction",
        M::RocAuc | M::AveragePrecision | M::Ece => "a fraction",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_classes_in_an_order_have_units_of_their_own() {
        assert_eq!(unit(EvalMetric::ClassMae), "classes");
        assert!(unit(EvalMetric::QuadraticKappa).contains("from -1 to 1"));
        assert_eq!((unit(EvalMetric::Accuracy), unit(EvalMetric::Ece)), ("a fraction", "a fraction"));
    }
}
