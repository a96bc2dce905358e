//! `[checkpoint]`: when checkpoints are written, and which are kept.

use super::data::DataConfig;
use super::error::Result;
use super::eval_metric::{JudgeMetric, NAMES_OR_NONE};
use super::key::{Range, count, metric, number, switch};
use super::limits::{MAX_EPOCHS, MAX_STEPS};
use super::raw::RawConfig;
use super::section::section;
use super::train::{TrainConfig, check_metric};
use super::value::ConfigValue as _;

const NEVER: &str = "0 writes none for that";

section! {
    /// `[checkpoint]`
    #[derive(Debug, Clone, PartialEq)]
    pub struct CheckpointConfig in "checkpoint", read(raw: &RawConfig, data: &DataConfig, train: &TrainConfig), write {
        /// Steps between two checkpoints; 0 disables saving by steps.
        every_steps: u64 = count(0, MAX_STEPS)
            .help("Optimizer steps between two checkpoints; 0 for none")
            .default("0")
            .example("1000")
            .hint(NEVER)
            .synonyms(&["save_every", "save_steps", "save_every_steps", "checkpoint_every"])
            .may_change();

        /// Minutes between two checkpoints; 0 disables saving by time.
        every_minutes: f64 = number(Range::from_to(0.0, 1e6, "a number of minutes from 0 to 1e6"))
            .help("Minutes between two checkpoints; 0 for none; the end of the run is saved too")
            .default("5.0")
            .example("30.0")
            .hint(NEVER)
            .may_change();

        /// Epochs between two checkpoints; 0 disables saving by epochs.
        every_epochs: u64 = count(0, MAX_EPOCHS)
            .help("Epochs between two checkpoints; 0 for none")
            .default("0")
            .example("1")
            .hint(NEVER)
            .may_change();

        /// Number of most recent checkpoints to keep; 0 keeps all.
        keep: usize = count(0, 1 << 20)
            .help("Number of newest checkpoints that are kept; 0 keeps all")
            .default("3")
            .hint("0 keeps all")
            .synonyms(&["save_total_limit", "save_top_k", "keep_last"])
            .may_change();

        /// Metric that decides on the best checkpoint, which is also kept; `None` keeps only recent ones.
        keep_best: Option<JudgeMetric> [keep_best(raw, data, train)?] = metric(NAMES_OR_NONE)
            .help("Metric of the best evaluation: its checkpoint is kept too, and model.safetensors holds its weights; every_steps or every_epochs also save each new best")
            .default(r#""eval_loss""#)
            .synonyms(&["metric_for_best_model"])
            .may_change();

        /// Whether training continues while a checkpoint is written.
        is_async: bool as "async" = switch()
            .help("Continue training while a checkpoint is written")
            .default("true")
            .may_change();
    }
}

impl CheckpointConfig {
    /// Whether any checkpoint is written before the run ends.
    pub fn is_on(&self) -> bool {
        self.saves_best() || self.every_minutes > 0.0
    }

    /// Whether each new best evaluation is saved at once. It is not if checkpoints are due by time only: each early epoch is the
    /// best so far, and saving all of them can take longer than training.
    pub fn saves_best(&self) -> bool {
        self.every_steps > 0 || self.every_epochs > 0
    }
}

/// The metric that decides on the best checkpoint: the metric of early stopping if early stopping is on.
fn keep_best(raw: &RawConfig, data: &DataConfig, train: &TrainConfig) -> Result<Option<JudgeMetric>> {
    let stops_by = (train.early_stop_patience > 0).then(|| train.early_stop_metric.clone());
    let Some(setting) = raw.given("checkpoint.keep_best") else {
        return stops_by.map_or_else(|| raw.get("checkpoint.keep_best"), |metric| Ok(Some(metric)));
    };
    let metric = Option::<JudgeMetric>::read(setting)?;
    let metric = metric.map(|metric| check_metric(setting, metric, data)).transpose()?;
    match (&metric, stops_by) {
        (Some(metric), Some(stops_by)) if *metric != stops_by => Err(setting.bad(
            format!("\"{stops_by}\", the metric of early stopping"),
            "set it to that or leave it out: early stopping keeps the best by its own metric",
        )),
        _ => Ok(metric),
    }
}
