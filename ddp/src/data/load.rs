//! Loads the training and evaluation rows of a config and checks them against each other.

use std::sync::Arc;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::TensorMut;

use super::dataset::{Dataset, TargetLayout};
use super::open::{Opened, open};
use super::preprocess::{Preprocessor, needs_stats};
use super::source::{KnownFeatures, Part, SourceSpec};
use super::stats::ColumnStats;
use super::subset::split;
use super::vocabulary::Vocabulary;
use crate::config::{Config, DataConfig, EvalSource, Loss};
use crate::data::error::{DataError, Result};
use crate::data::order::partition::rank_range;
use ddp_comm::Stop;

/// The rows of a run, checked against each other.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Rows to train on.
    pub train: Arc<dyn Dataset>,
    /// Rows to evaluate on; never empty.
    pub eval: Option<Arc<dyn Dataset>>,
    /// Conversion of the rows, to be saved with the model.
    pub preprocessor: Preprocessor,
    /// A hash of rows and columns, of training and evaluation.
    fingerprint: u64,
}

/// Opens, splits and checks the rows that the config names, and compares them over the ranks. Every rank of the world calls it
/// with the same config.
///
/// # Errors
/// Faults of the data, with their place (exit status 2).
pub fn load(config: &Config, world: &World) -> Result<Loaded, Stop<DataError>> {
    let data = &config.data;
    let opened = world.collective_result(open(&SourceSpec::train(data)))?;
    let max_label = max_label(&opened, world)?;
    let whole = world.collective_result(opened.with_max_label(max_label))?;
    let (train, eval) = world.collective_result(divide(config, whole, world.world_size()))?;
    let fingerprint = world.collective_result(fingerprint(&train, eval.as_ref()))?;
    // Before the ranks read parts of rows that must be the same.
    let entry = ("rows and columns of the data (fingerprint)".to_owned(), format!("{fingerprint:016x}"));
    world.agree(&[entry]).map_err(DataError::from)?;

    let layout = train.layout();
    let stats = match needs_stats(data) {
        true => Some(ColumnStats::of(&*train, world)?),
        false => None,
    };
    let preprocessor = Preprocessor::new(data, layout, stats.as_ref());
    Ok(Loaded {
        train: preprocessor.apply(train),
        eval: eval.map(|eval| preprocessor.apply(eval)),
        preprocessor,
        fingerprint,
    })
}

impl Loaded {
    /// A hash of rows and columns, of training and evaluation, as text.
    pub fn fingerprint_hex(&self) -> String {
        format!("{:016x}", self.fingerprint)
    }
}

/// The largest label if it determines the number of classes; each rank reads a part.
fn max_label(opened: &Opened, world: &World) -> Result<i64, Stop<DataError>> {
    let own = |n_rows| rank_range(n_rows, world.rank().0, world.world_size());
    let mut label = [world.collective_result(opened.max_label(own))?];
    let view = TensorMut::from_slice(&mut label, &[1]).map_err(DataError::from)?;
    world.group().all_reduce(ReduceOp::Max, view).map_err(DataError::from)?;
    Ok(label[0])
}

type Parts = (Arc<dyn Dataset>, Option<Arc<dyn Dataset>>);

/// Training and evaluation rows.
fn divide(config: &Config, whole: Arc<dyn Dataset>, world_size: usize) -> Result<Parts> {
    let data = &config.data;
    let (train, eval): Parts = match &data.eval {
        EvalSource::Unset | EvalSource::None => (whole, None),
        EvalSource::Fraction(fraction) => {
            let (train, eval) = split(&whole, *fraction, config.train.seed)?;
            (Arc::new(train), Some(Arc::new(eval)))
        }
        EvalSource::Source(source) => {
            let layout = whole.layout();
            let vocabularies = vocabularies(&*whole);
            // Labels of the evaluation rows must be classes of the training rows.
            let classes = match layout.targets {
                TargetLayout::Classes { n_classes } => Some(n_classes),
                TargetLayout::Values { .. } => None,
            };
            let known =
                KnownFeatures { names: &layout.features, vocabularies: &vocabularies, of: whole.source() };
            let eval = open_eval(data, source, data.eval_labels.as_deref(), classes, known)?;
            (whole, Some(eval))
        }
    };
    check_n_rows(&*train, world_size)?;
    check_class_weights(&config.loss, &*train)?;
    Ok((train, eval))
}

/// Checks that each rank has a training row.
///
/// # Errors
/// [`DataError::FewerRowsThanRanks`].
pub(crate) fn check_n_rows(train: &dyn Dataset, world_size: usize) -> Result<()> {
    if train.len() < world_size {
        let source_name = train.source().to_owned();
        return Err(DataError::FewerRowsThanRanks { source_name, n_rows: train.len(), world_size });
    }
    Ok(())
}

/// Opens evaluation rows with the columns of the model.
///
/// # Errors
/// A [`DataError`] that names the file or the setting.
pub fn open_eval(
    data: &DataConfig,
    source: &str,
    labels: Option<&str>,
    classes: Option<usize>,
    features: KnownFeatures<'_>,
) -> Result<Arc<dyn Dataset>> {
    let spec = SourceSpec {
        source,
        labels,
        part: Part::Test,
        classes,
        features: Some(features),
        ..SourceSpec::train(data)
    };
    open(&spec)?.ready()
}

fn fingerprint(train: &Arc<dyn Dataset>, eval: Option<&Arc<dyn Dataset>>) -> Result<u64> {
    let eval = eval.map_or(Ok(0), |eval| eval.fingerprint())?;
    Ok(train.fingerprint()? ^ eval.rotate_left(1))
}

fn check_class_weights(loss: &Loss, train: &dyn Dataset) -> Result<()> {
    let n_classes = train.layout().targets.n_outputs();
    match loss {
        Loss::CrossEntropy { class_weights: Some(weights), .. } if weights.len() != n_classes => {
            let (source_name, n_weights) = (train.source().to_owned(), weights.len());
            Err(DataError::ClassWeightsCount { source_name, n_classes, n_weights })
        }
        _ => Ok(()),
    }
}

/// The vocabularies of a layout's categorical columns.
fn vocabularies(dataset: &dyn Dataset) -> Vec<Vocabulary> {
    dataset.layout().categories.iter().map(|category| category.vocabulary.clone()).collect()
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
