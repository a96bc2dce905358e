//! Converts the columns of a dataset to the features of the model: fills missing values, encodes categories, normalizes
//! numbers. Fitted to the training rows, saved with the model, applied to all rows.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use ddp::config::table_options::Decimal;
use ddp::config::{DataConfig, Encode, Missing, Normalize};
use ddp::data::column_kind::ColumnKind;
use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::{Dataset, RowLayout};
use ddp::data::datasets::target_scale::TargetScale;
use ddp::data::datasets::wrapper::{Changes, DatasetWrapper};
use ddp::data::error::{DataError, Result};
use ddp::data::labels::LabelVocabulary;
use ddp::data::labels::head_targets::HeadTargets;
use ddp::data::normalize::Normalizer;
use ddp::data::vocabulary::Vocabulary;
use ddp::data::{EmbeddingSpec, SavedPreprocessor, column_kind};
use ddp::model::ModelError;
use ddp::model::file::COLUMNS_KEY;
use ddp_comm::World;
use ddp_kernels::{DType, Device, Tensor, ops};
use serde::{Deserialize, Serialize};

use crate::fit::stats::ColumnStats;
use crate::fit::{normalize, offsets, scaled_targets};
use crate::source::KnownFeatures;

/// Conversion of rows between the dataset and the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessor {
    /// Conversion of each column to features.
    pub plan: ColumnCodes,
    /// Applied to the features of `plan`; numbers only.
    pub normalizer: Option<Normalizer>,
    /// Applied to the targets in regression.
    pub target_scale: Option<TargetScale>,
    /// Labels of the classes; `None` without classes, and where they are the numbers of the model's outputs.
    pub labels: Option<Arc<LabelVocabulary>>,
    /// Targets of the heads; empty for a model of one head.
    pub heads: Vec<HeadTargets>,
}

/// Conversion of columns to features: numbers first, then one indicator per column with missing values, then one-hot
/// columns, then the numbers of categories with an embedding.
///
/// Its JSON is in the model's file, and a resumed run compares the text: what is read is written again as it was, so a later field needs a
/// default and is left out where it has it. The text of a program's own model has the names of the columns alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnCodes {
    /// Names of the columns in the order of the dataset.
    pub columns: Vec<String>,
    /// Categorical columns.
    #[serde(default)]
    pub vocabularies: Vec<Vocabulary>,
    /// Encoding of categories.
    #[serde(default)]
    embed: bool,
    /// Width of an embedding; `None` for one that grows with the number of values.
    #[serde(default)]
    embedding_dim: Option<usize>,
    /// Whether the width of an embedding grows by the rule of this version; earlier versions made wider ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_narrow: bool,
    /// Replacement of a missing value, per column, less the column's offset.
    #[serde(default)]
    fill: Option<Vec<f32>>,
    /// Columns with missing values.
    #[serde(default)]
    indicators: Vec<usize>,
    /// Smallest and largest value of each column in the training rows, if they were all read; `None` for a column without values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ranges: Option<Vec<[Option<f32>; 2]>>,
    /// Kind of the values of each column, `None` for columns of several kinds; empty where no kinds are known.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "column_kind::to_letters",
        deserialize_with = "column_kind::from_letters"
    )]
    pub kinds: Vec<Option<ColumnKind>>,
    /// Decimal mark that files of text showed, for those that show none.
    #[serde(default, skip_serializing_if = "Decimal::is_auto")]
    pub decimal: Decimal,
}

/// The mark before the fractions in the rows of all ranks, if they show one: of rows that exceed the memory, only the rank that has written them
/// knows it. Collective.
///
/// # Errors
/// [`DataError`] of the collective.
pub(crate) fn decimal_mark(world: &World, rows: &RowLayout) -> Result<Option<Decimal>> {
    let of_ranks = world.group().all_gather_bytes(rows.decimal.name().as_bytes()).map_err(DataError::from)?;
    Ok([Decimal::Point, Decimal::Comma].into_iter().find(|mark| of_ranks[0] == mark.name().as_bytes()))
}

impl Preprocessor {
    /// Columns of numbers that are the features as they are.
    pub fn identity(columns: Vec<String>) -> Self {
        let plan = ColumnCodes::plain(columns);
        Preprocessor { plan, normalizer: None, target_scale: None, labels: None, heads: Vec::new() }
    }

    /// The conversion as a model's file holds it.
    pub fn to_saved(&self) -> SavedPreprocessor {
        let Preprocessor { plan, normalizer, target_scale, labels, heads } = self.clone();
        SavedPreprocessor {
            features: plan.feature_names(),
            embeddings: plan.embeddings(),
            columns: serde_json::to_string(&plan).expect("names and numbers are plain text"),
            normalizer,
            target_scale,
            labels,
            heads,
        }
    }

    /// The conversion of the model's file at `path`.
    ///
    /// # Errors
    /// [`ModelError::ModelFile`] for columns that cannot be read, that contradict themselves, or that make other features.
    pub fn from_model(saved: &SavedPreprocessor, path: &Path) -> Result<Self, ModelError> {
        let bad = |reason: String| ModelError::ModelFile { path: path.to_owned(), reason };
        let plan: ColumnCodes = serde_json::from_str(&saved.columns)
            .map_err(|error| bad(format!("its {COLUMNS_KEY} can't be read: {error}")))?;
        if let Some(contradiction) = plan.contradiction(saved.features.len()) {
            return Err(bad(format!("it contradicts itself: {contradiction}")));
        }
        let SavedPreprocessor { normalizer, target_scale, labels, heads, .. } = saved.clone();
        Ok(Preprocessor { plan, normalizer, target_scale, labels, heads })
    }

    /// Fits to rows of `layout`; `stats` of the training rows are needed to normalize (`normalize` is what `data.normalize` means
    /// for them) and to fill missing values.
    pub fn new(
        data: &DataConfig,
        normalize: Normalize,
        layout: &RowLayout,
        stats: Option<&ColumnStats>,
    ) -> Self {
        let n_columns = layout.n_features();
        let of_columns = stats.and_then(|stats| normalize::fit(normalize, stats));
        let offsets = of_columns.as_ref().and_then(|normalizer| normalizer.offset.as_ref());
        let fill = stats.filter(|_| data.missing != Missing::Error).map(|stats| {
            let value = |column: usize| {
                let value = match data.missing {
                    Missing::Mean => (stats.origin[column], stats.mean[column]),
                    Missing::Error | Missing::Zero => (0.0, 0.0),
                };
                (value.0 - offsets.map_or(0.0, |offsets| offsets[column]) + value.1) as f32
            };
            (0..n_columns).map(value).collect()
        });
        let is_indicated =
            |column: &usize| layout.has_missing && stats.is_some_and(|stats| stats.n_missing(*column) > 0);
        let mut plan = ColumnCodes {
            columns: layout.features.clone(),
            vocabularies: layout.categories.iter().map(|category| category.vocabulary.clone()).collect(),
            embed: data.encode == Encode::Embedding,
            embedding_dim: data.embedding_dim,
            is_narrow: true,
            fill,
            indicators: Vec::new(),
            ranges: stats.map(|stats| {
                let value = |column: usize, difference: f64| {
                    Some((stats.origin[column] + difference) as f32).filter(|value| value.is_finite())
                };
                let range =
                    |column: usize| [value(column, stats.min[column]), value(column, stats.max[column])];
                (0..n_columns).map(range).collect()
            }),
            kinds: layout.kinds.clone(),
            decimal: layout.decimal,
        };
        plan.indicators = plan.numbers().filter(is_indicated).collect();
        let normalizer = of_columns.map(|of_columns| {
            let of_features = |values: &[f64], other: f64| {
                let mut values: Vec<f64> = plan.numbers().map(|column| values[column]).collect();
                values.resize(plan.n_features(), other);
                values
            };
            Normalizer {
                offset: of_columns.offset.map(|offset| of_features(&offset, 0.0)),
                shift: of_features(&of_columns.shift, 0.0),
                scale: of_features(&of_columns.scale, 1.0),
            }
        });
        let (labels, heads) = (layout.labels.clone(), layout.targets.heads().to_vec());
        Preprocessor { plan, normalizer, target_scale: None, labels, heads }
    }

    /// Whether an offset is subtracted from a column in f64 before it becomes f32, for each column.
    pub fn has_offsets(&self) -> Vec<bool> {
        self.column_offsets().iter().map(|offset| *offset != 0.0).collect()
    }

    /// Offset subtracted from each column in f64 before it becomes f32; 0 for most.
    pub(crate) fn column_offsets(&self) -> Vec<f64> {
        let offsets = self.normalizer.as_ref().and_then(|normalizer| normalizer.offset.as_ref());
        match offsets {
            Some(of_features) => self.plan.scatter_to_columns(of_features),
            None => vec![0.0; self.plan.columns.len()],
        }
    }

    /// The converted rows, except for the normalization, which the loader applies.
    pub fn apply(&self, dataset: Arc<dyn Dataset>) -> Arc<dyn Dataset> {
        self.encode(self.scale(dataset))
    }

    /// The first half of [`Preprocessor::apply`]: targets are standardized and offsets subtracted; the columns stay.
    pub fn scale(&self, dataset: Arc<dyn Dataset>) -> Arc<dyn Dataset> {
        let dataset = match &self.target_scale {
            Some(scale) => scaled_targets::apply(scale, dataset),
            None => dataset,
        };
        match self.normalizer.as_ref().and_then(|normalizer| normalizer.offset.as_ref()) {
            Some(of_features) => offsets::apply(self.plan.scatter_to_columns(of_features), dataset),
            None => dataset,
        }
    }

    /// The second half of [`Preprocessor::apply`]: missing values are filled in and categories encoded, so that columns become
    /// features.
    pub fn encode(&self, dataset: Arc<dyn Dataset>) -> Arc<dyn Dataset> {
        if self.plan.is_identity() {
            return dataset;
        }
        let mut layout = RowLayout::new(self.plan.feature_names(), dataset.layout().targets.clone());
        layout.has_weights = dataset.layout().has_weights;
        layout.target_scale = dataset.layout().target_scale.clone();
        layout.labels.clone_from(&dataset.layout().labels);
        layout.task_choice.clone_from(&dataset.layout().task_choice);
        layout.left_out.clone_from(&dataset.layout().left_out);
        Arc::new(EncodedRows { of: dataset, columns: self.plan.compiled(), layout })
    }
}

/// Whether statistics of all training rows are needed, also if only evaluation rows may have missing values.
pub fn needs_stats(data: &DataConfig, normalize: Normalize) -> bool {
    normalize != Normalize::None || data.missing != Missing::Error
}

impl ColumnCodes {
    /// Columns of numbers without missing values, which are the features.
    pub fn plain(columns: Vec<String>) -> Self {
        let (fill, indicators, vocabularies) = (None, Vec::new(), Vec::new());
        ColumnCodes {
            columns,
            vocabularies,
            embed: false,
            embedding_dim: None,
            is_narrow: true,
            fill,
            indicators,
            ranges: None,
            kinds: Vec::new(),
            decimal: Decimal::Auto,
        }
    }

    /// Lists with an entry for each column, with what they hold.
    pub(super) fn lengths_by_column(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let fill = self.fill.as_ref().map(|fill| ("replacements of missing values", fill.len()));
        fill.into_iter().chain(self.ranges.as_ref().map(|ranges| ("ranges", ranges.len())))
    }

    /// Columns of numbers with missing values, in order.
    pub(super) fn indicators(&self) -> &[usize] {
        &self.indicators
    }

    /// Whether missing values are filled in.
    pub fn fills_missing(&self) -> bool {
        self.fill.is_some()
    }

    /// Smallest and largest value of a column in the training rows, if they are known and there is one.
    pub fn training_range(&self, column: usize) -> Option<[f32; 2]> {
        let [min, max] = self.ranges.as_ref()?[column];
        min.zip(max).map(<[f32; 2]>::from)
    }

    /// Whether rows of `layout` have its columns and values of categories.
    pub fn is_of(&self, layout: &RowLayout) -> bool {
        let vocabularies = layout.categories.iter().map(|category| &category.vocabulary);
        self.columns == layout.features && vocabularies.eq(&self.vocabularies)
    }

    /// Fails for settings that a new fit would follow, but this one does not.
    pub fn check_settings(&self, data: &DataConfig) -> Result<()> {
        let fills = |yes| {
            if yes { "values that replace missing ones" } else { "no values that replace missing ones" }
        };
        let has_fill = self.fill.is_some();
        if has_fill != (data.missing != Missing::Error) {
            let (key, value) = ("data.missing", data.missing.name());
            return Err(DataError::OtherPreprocessing { key, value, there: fills(has_fill) });
        }
        let embeds = |yes| if yes { "embeddings" } else { "a column per value" };
        if !self.vocabularies.is_empty() && self.embed != (data.encode == Encode::Embedding) {
            let (key, value) = ("data.encode", data.encode.name());
            return Err(DataError::OtherPreprocessing { key, value, there: embeds(self.embed) });
        }
        Ok(())
    }

    /// Columns of numbers, in order.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.with_vocabularies().filter_map(|(column, known)| known.is_none().then_some(column))
    }

    /// Values of the columns from those of the features; 0 for categories.
    pub fn scatter_to_columns(&self, of_features: &[f64]) -> Vec<f64> {
        let mut values = vec![0.0; self.columns.len()];
        self.numbers().zip(of_features).for_each(|(column, value)| values[column] = *value);
        values
    }

    /// Columns, with the vocabularies of categories, in order.
    fn with_vocabularies(&self) -> impl Iterator<Item = (usize, Option<&Vocabulary>)> {
        let known: HashMap<_, _> = self.vocabularies.iter().map(|known| (known.name(), known)).collect();
        self.columns.iter().map(move |name| known.get(&**name).copied()).enumerate()
    }

    /// Categorical columns with their vocabularies, in order.
    pub(crate) fn categories(&self) -> impl Iterator<Item = (usize, &Vocabulary)> {
        self.with_vocabularies().filter_map(|(column, known)| Some((column, known?)))
    }

    /// Columns with one feature per value, and the numbers of these features; none where categories have embeddings.
    pub fn one_hot(&self) -> impl Iterator<Item = (&str, usize)> {
        let vocabularies = self.categories().filter(|_| !self.embed);
        vocabularies.map(|(_, vocabulary)| (vocabulary.name(), vocabulary.n_codes()))
    }

    /// The columns, for rows that are read for `of`.
    pub fn known_features<'a>(&'a self, of: &'a str) -> KnownFeatures<'a> {
        let ColumnCodes { columns, vocabularies, kinds, decimal, .. } = self;
        KnownFeatures { names: columns, vocabularies, kinds, decimal: *decimal, of, prunes: false }
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
            // A rule of thumb (fastai's) was that of earlier versions.
            let wide = || (1.6 * (n_codes as f64).powf(0.56)).min(256.0).round().max(1.0) as usize;
            let usual = || if self.is_narrow { EmbeddingSpec::usual_dim(n_codes) } else { wide() };
            let dim = self.embedding_dim.unwrap_or_else(usual);
            EmbeddingSpec { name: self.columns[column].clone(), n_codes, dim }
        });
        columns.collect()
    }

    /// Conversion of the columns, in the order of the features.
    pub(crate) fn compiled(&self) -> Vec<Column> {
        let fill = |column: usize| self.fill.as_ref().map_or(0.0, |fill| fill[column]);
        let mut columns: Vec<_> =
            self.numbers().map(|column| Column::Number { column, fill: fill(column) }).collect();
        columns.extend(self.indicators.iter().map(|&column| Column::Indicator { column }));
        columns.extend(self.categories().map(|(column, vocabulary)| {
            if self.embed {
                Column::Code { column, n_codes: vocabulary.n_codes() }
            } else {
                Column::OneHot { column, n_codes: vocabulary.n_codes() }
            }
        }));
        columns
    }
}

/// One or several features of a column, which is named by its number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Column {
    /// The value, less the column's offset, or `fill` where it is missing.
    Number { column: usize, fill: f32 },
    /// 1 where the value is missing, else 0.
    Indicator { column: usize },
    /// One feature per code.
    OneHot { column: usize, n_codes: usize },
    /// The code of a category with an embedding.
    Code { column: usize, n_codes: usize },
}

/// The number of a category; 0 (unknown) for other numbers.
fn code(value: f32, n_codes: usize) -> usize {
    let code = value as usize;
    if code < n_codes { code } else { 0 }
}

/// Features of one row.
fn encode(columns: &[Column], row: &[f32], out: &mut [f32]) {
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

/// Rows whose columns are converted to features when they are gathered.
#[derive(Debug)]
struct EncodedRows {
    of: Arc<dyn Dataset>,
    columns: Vec<Column>,
    layout: RowLayout,
}

impl DatasetWrapper for EncodedRows {
    const CHANGES: Changes = Changes::Features;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
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
        let (from, to) = (raw.view().as_slice::<f32>(OP, "columns")?, out.x.into_slice::<f32>(OP, "x")?);
        let (n_columns, n_features) = (dims[1], self.layout.n_features());
        for (row, out) in from.chunks_exact(n_columns).zip(to.chunks_exact_mut(n_features)) {
            encode(&self.columns, row, out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ddp::model::file::ModelInfo;

    use super::*;

    #[test]
    fn saved_columns_are_written_as_they_were_read() {
        let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/saved_runs");
        for run in ["categorical", "classification", "regression", "resumed"] {
            let path = runs.join(run).join("finished/model.safetensors");
            let saved = ModelInfo::read(&path).unwrap().preprocessor;
            assert_eq!(Preprocessor::from_model(&saved, &path).unwrap().to_saved(), saved, "{run}");
        }
    }

    #[test]
    fn a_program_s_own_columns_are_the_features() {
        let saved = SavedPreprocessor::identity(vec!["height".to_owned(), "weight".to_owned()]);
        let preprocessor = Preprocessor::from_model(&saved, Path::new("model")).unwrap();
        assert_eq!(preprocessor.to_saved().features, saved.features);
        assert!(preprocessor.plan.is_identity());
    }
}
