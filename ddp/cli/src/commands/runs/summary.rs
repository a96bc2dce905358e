//! A run in one line.

use std::path::Path;
use std::time::SystemTime;
use std::{fs, io};

use chrono::{DateTime, Utc};
use ddp::config::EvalMetric;
use ddp::run_folder::folder::METRICS_FILE;
use serde::Serialize;

use super::MAX_POINTS;
use crate::report::page::chart::figure;
use crate::report::page::parts::duration;
use crate::report::page::record::{Record, Status, folder_name};

/// The key that stops a run after an epoch.
pub(crate) const STOP_AFTER_EPOCHS: &str = "train.stop_after_epochs";

/// State and figures of a run; one JSON object.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Summary {
    /// Name of its folder.
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) state: &'static str,
    step: u64,
    pub(crate) epochs: Option<u64>,
    /// Metric by which the run is judged: that of its best evaluation, else of its last one, else the loss of the training rows.
    pub(crate) metric: Option<String>,
    pub(crate) value: Option<f64>,
    elapsed_s: Option<f64>,
    /// Time of its last event in UTC.
    written: Option<String>,
    /// Why it failed, or can't be read.
    pub(crate) error: Option<String>,
    /// Of a complete run, those of its last events.
    n_damaged_lines: u64,
    /// Whether `train.stop_after_epochs` stopped it.
    #[serde(skip)]
    is_at_rung: bool,
}

/// The state of a run in a word.
pub(super) fn state(status: &Status) -> &'static str {
    match status {
        Status::Complete => "complete",
        Status::Stopped { .. } => "stopped",
        Status::Failed { .. } => "failed",
        Status::Running => "running",
        Status::Unfinished => "interrupted",
    }
}

impl Summary {
    pub(super) const TITLES: [&str; 9] =
        ["<run", "<state", "steps", "epochs", "<metric", "value", "time", "<written (UTC)", "<"];

    /// The summary of the run in the folder `path`, which may be damaged.
    pub(crate) fn read(path: &Path) -> Self {
        Self::of(path, Record::read_end(path, MAX_POINTS))
    }

    fn of(path: &Path, run: io::Result<Record>) -> Self {
        let written = fs::metadata(path.join(METRICS_FILE)).and_then(|file| file.modified()).ok();
        let mut summary = Summary {
            name: folder_name(path),
            path: path.display().to_string(),
            state: "unreadable",
            written: written.map(utc),
            ..Summary::default()
        };
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                summary.error = Some(format!("can't read {METRICS_FILE}: {error}"));
                return summary;
            }
        };
        let (metric, value) = judged(&run);
        if let Status::Failed { error, .. } = &run.status {
            summary.error = Some(error.lines().next().unwrap_or_default().to_owned());
        }
        Summary {
            state: state(&run.status),
            step: run.step,
            epochs: run.epoch,
            metric,
            value,
            elapsed_s: run.end_number("elapsed_s"),
            n_damaged_lines: run.n_damaged,
            is_at_rung: matches!(&run.status, Status::Stopped { reason } if reason == STOP_AFTER_EPOCHS),
            ..summary
        }
    }

    /// Whether the run has stopped after epoch `rung`, as it was told.
    pub(crate) fn has_reached(&self, rung: u64) -> bool {
        self.is_at_rung && self.epochs >= Some(rung)
    }

    pub(super) fn cells(&self) -> Vec<String> {
        let damaged = (self.n_damaged_lines > 0).then(|| format!("{} damaged lines", self.n_damaged_lines));
        let notes: Vec<_> = self.error.iter().cloned().chain(damaged).collect();
        vec![
            self.name.clone(),
            self.state.to_owned(),
            self.step.to_string(),
            self.epochs.map_or(String::new(), |n| n.to_string()),
            self.metric.clone().unwrap_or_default(),
            self.value.map_or(String::new(), figure),
            self.elapsed_s.map_or(String::new(), duration),
            self.written.clone().unwrap_or_default(),
            notes.join("; "),
        ]
    }
}

/// Metric by which a run is judged, and its value: of the best evaluation where its weights are kept, else `train.early_stop_metric` of the
/// last evaluation, and without evaluations the loss of the training rows.
fn judged(run: &Record) -> (Option<String>, Option<f64>) {
    if let Some((metric, _, value)) = run.best() {
        return (Some(metric.to_owned()), Some(value));
    }
    let settings = run.settings();
    let name = |key: &str| Some(settings.get(key)?.as_str()?.to_owned());
    let kept = name("checkpoint.keep_best").filter(|metric| metric != "none");
    let keeps_best = kept.is_some();
    let metric = kept.or_else(|| name("train.early_stop_metric"));
    let metric = metric.unwrap_or_else(|| EvalMetric::Loss.name().to_owned());
    if let Some(last) = run.last_of(&metric) {
        // Where the best one is kept and there is none, its evaluations are not finite, or not in a checkpoint yet.
        return (Some(metric), last.filter(|_| !keeps_best));
    }
    run.end_number("train_loss").map(|loss| ("train_loss".to_owned(), loss)).unzip()
}

fn utc(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).format("%Y-%m-%d %H:%M").to_string()
}
