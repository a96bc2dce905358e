//! Converts the columns of a dataset to the features of the model: fills missing values, encodes categories, normalizes
//! numbers. Fitted to the training rows, saved with the model, applied to all rows.

use std::ops::Range;
use std::sync::Arc;

use ddp_kernels::{DType, Device, Tensor, ops};
use serde::{Deserialize, Serialize};

use super::dataset::{Dataset, RowLayout};
use super::normalize::Normalizer;
use super::stats::ColumnStats;
use super::vocabulary::Vocabulary;
use crate::config::{DataConfig, Encode, Missing, Normalize};
use crate::data::EmbeddingSpec;
use crate::data::batch::BatchMut;
use crate::data::error::Result;

/// Conversion of rows between the dataset and the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessor {
    /// Conversion of each column to features.
    pub plan: ColumnCodes,
    /// Applied to the features of `plan`; numbers only.
    pub normalizer: Option<Normalizer>,
}

/// Conversion of columns to features: numbers first, then one indicator per column with missing values, then one-hot
/// columns, then the numbers of categories with an embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnCodes {
    /// Names of the columns in the order of the dataset.
    pub columns: Vec<String>,
    /// Categorical columns.
    pub vocabularies: Vec<Vocabulary>,
    /// Encoding of categories.
    embed: bool,
    /// Width of an embedding; `None` for one that grows with the number of values.
    embedding_dim: Option<usize>,
    /// Replacement of a missing value, per column.
    fill: Option<Vec<f32>>,
    /// Columns with missing values.
    indicators: Vec<usize>,
}

impl Preprocessor {
    /// Fits to rows of `layout`; `stats` of the training rows are needed to normalize and to fill missing values.
    pub fn new(data: &DataConfig, layout: &RowLayout, stats: Option<&ColumnStats>) -> Self {
        let n_columns = layout.n_features();
        let numbers = |column: usize| !layout.categories.iter().any(|category| category.column == column);
        let fill = stats.filter(|_| data.missing != Missing::Error).map(|stats| {
            let value = |column: usize| match data.missing {
                Missing::Mean => stats.mean[column] as f32,
                Missing::Error | Missing::Zero => 0.0,
            };
            (0..n_columns).map(value).collect()
        });
        let is_indicated = |column: &usize| {
            layout.has_missing && numbers(*column) && stats.is_some_and(|stats| stats.n_missing(*column) > 0)
        };
        let plan = ColumnCodes {
            columns: layout.features.clone(),
            vocabularies: layout.categories.iter().map(|category| category.vocabulary.clone()).collect(),
            embed: data.encode == Encode::Embedding,
            embedding_dim: data.embedding_dim,
            fill,
            indicators: (0..n_columns).filter(is_indicated).collect(),
        };
        let normalizer = stats.and_then(|stats| Normalizer::fit(data.normalize, stats)).map(|of_columns| {
            let mut normalizer = Normalizer { shift: Vec::new(), scale: Vec::new() };
            for column in plan.numbers() {
                normalizer.shift.push(of_columns.shift[column]);
                normalizer.scale.push(of_columns.scale[column]);
            }
            normalizer.shift.resize(plan.n_features(), 0.0);
            normalizer.scale.resize(plan.n_features(), 1.0);
            normalizer
        });
        Preprocessor { plan, normalizer }
    }

    /// The converted rows, except for the normalization, which the loader applies.
    pub fn apply(&self, dataset: Arc<dyn Dataset>) -> Arc<dyn Dataset> {
        if self.plan.is_identity() {
            return dataset;
        }
        let mut layout = RowLayout::new(self.plan.feature_names(), dataset.layout().targets.clone());
        layout.has_weights = dataset.layout().has_weights;
        layout.left_out.clone_from(&dataset.layout().left_out);
        Arc::new(EncodedRows { of: dataset, plan: self.plan.clone(), layout })
    }
}

/// Whether statistics of all training rows are needed, also if only evaluation rows may have missing values.
pub(super) fn needs_stats(data: &DataConfig) -> bool {
    data.normalize != Normalize::None || data.missing != Missing::Error
}

impl ColumnCodes {
    /// Columns of numbers without missing values, which are the features.
    pub fn plain(columns: Vec<String>) -> Self {
        let (fill, indicators, vocabularies) = (None, Vec::new(), Vec::new());
        ColumnCodes { columns, vocabularies, embed: false, embedding_dim: None, fill, indicators }
    }

    /// Columns of numbers, in order.
    fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        let is_number = |column: &usize| self.vocabulary(*column).is_none();
        (0..self.columns.len()).filter(is_number)
    }

    fn vocabulary(&self, column: usize) -> Option<&Vocabulary> {
        self.vocabularies.iter().find(|vocabulary| vocabulary.name() == self.columns[column])
    }

    /// Categorical columns with their vocabularies, in order.
    fn categories(&self) -> impl Iterator<Item = (usize, &Vocabulary)> + '_ {
        (0..self.columns.len()).filter_map(|column| Some((column, self.vocabulary(column)?)))
    }

    /// Whether the columns are the features.
    fn is_identity(&self) -> bool {
        self.fill.is_none() && self.vocabularies.is_empty()
    }

    /// Width of the model's input.
    pub fn n_features(&self) -> usize {
        let categories =
            self.categories().map(|(_, vocabulary)| if self.embed { 1 } else { vocabulary.n_codes() });
        self.numbers().count() + self.indicators.len() + categories.sum::<usize>()
    }

    /// Names of the model's inputs.
    pub fn feature_names(&self) -> Vec<String> {
        let name = |column: usize| &self.columns[column];
        let mut names: Vec<String> = self.numbers().map(|column| name(column).clone()).collect();
        names.extend(self.indicators.iter().map(|&column| format!("{} is missing", name(column))));
        for (column, vocabulary) in self.categories() {
            if self.embed {
                names.push(name(column).clone());
                continue;
            }
            names.push(format!("{} is unknown", name(column)));
            names.extend(vocabulary.values().iter().map(|value| format!("{} = {value}", name(column))));
        }
        names
    }

    /// The embedding tables of the model, in the order of the last columns of its input.
    pub fn embeddings(&self) -> Vec<EmbeddingSpec> {
        let columns = self.categories().filter(|_| self.embed).map(|(column, vocabulary)| {
            let n_codes = vocabulary.n_codes();
            // A rule of thumb (fastai's): it grows slowly with the number of values.
            let usual = (1.6 * (n_codes as f64).powf(0.56)).round().clamp(1.0, 256.0) as usize;
            EmbeddingSpec {
                name: self.columns[column].clone(),
                n_codes,
                dim: self.embedding_dim.unwrap_or(usual),
            }
        });
        columns.collect()
    }

    /// Features of one row.
    fn encode(&self, columns: &[Column], row: &[f32], out: &mut [f32]) {
        let mut at = 0;
        for column in columns {
            match *column {
                Column::Number { column, fill } => {
                    out[at] = if row[column].is_nan() { fill } else { row[column] };
                    at += 1;
                }
                Column::Indicator { column } => {
                    out[at] = f32::from(u8::from(row[column].is_nan()));
                    at += 1;
                }
                Column::OneHot { column, n_codes } => {
                    let place = &mut out[at..at + n_codes];
                    place.fill(0.0);
                    place[code(row[column], n_codes)] = 1.0;
                    at += n_codes;
                }
                Column::Code { column, n_codes } => {
                    out[at] = code(row[column], n_codes) as f32;
                    at += 1;
                }
            }
        }
    }

    fn compiled(&self) -> Vec<Column> {
        let fill = |column: usize| self.fill.as_ref().map_or(0.0, |fill| fill[column]);
        let mut columns: Vec<_> =
            self.numbers().map(|column| Column::Number { column, fill: fill(column) }).collect();
        columns.extend(self.indicators.iter().map(|&column| Column::Indicator { column }));
        columns.extend(self.categories().map(|(column, vocabulary)| match self.embed {
            true => Column::Code { column, n_codes: vocabulary.n_codes() },
            false => Column::OneHot { column, n_codes: vocabulary.n_codes() },
        }));
        columns
    }
}

/// One or several features of a column.
#[derive(Debug, Clone, Copy)]
enum Column {
    Number { column: usize, fill: f32 },
    Indicator { column: usize },
    OneHot { column: usize, n_codes: usize },
    Code { column: usize, n_codes: usize },
}

/// The number of a category; 0 (unknown) for other numbers.
fn code(value: f32, n_codes: usize) -> usize {
    let code = value as usize;
    if code < n_codes { code } else { 0 }
}

/// Rows whose columns are converted to features when they are gathered.
#[derive(Debug)]
struct EncodedRows {
    of: Arc<dyn Dataset>,
    plan: ColumnCodes,
    layout: RowLayout,
}

impl Dataset for EncodedRows {
    fn len(&self) -> usize {
        self.of.len()
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        let (inner, n) = (self.of.layout(), rows.len());
        let dims = [n, inner.n_features()];
        let mut raw = Tensor::zeros(&dims, inner.dtype, Device::Cpu)?;
        self.of.gather(rows, BatchMut { x: raw.view_mut(), targets: out.targets, weights: out.weights })?;
        if inner.dtype != DType::F32 {
            let mut floats = Tensor::zeros(&dims, DType::F32, Device::Cpu)?;
            ops::load_rows(raw.view(), None, None, floats.view_mut())?;
            raw = floats;
        }
        let columns = self.plan.compiled();
        let (from, to) = (raw.view().as_slice::<f32>(OP, "columns")?, out.x.into_slice::<f32>(OP, "x")?);
        let (n_columns, n_features) = (dims[1], self.layout.n_features());
        for (row, out) in from.chunks_exact(n_columns).zip(to.chunks_exact_mut(n_features)) {
            self.plan.encode(&columns, row, out);
        }
        Ok(())
    }

    fn block_ends(&self) -> Option<&[usize]> {
        self.of.block_ends()
    }

    fn prefetch(&self, rows: &[Range<usize>]) {
        self.of.prefetch(rows);
    }

    fn advice(&self) -> Option<String> {
        self.of.advice()
    }

    fn fingerprint(&self) -> Result<u64> {
        self.of.fingerprint()
    }

    fn resident_bytes(&self) -> usize {
        self.of.resident_bytes()
    }

    fn source(&self) -> &str {
        self.of.source()
    }
}
