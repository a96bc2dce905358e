//! Permutation importance: how much worse a model becomes when a column holds no information about its row.
//!
//! A column's values are permuted over the evaluation rows, as they are before missing values, categories and normalization, and
//! the model is evaluated again. Source: L. Breiman, "Random Forests", 2001; scikit-learn's `permutation_importance`.
//!
//! ```
//! use ddp_tables::importance::measure::ColumnImportance;
//!
//! // The accuracy that each of two permutations took away.
//! let age = ColumnImportance { column: "age".to_owned(), repeats: vec![0.25, 0.75] };
//! assert_eq!((age.mean(), age.standard_deviation()), (0.5, 0.25));
//! ```

use std::sync::Arc;

use ddp::config::{JudgeMetric, MetricSet};
use ddp::data::Dataset;
use ddp::data::loader::LoaderOptions;
use ddp::data::order::partition::EvalPartition;
use ddp::model::{LossHead, Network};
use ddp::report::EvalMetrics;
use ddp::train::error::{Result, Stop, TrainError};
use ddp::train::evaluate::evaluate;
use ddp::train::metrics::request::MetricRequest;
use ddp_comm::World;
use ddp_kernels::KeyedPermutation;

use crate::fit::preprocess::Preprocessor;
use crate::importance::permuted_columns::{ColumnValues, UserColumn, permuted_columns};

/// Rows of a part of an evaluation, and the most parts. They depend on the rows only, and so do the sums' bits.
const PART_ROWS: usize = 256;
const MAX_PARTS: usize = 240;

/// A measurement of permutation importance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportanceOptions {
    /// The metric that falls, or the error that grows, of all rows or of a head.
    pub metric: JudgeMetric,
    /// Permutations of each column, at least 1.
    pub n_repeats: usize,
    /// Seed of the permutations.
    pub seed: u64,
}

/// Importance of the columns of a model's rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Importance {
    /// The metrics without a permutation.
    pub baseline: EvalMetrics,
    /// The columns, most important first.
    pub columns: Vec<ColumnImportance>,
}

/// Importance of one column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnImportance {
    /// Name of the user's column: a date counts once.
    pub column: String,
    /// Loss of quality per permutation, in units of the metric: its drop, or the increase of an error.
    pub repeats: Vec<f64>,
}

impl ColumnImportance {
    /// Mean over the permutations.
    pub fn mean(&self) -> f64 {
        self.repeats.iter().sum::<f64>() / self.repeats.len() as f64
    }

    /// Standard deviation over the permutations, of the population as in scikit-learn.
    pub fn standard_deviation(&self) -> f64 {
        let mean = self.mean();
        let squares = self.repeats.iter().map(|worse| (worse - mean).powi(2));
        (squares.sum::<f64>() / self.repeats.len() as f64).sqrt()
    }
}

/// Rows of an evaluation before the model's preprocessing, and what evaluates them.
#[derive(Debug)]
pub struct EvalSetup<'a> {
    /// Network to evaluate, with its weights.
    pub model: &'a mut Network,
    /// Head that computes the loss from the outputs.
    pub loss: &'a LossHead,
    /// Task, names and units of the metrics.
    pub request: &'a MetricRequest,
    /// The rows, with columns as they are read.
    pub rows: &'a Arc<dyn Dataset>,
    /// Conversion of the columns to the model's features.
    pub preprocessor: &'a Preprocessor,
    /// Loading of the rows.
    pub loading: &'a LoaderOptions,
}

/// Measures the importance of `columns`: one evaluation, and another for each column and permutation. `done` is called after
/// each with the name of the column. The permutation of a column depends on (seed, index of the column, repeat) and goes over the rows of all ranks, so the result
/// does not depend on their number. Every rank of the world calls it.
///
/// Keeps the values of one column in memory, and reads the rows once more per column.
///
/// # Errors
/// [`TrainError::TooFewRowsToPermute`]; [`TrainError::MetricUndefined`] if the rows do not define the metric; errors of [`evaluate`].
pub fn permutation_importance(
    world: &World,
    setup: EvalSetup<'_>,
    columns: &[UserColumn],
    options: &ImportanceOptions,
    mut done: impl FnMut(&str),
) -> Result<Importance, Stop> {
    let EvalSetup { model, loss, request, rows, preprocessor, loading } = setup;
    let ImportanceOptions { metric: judge, n_repeats, seed } = options;
    let n_rows = rows.len();
    if n_rows < 2 {
        return Err(TrainError::TooFewRowsToPermute { source_name: rows.source().to_owned(), n_rows }.into());
    }
    let request = request.clone().with_metrics(MetricSet::default().with(judge.metric));
    let n_parts = n_rows.div_ceil(PART_ROWS).min(MAX_PARTS);
    let partition = EvalPartition { n_parts, max_rows: usize::MAX };
    let mut metrics_of = |rows: Arc<dyn Dataset>, column: &str| {
        let rows = preprocessor.encode(rows);
        let metrics = evaluate(world, model, loss, &request, &rows, partition, loading)?;
        done(column);
        Ok::<_, TrainError>(metrics)
    };
    let undefined =
        || TrainError::MetricUndefined { metric: judge.clone(), source_name: rows.source().to_owned() };
    let baseline = metrics_of(rows.clone(), "")?;
    let sign = if judge.metric.grows() { 1.0 } else { -1.0 };
    let value = baseline.judged_by(judge).ok_or_else(undefined)?;
    let mut found = Vec::with_capacity(columns.len());
    for UserColumn { name, columns } in columns {
        let values =
            Arc::new(ColumnValues::read(world, &**rows, columns.clone()).map_err(ddp_comm::Stop::convert)?);
        let worse = |repeat: usize| {
            let key = (columns.start as u64) << 32 | repeat as u64;
            let permutation = KeyedPermutation::new(n_rows, *seed, key);
            let metrics = metrics_of(permuted_columns(rows.clone(), values.clone(), permutation), name)?;
            Ok(sign * (value - metrics.judged_by(judge).ok_or_else(undefined)?))
        };
        let repeats = (0..*n_repeats).map(worse).collect::<Result<Vec<f64>>>()?;
        found.push(ColumnImportance { column: name.clone(), repeats });
    }
    // NaN last.
    let key =
        |column: &ColumnImportance| if column.mean().is_nan() { f64::NEG_INFINITY } else { column.mean() };
    found.sort_by(|a, b| key(b).total_cmp(&key(a)));
    Ok(Importance { baseline, columns: found })
}
