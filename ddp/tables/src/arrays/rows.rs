//! A [`Dataset`] of arrays of features, targets and weights.

use std::ops::Range;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use ddp::config::Task;
use ddp::data::datasets::batch::{Batch, BatchMut};
use ddp::data::datasets::dataset::{Dataset, RowLayout, TargetLayout};
use ddp::data::error::{DataError, Result};
use ddp::data::labels::{Label, bool_text};
use ddp::data::spelling::whole;
use ddp::storage::fingerprint::Fingerprint;
use ddp_kernels::cpu::row_copy::{FloatBits, RowCheck};
use ddp_kernels::{DType, TensorMut, TensorRef};

use crate::arrays::targets::target_layout;
use crate::checks;
use crate::checks::Columns;
use crate::error::target_error::TargetError;
use crate::formats::arrays::array::RawArray;
use crate::labels::label_classes::resolve;
use crate::labels::survey::LabelSurvey;
use crate::source::SourceSpec;
use crate::values::element::RawType;

/// Rows whose content is part of the fingerprint.
const N_SAMPLES: usize = 1024;
/// Rows per chunk of a scan of labels.
const SCAN_ROWS: usize = 1 << 16;

/// Interval between two checks of the files' lengths.
const LENGTH_CHECK_EVERY: Duration = Duration::from_millis(200);

/// Rows in files.
#[derive(Debug)]
pub struct RawRows {
    /// Features, `[rows, features]`.
    pub features: RawArray,
    /// Labels, `[rows]`, or target values, `[rows, targets]`.
    pub targets: RawArray,
    /// Weights, `[rows]`.
    pub weights: Option<RawArray>,
    pub(crate) task: Task,
    /// Names of the targets, if the file holds them.
    pub target_names: Option<Vec<String>>,
    /// Labels of the class numbers, if the file holds them.
    pub labels: Option<Vec<String>>,
    /// Classes of these labels; found with the first row.
    pub(crate) label_classes: OnceLock<Vec<i64>>,
    /// Whether a label that is not a class is class -1 rather than an error.
    pub(crate) skips_unknown: bool,
    pub(crate) layout: RowLayout,
    pub(crate) source: String,
    pub(crate) length_check: LengthCheck,
}

/// Time of the last check of the files' lengths.
#[derive(Debug)]
pub(crate) struct LengthCheck(Mutex<Instant>);

impl Default for LengthCheck {
    fn default() -> Self {
        LengthCheck(Mutex::new(Instant::now()))
    }
}

impl LengthCheck {
    /// Whether a check is due; the caller that gets `true` makes it.
    fn is_due(&self) -> bool {
        let Ok(mut last) = self.0.try_lock() else { return false };
        let is_due = last.elapsed() >= LENGTH_CHECK_EVERY;
        if is_due {
            *last = Instant::now();
        }
        is_due
    }
}

impl RawRows {
    /// Fails if a file was truncated, or a page of one was missing while rows were read.
    pub fn check_files(&self) -> Result<()> {
        let arrays = [Some(&self.features), Some(&self.targets), self.weights.as_ref()];
        arrays.into_iter().flatten().try_for_each(RawArray::check)?;
        self.check_lengths()
    }

    /// Fails if a file was truncated. Checked at intervals, because it needs a system call.
    fn check_lengths(&self) -> Result<()> {
        if !self.length_check.is_due() {
            return Ok(());
        }
        let arrays = [Some(&self.features), Some(&self.targets), self.weights.as_ref()];
        Ok(arrays.into_iter().flatten().try_for_each(RawArray::check_length)?)
    }

    /// Whether the values of the targets decide on classes or task.
    pub(crate) fn is_open(&self, spec: &SourceSpec<'_>) -> bool {
        spec.data.auto_task || self.layout.targets == (TargetLayout::Classes { n_classes: 0 })
    }

    /// The labels of a range of rows.
    ///
    /// # Errors
    /// [`TargetError::LabelNotWhole`] for a fraction among class labels, [`TargetError::TargetNotFinite`],
    /// [`TargetError::LabelMissing`].
    pub(crate) fn survey(&self, rows: Range<usize>, spec: &SourceSpec<'_>) -> Result<LabelSurvey> {
        let mut survey = LabelSurvey::default();
        let width = self.targets.n_values().max(1);
        let chunk_rows = (SCAN_ROWS / width).max(1);
        let (mut numbers, mut labels, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for start in rows.clone().step_by(chunk_rows) {
            numbers.clear();
            numbers.extend(start..(start + chunk_rows).min(rows.end));
            let place = |row: usize| self.targets.place(numbers[row]);
            match self.targets.raw {
                raw if raw.is_text() => {
                    let mut empty = None;
                    self.targets.rows_to_text(&numbers, |row, text| match text.trim() {
                        "" => drop(empty.get_or_insert(row)),
                        text => survey.add_cells(text, 1),
                    })?;
                    if let Some(row) = empty {
                        return Err(DataError::from(TargetError::LabelMissing { place: place(row) }));
                    }
                }
                raw if raw.is_integer() => {
                    labels.resize(numbers.len() * width, 0);
                    self.targets.rows_to_i64(&numbers, &mut labels)?;
                    match raw {
                        RawType::Bool if width == 1 => {
                            let n_true = labels.iter().filter(|label| **label != 0).count() as u64;
                            for (value, n) in [(false, labels.len() as u64 - n_true), (true, n_true)] {
                                if n > 0 {
                                    survey.add_cells(bool_text(value), n);
                                }
                            }
                        }
                        _ => match self.labels.as_ref().filter(|_| width == 1) {
                            Some(names) => add_named(&mut survey, &labels, names),
                            None => survey.add_integers(&labels),
                        },
                    }
                }
                _ => {
                    values.resize(numbers.len() * width, 0.0);
                    self.targets.rows_to_f64(&numbers, &mut values)?;
                    let is_class = !spec.data.auto_task;
                    if let Some(at) = values
                        .iter()
                        .position(|value: &f64| !value.is_finite() || (is_class && whole(*value).is_none()))
                    {
                        let (place, value) = (place(at / width), values[at]);
                        return Err(if is_class {
                            DataError::from(TargetError::LabelNotWhole { place, label: value })
                        } else {
                            let column = format!("target {}", at % width);
                            DataError::from(TargetError::TargetNotFinite { place, column, value })
                        });
                    }
                    survey.add_numbers(&values);
                }
            }
        }
        Ok(survey)
    }

    /// Sets the classes or the task that the survey of all rows gives.
    ///
    /// # Errors
    /// See [`resolve`]; [`TargetError::LabelShape`] for targets that the task does not take.
    pub(crate) fn resolve(&mut self, survey: &LabelSurvey, spec: &SourceSpec<'_>) -> Result<()> {
        let names = match &self.layout.targets {
            TargetLayout::Classes { .. } => spec.data.target[..1].to_vec(),
            targets => targets.column_names(),
        };
        let meaning = resolve(survey, &names, spec)?;
        self.task = meaning.choice.as_ref().map_or(self.task, |choice| choice.task);
        let targets = target_layout(&self.targets, self.target_names.as_deref(), self.task, spec)?;
        meaning.complete(&mut self.layout, &targets.column_names());
        Ok(())
    }

    /// Classes of the labels that the file's numbers stand for; `None` if the numbers are classes, or labels themselves.
    fn label_classes(&self) -> Option<&[i64]> {
        let vocabulary = self.layout.labels.as_deref().filter(|vocabulary| !vocabulary.is_numbers())?;
        let names = self.labels.as_ref()?;
        let class = |name: &String| vocabulary.class_of_text(name).map_or(-1, |class| class as i64);
        Some(self.label_classes.get_or_init(|| names.iter().map(class).collect()))
    }

    /// Reads the labels of the file and replaces them by class indices.
    fn labels(&self, rows: &[usize], out: &mut [i64]) -> Result<()> {
        let vocabulary = self.layout.labels.as_deref();
        let mut unknown = None;
        match self.targets.raw {
            raw if raw.is_text() => {
                let Some(vocabulary) = vocabulary else {
                    return Err(DataError::from(TargetError::TargetText {
                        place: self.targets.place(0),
                        hint: "number the classes from 0",
                    }));
                };
                self.targets.rows_to_text(rows, |n, text| {
                    out[n] = vocabulary.class_of_text(text).map_or(-1, |class| class as i64);
                    if out[n] < 0 {
                        unknown.get_or_insert((n, Label::parse(text)));
                    }
                })?;
            }
            raw if raw.is_integer() => {
                self.targets.rows_to_i64(rows, out)?;
                if let (Some(classes), Some(names)) = (self.label_classes(), &self.labels) {
                    for (n, number) in out.iter_mut().enumerate() {
                        let place = usize::try_from(*number).unwrap_or(usize::MAX);
                        let class = classes.get(place).copied().unwrap_or(-1);
                        if class < 0 && unknown.is_none() {
                            let label =
                                names.get(place).map_or(Label::Integer(*number), |name| Label::parse(name));
                            unknown = Some((n, label));
                        }
                        *number = class;
                    }
                } else if let Some(n) = vocabulary.and_then(|vocabulary| vocabulary.map_integers(out, -1)) {
                    let mut label = [0];
                    self.targets.rows_to_i64(&rows[n..=n], &mut label)?;
                    unknown = Some((n, Label::Integer(label[0])));
                }
            }
            _ => {
                let mut values = vec![0.0; out.len()];
                self.targets.rows_to_f64(rows, &mut values)?;
                let columns = Columns { rows, place: &|row| self.targets.place(row) };
                checks::whole(&values, out, &columns)?;
                if let Some(n) = vocabulary.and_then(|vocabulary| vocabulary.map_integers(out, -1)) {
                    unknown = Some((n, Label::Integer(values[n] as i64)));
                }
            }
        }
        match (unknown, vocabulary) {
            (Some((n, label)), Some(vocabulary)) if !self.skips_unknown => {
                Err(TargetError::unknown_label(self.targets.place(rows[n]), &label, vocabulary).into())
            }
            _ => Ok(()),
        }
    }

    fn gather_features(&self, rows: &[usize], x: TensorMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        let columns = Columns { rows, place: &|row| self.features.place(row) };
        let (names, has_missing) = (&self.layout.features, self.layout.has_missing);
        let is_as_stored = !self.features.needs_swap() && self.features.raw.dtype() == Some(x.dtype());
        if !is_as_stored {
            let x = x.into_slice::<f32>(OP, "x")?;
            self.features.rows_to_f32(rows, x)?;
            return checks::floats(x, 0, names, has_missing, &columns);
        }
        let check = |bits| if has_missing { RowCheck::FiniteOrNan(bits) } else { RowCheck::Finite(bits) };
        let check = match x.dtype() {
            DType::F32 => check(FloatBits::F32),
            DType::F16 => check(FloatBits::F16),
            DType::BF16 => check(FloatBits::Bf16),
            _ => RowCheck::None,
        };
        let out = x.into_bytes(OP, "x")?;
        let Some(wrong) = self.features.copy_rows(rows, out, check)? else { return Ok(()) };
        // Read the row again to find the column.
        let mut values = vec![0.0; self.features.row_len()];
        self.features.rows_to_f32(&rows[wrong..=wrong], &mut values)?;
        checks::floats(&values, wrong, names, has_missing, &columns)
    }

    fn read_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        let columns = Columns { rows, place: &|row| self.targets.place(row) };
        match &self.layout.targets {
            TargetLayout::Classes { .. } => self.labels(rows, out.into_slice::<i64>(OP, "targets")?),
            TargetLayout::Values { names } => {
                let out = out.into_slice::<f32>(OP, "targets")?;
                self.targets.rows_to_f32(rows, out)?;
                checks::values(out, self.task, names, &columns)
            }
            TargetLayout::Heads { .. } => unreachable!("arrays have targets of one kind"),
        }
    }
}

/// Adds the labels that `numbers` stand for; a number beyond `names` is a label itself.
fn add_named(survey: &mut LabelSurvey, numbers: &[i64], names: &[String]) {
    let mut counts = vec![0; names.len()];
    for &number in numbers {
        match usize::try_from(number).ok().and_then(|place| counts.get_mut(place)) {
            Some(count) => *count += 1,
            None => survey.add_integers(&[number]),
        }
    }
    for (name, n_rows) in names.iter().zip(counts).filter(|(_, n_rows)| *n_rows > 0) {
        survey.add_cells(name, n_rows);
    }
}

impl Dataset for RawRows {
    fn len(&self) -> usize {
        self.features.n_rows()
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        self.gather_features(rows, out.x)?;
        self.read_targets(rows, out.targets)?;
        if let (Some(weights), Some(out)) = (&self.weights, out.weights) {
            let out = out.into_slice::<f32>("gather", "weights")?;
            weights.rows_to_f32(rows, out)?;
            checks::weights(out, &Columns { rows, place: &|row| weights.place(row) })?;
        }
        self.check_lengths()
    }

    fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        self.read_targets(rows, out)?;
        self.check_lengths()
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        if !self.features.raw.is_wide() {
            return Ok(false);
        }
        self.features.rows_less(rows, origin, out)?;
        Ok(true)
    }

    fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        if !self.targets.raw.is_wide() {
            return Ok(false);
        }
        self.targets.rows_less(rows, origin, out)?;
        Ok(true)
    }

    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
        let mut numbers = Vec::new();
        for (start, out) in rows.step_by(SCAN_ROWS).zip(out.chunks_mut(SCAN_ROWS)) {
            numbers.clear();
            numbers.extend(start..start + out.len());
            self.labels(&numbers, out)?;
        }
        self.check_lengths()
    }

    fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        let n = rows.len();
        if self.layout.dtype != DType::F32 || self.weights.is_some() || self.layout.has_missing {
            return Ok(None);
        }
        let Some(x) = self.features.in_place::<f32>(rows.clone()) else { return Ok(None) };
        let place = |row: usize| self.features.place(rows.start + row);
        let columns = Columns { rows: &[], place: &place };
        let place_of_target = |row: usize| self.targets.place(rows.start + row);
        let target_columns = Columns { rows: &[], place: &place_of_target };
        let targets = match &self.layout.targets {
            TargetLayout::Classes { n_classes } => {
                let are_classes = match self.label_classes() {
                    Some(classes) => classes.iter().zip(0..).all(|(class, number)| *class == number),
                    None => self.layout.labels.as_ref().is_some_and(|labels| labels.is_numbers()),
                };
                if !are_classes || self.skips_unknown {
                    return Ok(None);
                }
                let Some(labels) = self.targets.in_place::<i64>(rows.clone()) else { return Ok(None) };
                checks::labels(labels, *n_classes, &target_columns)?;
                TensorRef::from_slice(labels, &[n])?
            }
            TargetLayout::Values { names } => {
                let Some(values) = self.targets.in_place::<f32>(rows.clone()) else { return Ok(None) };
                checks::values(values, self.task, names, &target_columns)?;
                TensorRef::from_slice(values, &[n, names.len()])?
            }
            TargetLayout::Heads { .. } => unreachable!("arrays have targets of one kind"),
        };
        checks::floats(x, 0, &self.layout.features, false, &columns)?;
        self.features.check()?;
        self.targets.check()?;
        self.check_lengths()?;
        Ok(Some(Batch {
            x: TensorRef::from_slice(x, &[n, self.layout.n_features()])?,
            targets,
            weights: None,
        }))
    }

    fn prefetch(&self, rows: &[Range<usize>]) {
        self.features.announce(rows);
        self.targets.announce(rows);
    }

    fn advice(&self) -> Option<String> {
        let arrays = [Some(&self.features), Some(&self.targets), self.weights.as_ref()];
        let bytes: u64 = arrays.into_iter().flatten().map(RawArray::size_bytes).sum();
        let mib = bytes.div_ceil(1 << 20);
        self.features
            .is_read()
            .then(|| format!("`data.loader_memory_mib` of {mib} or more, which maps the files"))
    }

    fn fingerprint(&self) -> Result<u64> {
        let mut hash = Fingerprint::default();
        let n = self.len();
        hash.number(n as u64);
        self.layout.features.iter().for_each(|name| hash.text(name));
        self.layout.targets.add_to(&mut hash);
        // Evenly spaced, including the first and last row, so that a file in a different order differs too.
        let rows: Vec<usize> = if n <= N_SAMPLES {
            (0..n).collect()
        } else {
            (0..N_SAMPLES).map(|i| (i as u128 * (n - 1) as u128 / (N_SAMPLES - 1) as u128) as usize).collect()
        };
        for array in [Some(&self.features), Some(&self.targets), self.weights.as_ref()].into_iter().flatten()
        {
            array.for_each(&rows, |_, bytes, _| hash.bytes(bytes))?;
            array.check()?;
        }
        Ok(hash.finish())
    }

    fn resident_bytes(&self) -> usize {
        [Some(&self.features), Some(&self.targets), self.weights.as_ref()]
            .into_iter()
            .flatten()
            .map(RawArray::resident_bytes)
            .sum()
    }

    fn source(&self) -> &str {
        &self.source
    }
}
