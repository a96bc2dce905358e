//! The rows of a run and what was learned of them before its first step.

use std::sync::Arc;

use super::head_outputs::HeadOutputs;
use super::labels::{LabelVocabulary, TaskChoice};
use crate::config::{Config, ConfigError, Loss, Task};
use crate::data::datasets::dataset::Dataset;
use crate::data::error::{DataError, Result};
use crate::data::saved_preprocessor::SavedPreprocessor;

/// The rows of a run, checked against each other.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Rows to train on.
    pub train: Arc<dyn Dataset>,
    /// Rows to train on, each once; `train` may repeat rows of rare classes.
    pub plain: Arc<dyn Dataset>,
    /// Rows to evaluate on; never empty.
    pub eval: Option<Arc<dyn Dataset>>,
    /// Conversion of the rows, to be saved with the model.
    pub preprocessor: SavedPreprocessor,
    /// Warnings about columns, labels and classes; known to rank 0.
    pub warnings: Vec<String>,
    /// The decision on the task, for `data.task = "auto"`.
    pub task_choice: Option<TaskChoice>,
    /// Training rows of each class, if the config needs them.
    pub class_counts: Option<Vec<u64>>,
    /// Evaluation rows that were left out because of their labels.
    pub n_skipped: usize,
    /// Both sides of the split in one line, if a column divides the rows.
    pub split: Option<String>,
    /// Training rows that lack a target of a head: its name and the least number of them, where there are some.
    pub head_gaps: Vec<(String, usize)>,
    /// Advice on the task, where the targets would fit another one; known to rank 0.
    pub task_advice: Option<&'static str>,
    /// A hash of rows and columns, of training and evaluation, as text.
    pub data_fingerprint: String,
    /// Hash of the targets of rows that were held out from training; known to rank 0.
    pub held_out: Option<u64>,
}

impl Loaded {
    /// The resolved config: with the task that the targets decided on, and numbers as balanced class weights.
    ///
    /// # Errors
    /// Same as [`Config::decided`].
    pub fn resolve(&self, config: Config) -> Result<Config, ConfigError> {
        let mut config = match &self.task_choice {
            Some(choice) => config.decided(choice.task)?,
            // The classes are those of an initial model.
            None if config.data.auto_task && self.labels().is_some() => {
                config.decided(Task::Classification)?
            }
            None => config,
        };
        if let Some(counts) = &self.class_counts {
            config.loss = config.loss.with_class_counts(counts);
        }
        Ok(config)
    }

    /// Decisions that the data brought about, one per line.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(TaskChoice { task, reason }) = &self.task_choice {
            let classes = self.labels().map(|labels| format!(" of {} classes", labels.len()));
            notes.push(format!("task: {task}{}, {reason}", classes.unwrap_or_default()));
        }
        notes.extend(self.task_advice.map(str::to_owned));
        notes.extend(self.split.clone());
        let n_rows = self.train.len();
        notes.extend(self.head_gaps.iter().map(|(name, n)| {
            format!("head {name}: at least {n} of {n_rows} training rows lack its target and take no part in its loss")
        }));
        notes.extend(without_target(self.train.n_without_target(), ""));
        // Evaluation rows of the same source are counted there.
        let of_eval = self.eval.as_ref().filter(|eval| eval.source() != self.train.source());
        notes.extend(of_eval.and_then(|eval| without_target(eval.n_without_target(), "evaluation ")));
        if self.n_skipped > 0 {
            let rows = if self.n_skipped == 1 { "row" } else { "rows" };
            let n = self.n_skipped;
            notes.push(format!("left out {n} evaluation {rows} whose labels do not occur in training"));
        }
        notes
    }

    /// Each head with its task, loss and targets in a line; none for a model of one head.
    pub fn head_lines(&self, loss: &Loss) -> Vec<String> {
        let heads = HeadOutputs::from_loss(loss, self.train.layout().targets.heads(), None).into_iter();
        let line = |HeadOutputs { targets, loss, .. }: HeadOutputs| {
            let of = match &targets.labels {
                Some(labels) => {
                    format!("{} classes of {}: {}", labels.len(), targets.columns[0], labels.summary())
                }
                None => targets.columns.join(", "),
            };
            format!("{}: {} ({}), {of}", targets.name, targets.task, loss.name())
        };
        heads.map(line).collect()
    }

    /// The labels of the classes; `None` without classes, and for datasets that number them.
    pub fn labels(&self) -> Option<&LabelVocabulary> {
        self.preprocessor.labels.as_deref()
    }

    /// Names of the classes in the order of the outputs; `None` without classes, and for datasets that number them.
    pub fn label_names(&self) -> Option<Vec<String>> {
        self.labels().map(|labels| (0..labels.len()).map(|class| labels.name(class)).collect())
    }
}

/// Says how many rows were left out because they have no target.
pub fn without_target(n_rows: usize, kind: &str) -> Option<String> {
    let rows = if n_rows == 1 { "row" } else { "rows" };
    (n_rows > 0).then(|| format!("left out {n_rows} {kind}{rows} without a target"))
}

/// Checks that each rank has a training row.
///
/// # Errors
/// [`DataError::FewerRowsThanRanks`].
pub fn check_n_rows(train: &dyn Dataset, world_size: usize) -> Result<()> {
    if train.len() < world_size {
        let source_name = train.source().to_owned();
        return Err(DataError::FewerRowsThanRanks { source_name, n_rows: train.len(), world_size });
    }
    Ok(())
}
