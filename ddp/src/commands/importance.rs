//! `ddp-train eval --importance`: how much a model relies on each column.

use std::path::Path;

use ddp_comm::World;
use tracing::{info, warn};

use crate::cli::EvalArgs;
use crate::commands::eval_report::EvalReport;
use crate::commands::importance_report::ImportanceReport;
use crate::config::{Config, DataConfig, Datetime, EvalMetric, MetricSet, MetricTable, Task};
use crate::data::UserColumn;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::stdout::print_result;
use crate::train::importance::{EvalSetup, ImportanceOptions, permutation_importance};

/// The metric whose drop is measured: that of `--metrics`, or the one that the run judged by, or what people read most where that is
/// the loss.
///
/// # Errors
/// [`Error::ImportanceMetrics`] for several names or a table.
pub(super) fn metric(args: &EvalArgs, config: &Config) -> Result<EvalMetric> {
    let Config { train, checkpoint, data, .. } = config;
    let usual = match data.task {
        Task::Regression => EvalMetric::R2,
        Task::Classification | Task::Multilabel => EvalMetric::Accuracy,
        Task::Heads => EvalMetric::Loss,
    };
    let stops_by = (train.early_stop_patience > 0).then_some(&train.early_stop_metric);
    let judge = stops_by.or(checkpoint.keep_best.as_ref()).filter(|judge| judge.head.is_none());
    let judge = judge.map(|judge| judge.metric).filter(|metric| *metric != EvalMetric::Loss);
    let [name] = &args.metrics[..] else {
        return match args.metrics.is_empty() {
            true => Ok(judge.unwrap_or(usual)),
            false => Err(not_one(args, usual)),
        };
    };
    let named = MetricSet::of_names(std::slice::from_ref(name), data.task)
        .map_err(|unknown| Error::UnknownMetric(Box::new(unknown)))?;
    let found: Vec<EvalMetric> =
        EvalMetric::ALL.iter().copied().filter(|metric| named.has(*metric)).collect();
    let has_table = MetricTable::ALL.iter().any(|table| named.has_table(*table));
    // The loss is in every set.
    match found[..] {
        [metric] | [EvalMetric::Loss, metric] if !has_table => Ok(metric),
        _ => Err(not_one(args, usual)),
    }
}

fn not_one(args: &EvalArgs, usual: EvalMetric) -> Error {
    let example = usual.name().trim_start_matches("eval_").to_owned();
    Error::ImportanceMetrics { names: args.metrics.join(","), example }
}

/// Rows and model of a measurement, for its report.
pub(super) struct Subject<'a> {
    pub(super) data: &'a DataConfig,
    pub(super) skipped_rows: Option<usize>,
    pub(super) model: &'a Path,
}

/// Measures the importance of all columns and prints it on rank 0; every rank of the world calls it.
pub(super) fn measure(
    world: &World,
    log: &Log,
    args: &EvalArgs,
    setup: EvalSetup<'_>,
    metric: EvalMetric,
    subject: &Subject<'_>,
) -> Result<(), Stop> {
    let rows = setup.rows.clone();
    let n_rows = rows.len();
    let columns = UserColumn::of_layout(rows.layout(), subject.data.datetime == Datetime::Parts);
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
            bar.set_message(column.to_owned());
            bar.advance(n_rows as u64);
        }
    };
    let importance = permutation_importance(world, setup, &columns, options, done)?;
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
                    model: subject.model,
                },
                columns: &importance.columns,
                options,
            };
            print_result(&if args.json { report.to_json() } else { report.to_text() })
        }
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}
