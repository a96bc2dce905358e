//! Rows read from a table: features in f32, categories as numbers.

use std::path::Path;
use std::sync::Arc;

use ddp::config::Task;
use ddp::data::datasets::dataset::{RowLayout, TargetLayout};
use ddp::data::datasets::resident::{Targets, TensorDataset};
use ddp::data::error::{DataError, Result};
use ddp::data::labels::{MAX_CLASSES, TaskChoice};
use ddp::data::vocabulary::{CategoryColumn, MAX_VALUES, Vocabulary};
use ddp_kernels::cpu::heap::on_huge_pages;

use crate::error::target_error::TargetError;
use crate::formats::error::{CellProblem, ColumnError};
use crate::labels::label_classes::{Meaning, resolve};
use crate::labels::survey::LabelSurvey;
use crate::labels::task::decide_several;
use crate::source::{ClassLabels, SourceSpec};
use crate::table::columns::ColumnPlan;
use crate::table::exact_columns::ExactColumns;
use crate::table::exact_rows::ExactRows;
use crate::table::feature_kinds::FeatureKinds;
use crate::table::kept::KeptValues;
use crate::table::label_column::{Fraction, LabelCell, LabelColumn};
use crate::values::number::Exact;

/// Rows read so far. A reader adds a row and then sets its features, targets and weight.
#[derive(Debug)]
pub(crate) struct TableRows {
    pub(crate) n_rows: usize,
    pub(crate) n_features: usize,
    /// `[n_rows, n_features]`; NaN where a value is missing.
    pub(crate) features: Vec<f32>,
    /// Features whose digits f32 does not hold.
    pub(crate) exact: ExactColumns,
    pub(crate) targets: TargetCells,
    /// Targets that are values whose digits f32 does not hold.
    pub(crate) exact_targets: ExactColumns,
    pub(crate) weights: Option<Vec<f32>>,
    /// One per categorical column.
    pub(crate) vocabularies: Vec<Vocabulary>,
    /// Kinds of the features.
    pub(crate) kinds: FeatureKinds,
    /// Whether the vocabularies are final, so that other values are unknown.
    is_closed: bool,
    /// Whether missing values are accepted.
    pub(crate) may_miss: bool,
    /// Columns that are passed through.
    pub(crate) kept: Vec<KeptValues>,
    /// Rows with a value that can't be used, if they are skipped; a row may occur several times.
    pub(crate) bad_rows: Option<Vec<usize>>,
    /// Rows without a target, if they are left out; in any order, and a row may occur several times.
    pub(crate) without_target: Option<Vec<usize>>,
}

/// Targets read so far.
#[derive(Debug)]
pub(crate) enum TargetCells {
    /// The label of a row; also the values of a single target that decide on the task.
    Classes(LabelColumn),
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
        // A model's columns decide on the digits that it needs.
        let prunes = spec.features.is_none_or(|known| known.prunes);
        let to_predict = spec.to_predict;
        TableRows {
            n_rows: 0,
            n_features: plan.features.len(),
            features: Vec::new(),
            exact: ExactColumns::new(plan.features.len(), prunes),
            targets: match spec.data.task {
                _ if to_predict.is_some() => {
                    TargetCells::Values { values: Vec::new(), n_targets: 0, is_binary: false }
                }
                Task::Classification if n_targets == 1 => TargetCells::Classes(LabelColumn::new(spec)),
                task => {
                    TargetCells::Values { values: Vec::new(), n_targets, is_binary: task == Task::Multilabel }
                }
            },
            // As in training, so that an evaluation of the same rows gives the same figures.
            exact_targets: ExactColumns::new(n_targets, true),
            weights: spec.data.weight.as_ref().filter(|_| to_predict.is_none()).map(|_| Vec::new()),
            vocabularies: plan.categorical.iter().map(vocabulary).collect(),
            kinds: FeatureKinds::new(plan.features.len(), spec),
            is_closed: known.is_some(),
            may_miss: spec.may_miss(),
            kept: vec![KeptValues::default(); plan.kept.len()],
            bad_rows: to_predict.filter(|rows| rows.skips_bad_rows).map(|_| Vec::new()),
            without_target: spec.skips_missing_targets().then(Vec::new),
        }
    }

    /// Adds a row whose values are still to be set and returns its number.
    pub(crate) fn begin_row(&mut self) -> usize {
        self.add_rows(1)
    }

    /// Sets a feature of row `row`.
    #[inline(always)]
    pub(crate) fn set_feature(&mut self, row: usize, feature: usize, value: f32) {
        self.features[row * self.n_features + feature] = value;
    }

    /// Sets the exact value of a feature of the last row, whose f32 is set.
    #[inline]
    pub(crate) fn set_exact(&mut self, row: usize, feature: usize, value: Exact) {
        self.exact.set(feature, row, value, &self.features);
    }

    /// Marks a row with a value that can't be used; false if such a value is an error.
    pub(crate) fn mark_bad(&mut self, row: usize) -> bool {
        match &mut self.bad_rows {
            Some(rows) => rows.push(row),
            None => return false,
        }
        true
    }

    /// Marks a row without a target, or fails with `problem` if that is an error.
    pub(crate) fn skip_target(
        &mut self,
        row: usize,
        problem: impl FnOnce() -> CellProblem,
    ) -> Result<(), CellProblem> {
        match &mut self.without_target {
            Some(rows) => rows.push(row),
            None => return Err(problem()),
        }
        Ok(())
    }

    /// Takes the numbers of the rows without a target, in order.
    pub(crate) fn take_without_target(&mut self) -> Vec<usize> {
        let mut rows = self.without_target.as_mut().map(std::mem::take).unwrap_or_default();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Removes the rows from `first` on.
    pub(crate) fn drop_rows_from(&mut self, first: usize) {
        self.n_rows = first;
        self.features.truncate(first * self.n_features);
        self.exact.truncate(first);
        self.exact_targets.truncate(first);
        match &mut self.targets {
            TargetCells::Classes(labels) => labels.resize(first),
            TargetCells::Values { values, n_targets, .. } => values.truncate(first * *n_targets),
        }
        self.weights.iter_mut().for_each(|weights| weights.truncate(first));
        self.kept.iter_mut().for_each(|kept| kept.truncate(first));
        for rows in self.bad_rows.iter_mut().chain(&mut self.without_target) {
            rows.retain(|row| *row < first);
        }
    }

    /// Adds rows whose values are still to be set and returns the number of the first.
    pub(crate) fn add_rows(&mut self, n: usize) -> usize {
        let capacity = self.features.capacity();
        self.features.reserve(n * self.n_features);
        if self.features.capacity() != capacity {
            on_huge_pages(&self.features);
        }
        self.features.resize(self.features.len() + n * self.n_features, 0.0);
        match &mut self.targets {
            TargetCells::Classes(labels) => labels.resize(self.n_rows + n),
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
            TargetCells::Classes(labels) => labels.reserve(n),
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
        cell: TargetCell<'_>,
    ) -> Result<(), CellProblem> {
        match (&mut self.targets, cell) {
            (TargetCells::Classes(labels), TargetCell::Label(label)) => labels.set(row, label)?,
            (TargetCells::Values { values, n_targets, is_binary }, TargetCell::Value(value, exact)) => {
                if *is_binary && value != 0.0 && value != 1.0 {
                    return Err(CellProblem::NotBinary { text: value.to_string() });
                }
                values[row * *n_targets + index] = value;
                if let Some(exact) = exact {
                    self.exact_targets.set(index, row, exact, values);
                }
            }
            (TargetCells::Classes(_), TargetCell::Value(..))
            | (TargetCells::Values { .. }, TargetCell::Label(_)) => {
                unreachable!("readers parse targets by the kind of `targets`")
            }
        }
        Ok(())
    }

    /// Whether the first label with a fraction lacks its place.
    pub(crate) fn lacks_place(&self) -> bool {
        matches!(&self.targets, TargetCells::Classes(labels) if labels.lacks_place())
    }

    /// Sets the place of the first label with a fraction, which is in the last row.
    pub(crate) fn set_place(&mut self, place: impl FnOnce() -> String) {
        if let TargetCells::Classes(labels) = &mut self.targets {
            labels.set_place(place);
        }
    }

    /// Compares the kinds of the values in the rows of the file `path` from `first` on with those that are known.
    ///
    /// # Errors
    /// [`TableError::OtherKind`](crate::error::TableError::OtherKind)
    pub(crate) fn check_kinds(&mut self, plan: &ColumnPlan, first: usize, path: &Path) -> Result<()> {
        let (n_features, features) = (self.n_features, &self.features);
        if n_features == 0 {
            return Ok(());
        }
        let has_value =
            |feature: usize| (first..self.n_rows).any(|row| !features[row * n_features + feature].is_nan());
        self.kinds.check(&plan.features, path, has_value)
    }

    /// Checks that each column of text has one kind of values in the rows of the file `path` from `first` on.
    ///
    /// # Errors
    /// [`TableError::OtherKind`](crate::error::TableError::OtherKind)
    pub(crate) fn check_mixed(&mut self, plan: &ColumnPlan, first: usize, path: &Path) -> Result<()> {
        let (n_features, features) = (self.n_features, &self.features);
        let bad = self.bad_rows.as_deref().unwrap_or_default();
        let is_value = |row: usize, feature: usize| !features[row * n_features + feature].is_nan();
        let n_values = |feature: usize| {
            let rows = (first..self.n_rows).filter(|row| bad.binary_search(row).is_err());
            rows.filter(|row| is_value(*row, feature)).count()
        };
        self.kinds.check_mixed(&plan.features, path, n_values)
    }

    /// Further files must have the kinds of those so far, the first of which is `first`.
    pub(crate) fn expect_kinds(&mut self, first: &Path) {
        self.kinds.expect(first.display().to_string());
    }

    /// Bytes of memory in use.
    pub(crate) fn size_bytes(&self) -> u64 {
        let targets = match &self.targets {
            TargetCells::Classes(labels) => labels.size_bytes(),
            TargetCells::Values { values, .. } => values.len() * 4,
        };
        let weights = self.weights.as_ref().map_or(0, |weights| weights.len() * 4);
        let exact = self.exact.size_bytes() + self.exact_targets.size_bytes();
        (self.features.len() * 4 + exact + targets + weights) as u64
    }

    /// Calls `drop` with the exact features and targets, and their f32.
    pub(crate) fn drop_exact(&mut self, drop: impl Fn(&mut ExactColumns, &[f32])) {
        drop(&mut self.exact, &self.features);
        if let TargetCells::Values { values, .. } = &self.targets {
            drop(&mut self.exact_targets, values);
        }
    }

    /// Removes all rows but keeps the vocabularies.
    pub(crate) fn clear(&mut self) {
        self.n_rows = 0;
        self.features.clear();
        self.exact.truncate(0);
        self.exact_targets.truncate(0);
        match &mut self.targets {
            TargetCells::Classes(labels) => labels.clear(),
            TargetCells::Values { values, .. } => values.clear(),
        }
        self.weights.iter_mut().for_each(Vec::clear);
        self.kept.iter_mut().for_each(|kept| kept.truncate(0));
        self.bad_rows.iter_mut().chain(&mut self.without_target).for_each(Vec::clear);
    }

    /// The rows as a dataset, and the numbers of those without a target, whose targets mean nothing.
    ///
    /// # Errors
    /// See [`resolve`]; [`TargetError::LabelNotWhole`] for a number with a fraction among class labels, [`TargetError::NoTargets`].
    pub(crate) fn finish(
        mut self,
        plan: &ColumnPlan,
        path: &Path,
        spec: &SourceSpec<'_>,
    ) -> Result<(ExactRows, Vec<usize>)> {
        let without_target = self.take_without_target();
        check_targets(self.n_rows, &without_target, spec)?;
        self.exact.finish(&self.features);
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
        layout.dates = plan.dates();
        self.kinds.note(plan, spec.source);
        layout.kinds = self.kinds.found();
        let targets = match self.targets {
            TargetCells::Classes(labels) => {
                layout.left_out.extend(labels.note(&spec.data.target[0]));
                single_target(labels, &without_target, &mut layout, &mut self.exact_targets, path, spec)?
            }
            TargetCells::Values { values, .. } => {
                layout.targets = TargetLayout::Values { names: spec.data.target.clone() };
                layout.task_choice = several_targets(&values, spec);
                Targets::Values(values)
            }
        };
        if let Targets::Values(values) = &targets {
            self.exact_targets.finish(values);
        }
        let source = spec.source.to_owned();
        let rows = TensorDataset { features: self.features, targets, weights: self.weights, layout, source };
        let (exact, exact_targets) = (self.exact, self.exact_targets);
        Ok((ExactRows { rows, exact, exact_targets }, without_target))
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
pub(crate) enum TargetCell<'a> {
    Label(LabelCell<'a>),
    /// A number as f32, and its exact value unless f32 holds it or the column is not kept exactly.
    Value(f32, Option<Exact>),
}

/// The rows of one target: class indices, or the values if they decide so; completes `layout`.
fn single_target(
    mut labels: LabelColumn,
    without_target: &[usize],
    layout: &mut RowLayout,
    exact: &mut ExactColumns,
    path: &Path,
    spec: &SourceSpec<'_>,
) -> Result<Targets> {
    let meaning = match spec.vocabulary() {
        Some(vocabulary) => Meaning { vocabulary: Some(vocabulary), choice: None },
        None => {
            let too_many = |_| {
                DataError::from(TargetError::TooManyClasses {
                    source_name: spec.source.to_owned(),
                    limit: MAX_CLASSES,
                })
            };
            labels.settle().map_err(too_many)?;
            labels.fill(without_target);
            let mut survey = LabelSurvey::default();
            labels.survey(&mut survey, without_target);
            check_fractions(labels.fraction(), &survey, path, spec)?;
            meaning(&survey, spec)?
        }
    };
    let collected = labels.into_collected();
    let targets = match &meaning.vocabulary {
        Some(vocabulary) => Targets::Labels(collected.into_classes(vocabulary)),
        None => {
            let values = collected.into_values(exact);
            check_finite(&values, path, spec)?;
            Targets::Values(values)
        }
    };
    meaning.complete(layout, &spec.data.target);
    Ok(targets)
}

/// Fails if no row has a target.
pub(crate) fn check_targets(n_rows: usize, without_target: &[usize], spec: &SourceSpec<'_>) -> Result<()> {
    match without_target.len() {
        0 => Ok(()),
        n if n < n_rows => Ok(()),
        _ => {
            let (source_name, targets) = (spec.source.to_owned(), spec.data.target.join(", "));
            Err(DataError::from(TargetError::NoTargets { source_name, targets }))
        }
    }
}

/// Values that decided to be quantities must be finite in f32.
fn check_finite(values: &[f32], path: &Path, spec: &SourceSpec<'_>) -> Result<()> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(row) => Err(DataError::from(TargetError::TargetNotFinite {
            place: format!("data file `{}`, row {row}", path.display()),
            column: format!("column \"{}\"", spec.data.target[0]),
            value: f64::from(values[row]),
        })),
        None => Ok(()),
    }
}

/// The meaning of labels with this survey.
///
/// # Errors
/// See [`resolve`].
pub(crate) fn meaning(survey: &LabelSurvey, spec: &SourceSpec<'_>) -> Result<Meaning> {
    match spec.classes {
        ClassLabels::AsStored => Ok(as_stored(survey)),
        _ => resolve(survey, &spec.data.target, spec),
    }
}

/// The meaning of labels that are only looked at: numbers with fractions, and integers without end, are values.
fn as_stored(survey: &LabelSurvey) -> Meaning {
    let facts = survey.facts();
    let are_values = facts.has_fractions && !facts.has_text;
    let vocabulary = survey.vocabulary().filter(|_| !are_values);
    Meaning { vocabulary: vocabulary.map(Arc::new), choice: None }
}

/// A number with a fraction is not a class label, unless there is text among the labels.
pub(crate) fn check_fractions(
    first: Option<&Fraction>,
    survey: &LabelSurvey,
    path: &Path,
    spec: &SourceSpec<'_>,
) -> Result<()> {
    let are_classes = !spec.data.auto_task && !matches!(spec.classes, ClassLabels::AsStored);
    match first {
        Some(fraction) if are_classes && survey.has_fractions() => {
            Err(DataError::from(TargetError::LabelNotWhole {
                place: fraction.place.clone().unwrap_or_else(|| format!("data file `{}`", path.display())),
                label: fraction.value,
            }))
        }
        _ => Ok(()),
    }
}

/// The decision on the task of several targets, if their values decide on it.
fn several_targets(values: &[f32], spec: &SourceSpec<'_>) -> Option<TaskChoice> {
    let names = &spec.data.target;
    spec.data.auto_task.then(|| decide_several(names, values.iter().all(|value| is_binary(*value))))
}

/// Whether the value may be one of a multilabel target.
pub(crate) fn is_binary(value: f32) -> bool {
    value == 0.0 || value == 1.0
}

/// The error for [`TableRows::huge_vocabulary`].
pub(crate) fn huge_vocabulary(path: &Path, column: &str) -> DataError {
    DataError::from(ColumnError::VocabularyHuge {
        path: path.to_owned(),
        column: column.to_owned(),
        limit: MAX_VALUES,
    })
}
