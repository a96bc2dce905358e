//! Rows read from a table: features in f32, categories as numbers.

use std::path::Path;

use super::columns::ColumnPlan;
use super::csv::CsvError;
use crate::config::Task;
use crate::data::CellProblem;
use crate::data::checks::MAX_GUESSED_CLASSES;
use crate::data::dataset::{CategoryColumn, RowLayout, TargetLayout};
use crate::data::error::{DataError, Result};
use crate::data::resident::{ResidentRows, Targets};
use crate::data::source::SourceSpec;
use crate::data::vocabulary::{MAX_VALUES, Vocabulary};

/// Rows read so far. A reader adds a row and then sets its features, targets and weight.
#[derive(Debug)]
pub(crate) struct TableRows {
    pub(crate) n_rows: usize,
    pub(crate) n_features: usize,
    /// `[n_rows, n_features]`; NaN where a value is missing.
    pub(crate) features: Vec<f32>,
    pub(crate) targets: TargetCells,
    pub(crate) weights: Option<Vec<f32>>,
    /// One per categorical column.
    pub(crate) vocabularies: Vec<Vocabulary>,
    /// Whether the vocabularies are final, so that other values are unknown.
    is_closed: bool,
    /// Whether missing values are accepted.
    pub(crate) may_miss: bool,
}

/// Targets read so far.
#[derive(Debug)]
pub(crate) enum TargetCells {
    /// Class indices, below `classes` if it is known.
    Classes { labels: Vec<i64>, classes: Option<usize> },
    /// `n_targets` values per row.
    Values { values: Vec<f32>, n_targets: usize, is_binary: bool },
}

impl TableRows {
    pub(crate) fn new(plan: &ColumnPlan, spec: &SourceSpec<'_>) -> Self {
        let known = spec.features.map(|known| known.vocabularies);
        let vocabulary = |name: &String| {
            let same = |vocabulary: &&Vocabulary| vocabulary.name() == name;
            known
                .and_then(|all| all.iter().find(same).cloned())
                .unwrap_or_else(|| Vocabulary::new(name.clone(), Vec::new()))
        };
        let n_targets = spec.data.target.len();
        TableRows {
            n_rows: 0,
            n_features: plan.features.len(),
            features: Vec::new(),
            targets: match spec.data.task {
                Task::Classification => TargetCells::Classes { labels: Vec::new(), classes: spec.classes },
                task => {
                    TargetCells::Values { values: Vec::new(), n_targets, is_binary: task == Task::Multilabel }
                }
            },
            weights: spec.data.weight.as_ref().map(|_| Vec::new()),
            vocabularies: plan.categorical.iter().map(vocabulary).collect(),
            is_closed: known.is_some(),
            may_miss: spec.may_miss(),
        }
    }

    /// Adds a row whose values are still to be set and returns its number.
    pub(crate) fn begin_row(&mut self) -> usize {
        self.features.resize(self.features.len() + self.n_features, 0.0);
        match &mut self.targets {
            TargetCells::Classes { labels, .. } => labels.push(0),
            TargetCells::Values { values, n_targets, .. } => values.resize(values.len() + *n_targets, 0.0),
        }
        self.weights.iter_mut().for_each(|weights| weights.push(1.0));
        self.n_rows += 1;
        self.n_rows - 1
    }

    /// Sets a feature of row `row`.
    #[inline(always)]
    pub(crate) fn set_feature(&mut self, row: usize, feature: usize, value: f32) {
        self.features[row * self.n_features + feature] = value;
    }

    /// Sets a feature of row `row` that f32 may not hold exactly.
    pub(crate) fn set_feature_f64(&mut self, row: usize, feature: usize, value: f64) {
        self.set_feature(row, feature, value as f32);
    }

    /// Removes the rows from `first` on.
    pub(crate) fn drop_rows_from(&mut self, first: usize) {
        self.n_rows = first;
        self.features.truncate(first * self.n_features);
        match &mut self.targets {
            TargetCells::Classes { labels, .. } => labels.truncate(first),
            TargetCells::Values { values, n_targets, .. } => values.truncate(first * *n_targets),
        }
        self.weights.iter_mut().for_each(|weights| weights.truncate(first));
    }

    /// Adds rows whose values are still to be set and returns the number of the first.
    #[cfg(feature = "parquet")]
    pub(crate) fn add_rows(&mut self, n: usize) -> usize {
        self.features.resize(self.features.len() + n * self.n_features, 0.0);
        match &mut self.targets {
            TargetCells::Classes { labels, .. } => labels.resize(labels.len() + n, 0),
            TargetCells::Values { values, n_targets, .. } => {
                values.resize(values.len() + n * *n_targets, 0.0)
            }
        }
        self.weights.iter_mut().for_each(|weights| weights.resize(weights.len() + n, 1.0));
        self.n_rows += n;
        self.n_rows - n
    }

    /// Reserves memory for exactly `n` more rows.
    #[cfg(feature = "parquet")]
    pub(crate) fn reserve(&mut self, n: usize) {
        self.features.reserve_exact(n * self.n_features);
        match &mut self.targets {
            TargetCells::Classes { labels, .. } => labels.reserve_exact(n),
            TargetCells::Values { values, n_targets, .. } => values.reserve_exact(n * *n_targets),
        }
        self.weights.iter_mut().for_each(|weights| weights.reserve_exact(n));
    }

    /// The number of a category's value; a new value is added unless the vocabularies are final.
    pub(crate) fn code(&mut self, index: usize, value: &str) -> u32 {
        let vocabulary = &mut self.vocabularies[index];
        if self.is_closed { vocabulary.code(value) } else { vocabulary.add(value) }
    }

    /// A vocabulary with too many values.
    pub(crate) fn huge_vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabularies.iter().find(|vocabulary| vocabulary.values().len() > MAX_VALUES)
    }

    /// Sets target `index` of row `row`.
    pub(crate) fn set_target(
        &mut self,
        row: usize,
        index: usize,
        cell: TargetCell,
    ) -> Result<(), CellProblem> {
        match (&mut self.targets, cell) {
            (TargetCells::Classes { labels, classes }, TargetCell::Label(label)) => {
                check_label(label, *classes)?;
                labels[row] = label;
            }
            (TargetCells::Values { values, n_targets, is_binary }, TargetCell::Value(value)) => {
                if *is_binary && value != 0.0 && value != 1.0 {
                    return Err(CellProblem::NotBinary { text: value.to_string() });
                }
                values[row * *n_targets + index] = value;
            }
            (TargetCells::Classes { .. }, TargetCell::Value(_))
            | (TargetCells::Values { .. }, TargetCell::Label(_)) => {
                unreachable!("readers parse targets by the kind of `targets`")
            }
        }
        Ok(())
    }

    /// Bytes of memory in use.
    pub(crate) fn size_bytes(&self) -> u64 {
        let targets = match &self.targets {
            TargetCells::Classes { labels, .. } => labels.len() * 8,
            TargetCells::Values { values, .. } => values.len() * 4,
        };
        let weights = self.weights.as_ref().map_or(0, |weights| weights.len() * 4);
        (self.features.len() * 4 + targets + weights) as u64
    }

    /// Removes all rows but keeps the vocabularies.
    pub(crate) fn clear(&mut self) {
        self.n_rows = 0;
        self.features.clear();
        match &mut self.targets {
            TargetCells::Classes { labels, .. } => labels.clear(),
            TargetCells::Values { values, .. } => values.clear(),
        }
        self.weights.iter_mut().for_each(Vec::clear);
    }

    /// The rows as a dataset.
    ///
    /// # Errors
    /// [`CsvError::SingleClass`] for labels that are all 0.
    pub(crate) fn finish(
        mut self,
        plan: &ColumnPlan,
        path: &Path,
        spec: &SourceSpec<'_>,
    ) -> Result<ResidentRows> {
        self.sort_vocabularies(plan);
        let categories = self.vocabularies.into_iter().map(|vocabulary| {
            let column = plan.features.iter().position(|name| name == vocabulary.name());
            CategoryColumn { column: column.expect("a categorical column is a feature"), vocabulary }
        });
        let mut layout = RowLayout::new(plan.features.clone(), TargetLayout::Classes { n_classes: 0 });
        layout.categories = categories.collect();
        layout.has_missing = self.may_miss;
        layout.has_weights = self.weights.is_some();
        layout.left_out.clone_from(&plan.left_out);
        let targets = match self.targets {
            TargetCells::Classes { labels, classes } => {
                let largest = labels.iter().copied().max().unwrap_or(0);
                let n_classes = classes.unwrap_or(largest as usize + 1);
                if n_classes < 2 {
                    return Err(CsvError::SingleClass { path: path.to_owned(), n_rows: labels.len() }.into());
                }
                layout.targets = TargetLayout::Classes { n_classes };
                Targets::Labels(labels)
            }
            TargetCells::Values { values, .. } => {
                layout.targets = TargetLayout::Values { names: spec.data.target.clone() };
                Targets::Values(values)
            }
        };
        Ok(ResidentRows {
            features: self.features,
            targets,
            weights: self.weights,
            layout,
            source: spec.source.to_owned(),
        })
    }

    /// Numbers the values of categories in alphabetical order, so that the order of the rows does not matter.
    fn sort_vocabularies(&mut self, plan: &ColumnPlan) {
        if self.is_closed {
            return;
        }
        for vocabulary in &mut self.vocabularies {
            let column = plan.features.iter().position(|name| name == vocabulary.name());
            let column = column.expect("a categorical column is a feature");
            let codes = vocabulary.sort();
            for row in self.features.chunks_exact_mut(self.n_features) {
                row[column] = codes[row[column] as usize] as f32;
            }
        }
    }
}

/// The value of a target cell.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TargetCell {
    Label(i64),
    Value(f32),
}

fn check_label(label: i64, classes: Option<usize>) -> Result<(), CellProblem> {
    match classes {
        _ if label < 0 => Err(CellProblem::LabelNegative { label }),
        Some(classes) if label >= classes as i64 => Err(CellProblem::LabelOutOfRange { label, classes }),
        None if label >= MAX_GUESSED_CLASSES => Err(CellProblem::LabelHuge { label }),
        _ => Ok(()),
    }
}

/// The error for [`TableRows::huge_vocabulary`].
pub(crate) fn huge_vocabulary(path: &Path, column: &str) -> DataError {
    DataError::VocabularyHuge { path: path.to_owned(), column: column.to_owned(), limit: MAX_VALUES }
}
