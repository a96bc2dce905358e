//! Rows with targets of several kinds, from a table that was read with all targets as features.
//!
//! The readers of tables know one kind of targets. Labels are read like categories, quantities like numbers, and this wrapper
//! takes their columns out of the features.

use std::sync::Arc;

use ddp::config::{DataConfig, HeadConfig, Missing, MissingTarget, Task};
use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::{Dataset, RowLayout, TargetLayout};
use ddp::data::datasets::wrapper::{Changes, DatasetWrapper};
use ddp::data::error::{DataError, Result};
use ddp::data::labels::head_targets::HeadTargets;
use ddp::data::labels::{LabelVocabulary, MAX_CLASSES};
use ddp::data::vocabulary::{CategoryColumn, Vocabulary};
use ddp_kernels::{DType, Device, Tensor};

use crate::error::TableError;
use crate::error::target_error::TargetError;
use crate::formats::error::{CellProblem, CsvError, RowsError};
use crate::labels::survey::LabelSurvey;
use crate::source::{ClassLabels, KnownFeatures, SourceSpec};
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Opens the rows of `spec`, whose config has heads; `open` reads a table.
///
/// # Errors
/// Errors of `open`; [`TargetError::SingleClass`], [`TargetError::TooManyClasses`]. Gathering a row without a target fails with
/// [`TargetError::NoTargetOfHead`], unless `data.missing_target` is `skip`: its place then holds NaN.
pub(crate) fn open(
    spec: &SourceSpec<'_>,
    open: impl FnOnce(&SourceSpec<'_>) -> Result<Arc<dyn Dataset>>,
) -> Result<Arc<dyn Dataset>> {
    let data = as_features(spec.data);
    let known = match spec.classes {
        ClassLabels::Heads(heads) => Some(heads),
        _ => None,
    };
    let mut names = Vec::new();
    let mut vocabularies = Vec::new();
    let mut kinds = Vec::new();
    let features = spec.features.map(|features| {
        names.extend(features.names.iter().chain(&spec.data.target).cloned());
        vocabularies.extend(features.vocabularies.iter().cloned());
        vocabularies.extend(known.unwrap_or_default().iter().filter_map(values_of));
        kinds.extend(features.kinds);
        // Targets have no kinds.
        kinds.resize(if kinds.is_empty() { 0 } else { names.len() }, None);
        KnownFeatures { names: &names, vocabularies: &vocabularies, kinds: &kinds, ..features }
    });
    let table = SourceSpec { data: &data, classes: ClassLabels::Discover, features, ..*spec };
    let rows = open(&table).map_err(|error| naming_heads(error, &spec.data.target))?;
    HeadRows::new(rows, spec, known).map(|rows| Arc::new(rows) as Arc<dyn Dataset>)
}

/// The error with what helps a target, if it is of one.
fn naming_heads(mut error: DataError, targets: &[String]) -> DataError {
    match error.source_error_mut() {
        Some(
            TableError::Cell { column, problem, .. }
            | TableError::Rows(RowsError::Csv(CsvError::Cell { column, problem, .. })),
        ) if targets.contains(column) => {
            *problem = match std::mem::replace(problem, CellProblem::Empty) {
                CellProblem::Empty | CellProblem::Missing { .. } => CellProblem::TargetOfHeadMissing,
                CellProblem::NotANumber { text, .. } => CellProblem::TargetOfHeadNotANumber { text },
                other => other,
            };
        }
        Some(TableError::MissingValue { column, hint, .. })
            if targets.iter().any(|target| *column == format!("column \"{target}\"")) =>
        {
            *hint = "set `data.missing_target` to \"skip\" to leave such rows out of the loss of this head, or fill in the value";
        }
        _ => {}
    }
    error
}

/// The config with all targets as features: labels as categories, other targets as numbers.
fn as_features(data: &DataConfig) -> DataConfig {
    let has_classes = |head: &&HeadConfig| head.task == Task::Classification;
    let labels = data.heads.iter().filter(has_classes).flat_map(|head| head.target.iter().cloned());
    let mut inner = DataConfig {
        target: Vec::new(),
        task: Task::Regression,
        categorical: data.categorical.iter().cloned().chain(labels).collect(),
        missing_target: MissingTarget::Error,
        ..data.clone()
    };
    if data.missing_target == MissingTarget::Skip && data.missing == Missing::Error {
        // Missing features are refused here.
        inner.missing = Missing::Zero;
    }
    inner
}

/// The labels of a head as the values of a category.
fn values_of(head: &HeadTargets) -> Option<Vocabulary> {
    let labels = head.labels.as_ref()?;
    Some(Vocabulary::new(head.columns[0].clone(), labels.labels().map(|label| label.to_string()).collect()))
}

/// Rows of which some features are targets.
#[derive(Debug)]
struct HeadRows {
    of: Arc<dyn Dataset>,
    layout: RowLayout,
    /// Columns of `of` that stay features.
    features: Vec<usize>,
    /// Columns of `of` that are targets, over all heads.
    targets: Vec<Target>,
    /// Whether a row may lack a target.
    may_lack_targets: bool,
}

/// A target among the columns of the table.
#[derive(Debug)]
struct Target {
    column: usize,
    name: String,
    /// Class by the number of a category, NaN for none; `None` for quantities.
    classes: Option<Vec<f32>>,
    is_binary: bool,
}

impl HeadRows {
    /// - `known`: the heads of a model or of other rows; `None` to find the classes in these rows
    fn new(of: Arc<dyn Dataset>, spec: &SourceSpec<'_>, known: Option<&[HeadTargets]>) -> Result<Self> {
        let inner = of.layout();
        let column_of = |name: &String| {
            let column = inner.features.iter().position(|column| column == name);
            column.ok_or_else(|| {
                let (source_name, column) = (spec.source.to_owned(), name.clone());
                DataError::from(TargetError::HeadWithoutColumn { source_name, column })
            })
        };
        let (mut heads, mut targets) = (Vec::new(), Vec::new());
        for (index, config) in spec.data.heads.iter().enumerate() {
            let mut labels = None;
            for name in &config.target {
                let column = column_of(name)?;
                let category = inner.categories.iter().find(|category| category.column == column);
                let mut classes = None;
                if let Some(CategoryColumn { vocabulary, .. }) = category {
                    let found = match known.and_then(|heads| heads.get(index)?.labels.clone()) {
                        Some(labels) => labels,
                        None => Arc::new(labels_of(vocabulary, spec, of.len())?),
                    };
                    classes = Some(classes_of(vocabulary, &found));
                    labels = Some(found);
                }
                let is_binary = config.task == Task::Multilabel;
                targets.push(Target { column, name: name.clone(), classes, is_binary });
            }
            let HeadConfig { name, task, target } = config.clone();
            heads.push(HeadTargets { name, task, columns: target, labels });
        }
        let is_target = |column: &usize| targets.iter().any(|target| target.column == *column);
        let features: Vec<usize> = (0..inner.features.len()).filter(|column| !is_target(column)).collect();
        let place = |column: usize| features.iter().position(|of| *of == column);
        let categories = inner.categories.iter().filter_map(|CategoryColumn { column, vocabulary }| {
            Some(CategoryColumn { column: place(*column)?, vocabulary: vocabulary.clone() })
        });
        let layout = RowLayout {
            features: features.iter().map(|column| inner.features[*column].clone()).collect(),
            targets: TargetLayout::Heads { heads: heads.into() },
            categories: categories.collect(),
            kinds: features.iter().filter_map(|column| inner.kinds.get(*column).copied()).collect(),
            dates: inner.dates.iter().filter_map(|column| place(*column)).collect(),
            has_missing: spec.may_miss(),
            ..inner.clone()
        };
        if features.is_empty() {
            let source_name = spec.source.to_owned();
            return Err(DataError::from(TargetError::OnlyTargets { source_name }));
        }
        let may_lack_targets = spec.skips_missing_targets();
        Ok(HeadRows { of, layout, features, targets, may_lack_targets })
    }

    fn place(&self, row: usize) -> String {
        format!("{}, row {}", self.of.source(), self.of.source_row(row))
    }

    /// Moves gathered columns to features and targets.
    fn divide(
        &self,
        rows: &[usize],
        columns: &[f32],
        x: Option<&mut [f32]>,
        targets: &mut [f32],
    ) -> Result<()> {
        let n_columns = self.of.layout().n_features();
        let n_targets = self.targets.len();
        for (row, (from, to)) in
            columns.chunks_exact(n_columns).zip(targets.chunks_exact_mut(n_targets)).enumerate()
        {
            for (target, to) in self.targets.iter().zip(to) {
                let value = from[target.column];
                *to = match &target.classes {
                    Some(classes) => class_of(classes, value),
                    None => value,
                };
                if to.is_nan() && !self.may_lack_targets {
                    let (place, column) = (self.place(rows[row]), target.name.clone());
                    return Err(DataError::from(TargetError::NoTargetOfHead { place, column }));
                }
                if target.is_binary && !to.is_nan() && *to != 0.0 && *to != 1.0 {
                    let (place, column) = (self.place(rows[row]), format!("target \"{}\"", target.name));
                    let value = f64::from(*to);
                    return Err(DataError::from(TargetError::NotBinary { place, column, value }));
                }
            }
        }
        let Some(x) = x else { return Ok(()) };
        let n_features = self.features.len();
        for (row, (from, to)) in
            columns.chunks_exact(n_columns).zip(x.chunks_exact_mut(n_features)).enumerate()
        {
            for (&column, to) in self.features.iter().zip(to) {
                *to = from[column];
                if to.is_nan() && !self.layout.has_missing {
                    let column = format!("column \"{}\"", self.of.layout().features[column]);
                    let (place, value) = (self.place(rows[row]), f64::NAN);
                    return Err(DataError::from(TableError::NotFinite { place, column, value }));
                }
            }
        }
        Ok(())
    }
}

/// The labels that a category's values are, without marks of missing ones: the rule of other targets.
fn labels_of(vocabulary: &Vocabulary, spec: &SourceSpec<'_>, n_rows: usize) -> Result<LabelVocabulary> {
    let source_name = || spec.source.to_owned();
    let notation = Notation::new(DecimalMark::Point, &spec.data.missing_values);
    let mut survey = LabelSurvey::default();
    let labels = vocabulary.values().iter().filter(|value| !notation.is_missing_label(value));
    labels.for_each(|value| survey.add_cells(value, 1));
    let labels = survey.vocabulary().ok_or_else(|| {
        DataError::from(TargetError::TooManyClasses { source_name: source_name(), limit: MAX_CLASSES })
    })?;
    if labels.len() < 2 {
        let label = labels.labels().next().map_or(String::new(), |label| label.to_string());
        return Err(DataError::from(TargetError::SingleClass { source_name: source_name(), n_rows, label }));
    }
    Ok(labels)
}

/// Class of each code of a category.
fn classes_of(vocabulary: &Vocabulary, labels: &LabelVocabulary) -> Vec<f32> {
    let class = |value: &String| labels.class_of_text(value).map_or(f32::NAN, |class| class as f32);
    // Code 0 is of values that are missing or unknown.
    std::iter::once(f32::NAN).chain(vocabulary.values().iter().map(class)).collect()
}

impl DatasetWrapper for HeadRows {
    const CHANGES: Changes = Changes::FeaturesAndTargets;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        let BatchMut { x, targets, weights } = out;
        let mut columns =
            Tensor::zeros(&[rows.len(), self.of.layout().n_features()], DType::F32, Device::Cpu)?;
        let mut none = Tensor::zeros(&[rows.len(), 0], DType::F32, Device::Cpu)?;
        self.of.gather(rows, BatchMut { x: columns.view_mut(), targets: none.view_mut(), weights })?;
        let columns = columns.view().as_slice::<f32>(OP, "columns")?;
        self.divide(rows, columns, Some(x.into_slice(OP, "x")?), targets.into_slice(OP, "targets")?)
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        self.doubles_of(rows, origin, &self.features, out)
    }

    fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        let columns: Vec<usize> = self.targets.iter().map(|target| target.column).collect();
        let is_code = |target: &Target| target.classes.is_some();
        // Codes become classes before anything is subtracted.
        let of_columns: Vec<f64> = self
            .targets
            .iter()
            .zip(origin)
            .map(|(target, &origin)| if is_code(target) { 0.0 } else { origin })
            .collect();
        let is_wide = self.doubles_of(rows, &of_columns, &columns, out)?;
        for row in out.chunks_exact_mut(columns.len()) {
            for ((value, target), origin) in row.iter_mut().zip(&self.targets).zip(origin) {
                if let Some(classes) = &target.classes {
                    *value = f64::from(class_of(classes, *value as f32)) - origin;
                }
            }
        }
        Ok(is_wide)
    }
}

impl HeadRows {
    /// Exact values of some columns of the table minus `origin`, `[rows, columns]`; see [`Dataset::gather_doubles`].
    fn doubles_of(&self, rows: &[usize], origin: &[f64], columns: &[usize], out: &mut [f64]) -> Result<bool> {
        let n_columns = self.of.layout().n_features();
        let mut of_all = vec![0.0; n_columns];
        columns.iter().zip(origin).for_each(|(&column, &origin)| of_all[column] = origin);
        let mut all = vec![0.0; rows.len() * n_columns];
        let is_wide = self.of.gather_doubles(rows, &of_all, &mut all)?;
        for (from, to) in all.chunks_exact(n_columns).zip(out.chunks_exact_mut(columns.len())) {
            columns.iter().zip(to).for_each(|(&column, to)| *to = from[column]);
        }
        Ok(is_wide)
    }
}

/// The class of a category's code, NaN for that of no label.
fn class_of(classes: &[f32], code: f32) -> f32 {
    classes.get(code as usize).copied().unwrap_or(f32::NAN)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ddp::config::Config;

    use super::*;
    use crate::testing::gathered;

    #[test]
    fn marks_of_missing_labels_are_no_classes() {
        let folder = tempfile::tempdir().unwrap();
        let (rows, config) = (folder.path().join("rows.csv"), folder.path().join("run.toml"));
        let heads = ["kind\"\ntask = \"classification", "size\"\ntask = \"regression"];
        let heads = heads.map(|head| format!("[[heads]]\nname = \"{head}\"\n")).concat();
        fs::write(
            &config,
            format!("[data]\ntrain = {:?}\neval = \"none\"\n{heads}", rows.display().to_string()),
        )
        .unwrap();
        for mark in ["", "NA", "NaN", "null", "?", "none of them"] {
            fs::write(&rows, format!("x,kind,size\n1,fig,2.5\n2,{mark},1.5\n3,pear,0.5\n")).unwrap();
            let open = |missing: &str| {
                let sets = ["data.missing_values=[\"none of them\", \"\", \"NA\", \"NaN\", \"null\", \"?\"]"];
                let sets = sets.iter().filter(|_| mark == "none of them").map(|set| (*set).to_owned());
                let sets: Vec<String> = sets.chain([format!("data.missing_target={missing}")]).collect();
                SourceSpec::train(&Config::load(Some(&config), &sets).unwrap().data).open().unwrap()
            };
            let rows = open("skip");
            let TargetLayout::Heads { heads } = &rows.layout().targets else { panic!("heads") };
            let labels = heads[0].labels.as_ref().unwrap().labels().map(|label| label.to_string());
            assert_eq!(labels.collect::<Vec<_>>(), ["fig", "pear"], "{mark}");
            let (_, targets, _) = gathered(&*rows, &[0, 1, 2]);
            assert!(targets[2].is_nan() && targets[3] == 1.5, "{mark}: {targets:?}");
            assert_eq!([targets[0], targets[4]], [0.0, 1.0], "{mark}");
            let rows = open("error");
            let mut targets = Tensor::zeros(&[1, 2], DType::F32, Device::Cpu).unwrap();
            let error = rows.gather_targets(&[1], targets.view_mut()).unwrap_err().to_string();
            assert!(error.contains("kind"), "{mark}: {error}");
        }
    }
}
