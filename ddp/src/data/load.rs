//! Config -> training and evaluation rows, with every check that needs both.

use std::path::Path;

use super::dataset::{Dataset, Targets};
use super::normalize::Normalizer;
use super::split::split;
use super::{builtin, csv};
use crate::config::{Config, DataConfig, EvalSource, Loss, Task};
use crate::error::{Error, Result};

/// Which columns are targets, and what they hold.
#[derive(Debug, Clone, Copy)]
pub struct TargetSpec<'a> {
    /// What the targets are.
    pub task: Task,
    /// Names of the target columns, in the order of the model's outputs.
    pub columns: &'a [String],
    /// Number of classes; `None` means largest label + 1.
    pub classes: Option<usize>,
}

/// Which part of a built-in set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Rows to train on.
    Train,
    /// Rows to evaluate on.
    Test,
}

/// The rows of a run, checked against each other.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Rows to train on, already normalised.
    pub train: Dataset,
    /// Rows to evaluate on, already normalised; never empty.
    pub eval: Option<Dataset>,
    /// What normalised both, to be saved with the model.
    pub normalizer: Option<Normalizer>,
    /// Hash of all rows as read, the same on ranks that read the same.
    pub fingerprint: u64,
}

/// Reads, splits, checks and normalises the rows that the config names.
///
/// # Errors
/// All faults of the data, with file, line and column where they have one (exit status 2).
pub fn load(config: &Config, world_size: usize) -> Result<Loaded> {
    let data = &config.data;
    let mut train = read_source(&data.train, Part::Train, &data.targets(data.classes))?;
    let eval = match &data.eval {
        EvalSource::None => None,
        EvalSource::Fraction(fraction) => {
            let (rest, eval) = split(&train, *fraction, config.train.seed)?;
            train = rest;
            Some(eval)
        }
        EvalSource::Source(source) => {
            // Labels of the evaluation rows must be classes of the training rows.
            let classes = match &train.targets {
                Targets::Classes { n_classes, .. } => Some(*n_classes),
                Targets::Values { .. } => None,
            };
            let eval = read_source(source, Part::Test, &data.targets(classes))?;
            Some(match_columns(eval, &train.feature_names, &train.source)?)
        }
    };
    if train.n_rows < world_size {
        return Err(Error::FewerRowsThanRanks {
            source_name: train.source,
            n_rows: train.n_rows,
            world_size,
        });
    }
    check_class_weights(&config.loss, &train)?;

    let fingerprint = match &eval {
        Some(eval) => train.fingerprint() ^ eval.fingerprint().rotate_left(1),
        None => train.fingerprint(),
    };
    let mut loaded = Loaded { normalizer: Normalizer::fit(data.normalize, &train), train, eval, fingerprint };
    if let Some(normalizer) = &loaded.normalizer {
        normalizer.apply(&mut loaded.train);
        loaded.eval.iter_mut().for_each(|eval| normalizer.apply(eval));
    }
    Ok(loaded)
}

impl DataConfig {
    /// The targets of this config, with `classes` in place of its own.
    pub fn targets(&self, classes: Option<usize>) -> TargetSpec<'_> {
        TargetSpec { task: self.task, columns: &self.target, classes }
    }
}

/// Rows of `builtin:NAME` or of a CSV file.
///
/// # Errors
/// What is wrong with the name or the file.
pub fn read_source(source: &str, part: Part, spec: &TargetSpec<'_>) -> Result<Dataset> {
    match source.strip_prefix("builtin:") {
        Some(name) => builtin::read(name, part, spec),
        None => csv::read(Path::new(source), spec),
    }
}

/// Brings the feature columns of `dataset` into the order of `expected`, the columns of
/// `expected_source`.
///
/// # Errors
/// [`Error::ColumnsDiffer`] if the names are not the same; it names the first that differ.
pub fn match_columns(mut dataset: Dataset, expected: &[String], expected_source: &str) -> Result<Dataset> {
    if dataset.feature_names == expected {
        return Ok(dataset);
    }
    let without = |names: &[String], others: &[String]| -> Option<String> {
        names.iter().find(|name| !others.contains(name)).cloned()
    };
    let missing = without(expected, &dataset.feature_names);
    let extra = without(&dataset.feature_names, expected);
    if missing.is_some() || extra.is_some() {
        return Err(Error::ColumnsDiffer {
            source_name: dataset.source,
            n_columns: dataset.n_features,
            other: expected_source.to_owned(),
            n_other: expected.len(),
            difference: match (missing, extra) {
                (Some(missing), Some(extra)) => {
                    format!("\"{missing}\" is missing, \"{extra}\" is extra")
                }
                (Some(missing), None) => format!("\"{missing}\" is missing"),
                (_, Some(extra)) => format!("\"{extra}\" is extra"),
                (None, None) => String::new(),
            },
        });
    }
    let order: Vec<usize> = expected
        .iter()
        .filter_map(|name| dataset.feature_names.iter().position(|other| other == name))
        .collect();
    let mut reordered = Vec::with_capacity(dataset.features.len());
    for row in dataset.features.chunks_exact(dataset.n_features) {
        reordered.extend(order.iter().map(|&column| row[column]));
    }
    dataset.features = reordered;
    dataset.feature_names = expected.to_vec();
    Ok(dataset)
}

fn check_class_weights(loss: &Loss, train: &Dataset) -> Result<()> {
    let n_classes = train.targets.n_outputs();
    match loss {
        Loss::CrossEntropy { class_weights: Some(weights), .. } if weights.len() != n_classes => {
            Err(Error::ClassWeightsCount {
                source_name: train.source.clone(),
                n_classes,
                n_weights: weights.len(),
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
