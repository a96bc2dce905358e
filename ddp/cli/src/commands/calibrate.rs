//! `ddp-train eval --calibrate`: fits the probabilities of a classifier to held-out rows and saves the model with them.

use std::path::Path;

use ddp::config::EvalMetric;
use ddp::predict::SavedModel;
use ddp::report::EvalMetrics;
use ddp::report::metrics::json_line;
use ddp::storage::atomic_write::write_atomic;
use ddp::train::calibration::{Calibration, with_temperature};
use serde::Serialize;
use tracing::info;

use crate::error::Result;
use crate::report::stdout::{print_result, table};

/// Name of the note next to the model file.
const CALIBRATION_FILE: &str = "calibration.json";

/// A calibration with its model and its rows.
#[derive(Debug, Serialize)]
struct Report<'a> {
    temperature: f64,
    before: &'a EvalMetrics,
    after: &'a EvalMetrics,
    rows: usize,
    data: &'a str,
    model: &'a Path,
}

/// Writes the model with its temperature, and a note next to it, and prints the result; on rank 0.
pub(super) fn save(
    model: &Path,
    output_layer: usize,
    calibration: &Calibration,
    (rows, data): (usize, &str),
    json: bool,
) -> Result<()> {
    let Calibration { temperature, before, after } = calibration;
    let report = Report { temperature: *temperature, before, after, rows, data, model };
    let line = json_line(&report);
    if *temperature == 1.0 {
        info!("no temperature makes the log loss smaller: the model is left as it was");
    } else {
        let saved = SavedModel::open(model)?;
        let bytes =
            saved.to_bytes_with(|layout, flat| with_temperature(layout, output_layer, flat, *temperature))?;
        write_atomic(model, &bytes)?;
        write_atomic(&model.with_file_name(CALIBRATION_FILE), line.as_bytes())?;
    }
    let text = || {
        let number = |metrics: &EvalMetrics, metric| {
            metrics.get(metric).map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"))
        };
        let row = |metric: &EvalMetric| {
            vec![metric.title().to_owned(), number(before, *metric), number(after, *metric)]
        };
        let rows_of = [EvalMetric::LogLoss, EvalMetric::Ece, EvalMetric::Accuracy].iter().map(row);
        format!(
            "temperature {temperature:.4}, of {rows} rows of {data}, in {}\n\n{}",
            model.display(),
            table(&["<metric", "before", "after"], &rows_of.collect::<Vec<_>>())
        )
    };
    print_result(&if json { line.clone() } else { text() })?;
    Ok(())
}
