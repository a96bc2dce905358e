//! Converts batches of columns to rows of a table; every value is checked.

use std::path::{Path, PathBuf};

use arrow_array::{Array, RecordBatch, StringArray};
use arrow_schema::DataType;
use ddp::config::Task;
use ddp::data::DataError;
use ddp::data::column_kind::SeenKinds;
use ddp::data::error::Result;
use ddp::data::spelling::without_fraction;

use crate::checks;
use crate::error::TableError;
use crate::error::target_error::TargetError;
use crate::formats::error::CellProblem;
use crate::formats::table::batch_source::{BatchSource, Batches, most_elements};
use crate::source::SourceSpec;
use crate::table::batches::arrays::{
    LabelValues, categories, exact, first_null, label_values, list, put_columns, to_date_parts, to_f32,
    to_f64,
};
use crate::table::batches::columns::{
    Column, Columns, Kept, TextMeaning, are_decimals, are_moments, kinds_of,
};
use crate::table::batches::elements::other_length;
use crate::table::batches::marks::{without_infinite, without_marked};
use crate::table::batches::text;
use crate::table::columns::{ColumnPlan, Role};
use crate::table::label_column::{LabelCell, LabelColumn};
use crate::table::rows::{TableRows, TargetCells};
use crate::table::{cell, partition_rows};
use crate::values::notation::Notation;
use crate::values::texts::Texts;
use crate::values::time::PARTS;

/// Bytes of rows per batch.
const BATCH_BYTES: usize = 1 << 20;

const FILL_IN_TARGET: &str =
    "fill in the value, or leave out rows without one with `data.missing_target` = \"skip\"";
const INFINITE: &str = "it is a date beyond the calendar (infinity), which counts as missing: set `data.missing` to \"mean\" or \"zero\", or fill in the value";
const FILL_IN: &str = "set `data.missing` to \"mean\" or \"zero\", or fill in the value";

/// Reads the rows of one file, or of some of its row groups, in order.
pub(in crate::table) struct BatchRows {
    path: PathBuf,
    columns: Columns,
    batches: Batches,
    /// Decoded rows that were not read yet.
    pending: Option<RecordBatch>,
    /// Number of the next row in the file.
    row: usize,
    /// Values of columns, concatenated.
    scratch: Vec<f32>,
}

impl BatchRows {
    /// Starts to read `source`, the file `path`.
    pub(in crate::table) fn open(
        path: &Path,
        source: &dyn BatchSource,
        spec: &SourceSpec<'_>,
    ) -> Result<Self> {
        let columns = Columns::new(path, source, spec)?;
        let mut selection = columns.selection(batch_rows(&columns));
        // A row with another list may be left out instead of being an error.
        if spec.to_predict.is_some_and(|rows| rows.skips_bad_rows) {
            selection.max_len = most_elements(spec.memory_bytes);
        }
        Ok(Self::new(path, columns, source.read(&selection)?, 0))
    }

    /// Rows of `columns` from row `row` on.
    pub(in crate::table) fn new(path: &Path, columns: Columns, batches: Batches, row: usize) -> Self {
        BatchRows { path: path.to_owned(), columns, batches, pending: None, row, scratch: Vec::new() }
    }

    /// Columns of the file and their roles.
    pub(in crate::table) fn plan(&self) -> &ColumnPlan {
        &self.columns.plan
    }

    /// Types of the kept columns, one per column of the plan; `None` for text.
    pub(in crate::table) fn kept_types(&self) -> &[Option<DataType>] {
        &self.columns.kept_types
    }

    /// Skips up to `max_rows` rows, whose values are not looked at, and returns their number, 0 only at the end.
    pub(in crate::table) fn skip(&mut self, max_rows: usize) -> Result<usize> {
        let n = self.next(max_rows)?.map_or(0, |batch| batch.num_rows());
        self.row += n;
        Ok(n)
    }

    /// Up to `max_rows` next rows.
    fn next(&mut self, max_rows: usize) -> Result<Option<RecordBatch>> {
        let next = self.pending.take().map(Ok).or_else(|| self.batches.next());
        let Some(batch) = next.transpose()? else { return Ok(None) };
        let n = batch.num_rows().min(max_rows);
        if n < batch.num_rows() {
            self.pending = Some(batch.slice(n, batch.num_rows() - n));
        }
        Ok(Some(batch.slice(0, n)))
    }

    /// Appends up to `max_rows` rows to `rows` and returns their number, 0 only at the end.
    pub(in crate::table) fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        let Some(batch) = self.next(max_rows)? else { return Ok(0) };
        let (n, first) = (batch.num_rows(), rows.n_rows);
        self.take(&batch, rows)?;
        partition_rows::fill(&self.columns.plan, rows, first, &self.path)?;
        rows.check_kinds(&self.columns.plan, first, &self.path)?;
        self.row += n;
        Ok(n)
    }

    /// Writes the values of a batch to new rows.
    fn take(&mut self, batch: &RecordBatch, rows: &mut TableRows) -> Result<()> {
        let n = batch.num_rows();
        let first = rows.add_rows(n);
        let mut at = 0;
        // Feature and offset in `scratch` of each column of numbers.
        let mut places = Vec::new();
        let mut kept_exactly = Vec::new();
        let roots = self.columns.roots();
        let array_of = |root: usize| batch.column(roots.binary_search(&root).expect("the column is read"));
        let mut bad_rows = rows.bad_rows.as_ref().map(|_| Vec::new());
        for column in &self.columns.needed {
            let array = match &column.element {
                Some(of) => of.of_lists(array_of(column.root), &self.path, self.row, bad_rows.as_mut())?,
                None => array_of(column.root).clone(),
            };
            let array = match column.roles[0] {
                Role::Weight => array,
                _ => without_marked(&array, &self.columns.notation),
            };
            let array = match (column.roles[0], without_infinite(&array)) {
                (Role::Feature(feature) | Role::Date(feature), Some(finite)) => {
                    let is_new = |row: &usize| finite.is_null(*row) && array.is_valid(*row);
                    let infinite: Vec<usize> = (0..n).filter(is_new).collect();
                    if let Some(row) = infinite.first().filter(|_| !rows.may_miss) {
                        let place = format!("data file `{}`, row {}", self.path.display(), self.row + row);
                        let (column, hint) = (format!("column \"{}\"", column.name), INFINITE);
                        return Err(DataError::from(TableError::MissingValue { place, column, hint }));
                    }
                    rows.kinds.add_infinite(feature, infinite.len() as u64);
                    finite
                }
                (_, finite) => finite.unwrap_or(array),
            };
            if let Role::Feature(feature) = column.roles[0]
                && array.logical_null_count() < array.len()
            {
                rows.kinds.add(feature, kinds_of(array.data_type()));
            }
            let notation = &self.columns.notation;
            let cells = Cells { path: &self.path, row: self.row, column, array: &array, notation };
            match column.roles[0] {
                role @ (Role::Feature(_) | Role::Date(_)) if column.is_of_cells() => {
                    cells.texts(role, first, rows)?;
                }
                Role::Feature(feature) => {
                    let width = column.roles.len();
                    self.scratch.resize(self.scratch.len().max(at + n * width), 0.0);
                    let out = &mut self.scratch[at..][..n * width];
                    cells.features(width, rows.may_miss, out, bad_rows.as_mut())?;
                    if !cells.is_list() {
                        if rows.exact.keeps(feature) {
                            kept_exactly.push((feature, array.clone()));
                        }
                        places.push((feature, at));
                        at += n;
                    } else {
                        let out = &self.scratch[at..][..n * width];
                        put_lists(
                            column,
                            out,
                            &mut rows.features[first * rows.n_features..],
                            rows.n_features,
                        );
                        put_exact_lists(column, &array, first, rows);
                    }
                }
                Role::Date(feature) => {
                    let n_features = rows.n_features;
                    let may_miss = rows.may_miss;
                    cells.dates(feature, n_features, may_miss, &mut rows.features[first * n_features..])?;
                }
                Role::Category { feature, index } => cells.category(first, feature, index, rows),
                Role::Target(index) => cells.target(first, index, rows)?,
                Role::Weight => {
                    let weights = rows.weights.as_mut().expect("a table with a weight column has weights");
                    cells.weights(&mut weights[first..])?;
                }
                Role::Dropped | Role::Blank => {}
            }
        }
        put_columns(&self.scratch, &places, &mut rows.features[first * rows.n_features..], rows.n_features);
        for (feature, array) in kept_exactly {
            for (row, value) in exact(&array).into_iter().flatten().enumerate() {
                rows.set_exact(first + row, feature, value);
            }
        }
        for row in bad_rows.into_iter().flatten() {
            rows.mark_bad(first + row);
        }
        let kept = self.columns.kept.iter().zip(&self.columns.kept_types).zip(&mut rows.kept);
        for ((kept, of_file), values) in kept {
            match (kept, of_file) {
                (Some(kept), Some(_)) => values.arrays.push(array_of(kept.root).clone()),
                (Some(kept), None) => put_kept(array_of(kept.root), *kept, &mut values.texts),
                // Columns of folders are written afterward.
                (None, _) => {}
            }
        }
        Ok(())
    }
}

/// Rows per batch.
pub(in crate::table) fn batch_rows(columns: &Columns) -> usize {
    (BATCH_BYTES / (columns.plan.names.len() * 4)).clamp(64, 8192)
}

fn put_lists(column: &Column, lists: &[f32], features: &mut [f32], n_features: usize) {
    let rows = lists.chunks_exact(column.roles.len()).zip(features.chunks_exact_mut(n_features));
    for (list, features) in rows {
        for (role, value) in column.roles.iter().zip(list) {
            if let Role::Feature(feature) = role {
                features[*feature] = *value;
            }
        }
    }
}

/// Sets the exact values of lists, whose f32 are set.
fn put_exact_lists(column: &Column, array: &dyn Array, first: usize, rows: &mut TableRows) {
    let features = column.roles.iter().enumerate().filter_map(|(at, role)| match role {
        Role::Feature(feature) => Some((at, *feature)).filter(|_| rows.exact.keeps(*feature)),
        _ => None,
    });
    let features: Vec<(usize, usize)> = features.collect();
    if features.is_empty() {
        return;
    }
    for row in 0..array.len() {
        // A list of another length is a fault that was marked.
        let list = list(array, row).filter(|list| list.len() == column.roles.len());
        let Some(values) = list.and_then(|list| exact(&list)) else { continue };
        features.iter().for_each(|&(at, feature)| rows.set_exact(first + row, feature, values[at]));
    }
}

/// The values as the texts that files of text have for them.
fn texts_of(array: &dyn Array) -> StringArray {
    let mut text = Vec::new();
    let texts = (0..array.len()).map(|row| {
        text.clear();
        text::put(array, row, &mut text);
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
    });
    texts.collect()
}

/// Appends the values of a column as text; of a time with a zone, which is UTC here, that too.
pub(super) fn put_kept(array: &dyn Array, kept: Kept, texts: &mut Texts) {
    let has_zone = matches!(array.data_type(), DataType::Timestamp(_, Some(_)));
    let mut text = Vec::new();
    for row in 0..array.len() {
        text.clear();
        match kept.element {
            None => text::put(array, row, &mut text),
            Some(element) => {
                if let Some(list) = list(array, row).filter(|list| element < list.len()) {
                    text::put(&list, element, &mut text);
                }
            }
        }
        if has_zone && text.last().is_some_and(u8::is_ascii_digit) {
            text.push(b'Z');
        }
        texts.push(&String::from_utf8_lossy(&text));
    }
}

/// The values of one column in one batch.
struct Cells<'a> {
    path: &'a Path,
    /// Number of the first row in the file.
    row: usize,
    column: &'a Column,
    array: &'a dyn Array,
    notation: &'a Notation,
}

impl Cells<'_> {
    fn place(&self, row: usize) -> String {
        format!("data file `{}`, row {}", self.path.display(), self.row + row)
    }

    /// Fails at the first missing value.
    fn require_all(&self, hint: &'static str) -> Result<()> {
        first_null(self.array).map_or(Ok(()), |row| Err(self.missing(row, hint)))
    }

    fn missing(&self, row: usize, hint: &'static str) -> DataError {
        DataError::from(TableError::MissingValue { place: self.place(row), column: self.name(), hint })
    }

    fn name(&self) -> String {
        format!("column \"{}\"", self.column.name)
    }

    /// Numbers, or concatenated lists of `width` numbers. Rows with other values are added to `bad_rows` instead of being an
    /// error, and those values become NaN.
    fn features(
        &self,
        width: usize,
        may_miss: bool,
        out: &mut [f32],
        mut bad_rows: Option<&mut Vec<usize>>,
    ) -> Result<()> {
        if !may_miss {
            self.require_all(FILL_IN)?;
        }
        if self.is_list() {
            self.lists(width, may_miss, out, bad_rows.as_deref_mut())?;
        } else {
            to_f32(self.array, out);
        }
        if let Some(bad_rows) = bad_rows {
            for (index, value) in out.iter_mut().enumerate().filter(|(_, value)| value.is_infinite()) {
                *value = f32::NAN;
                bad_rows.push(index / width);
            }
        }
        let place = |index: usize| self.place(index / width);
        let columns = checks::Columns { rows: &[], place: &place };
        let names = [self.column.name.clone()];
        checks::floats(out, 0, &names, may_miss, &columns)
            .map_err(|error| self.beyond_f32(width, out).unwrap_or(error))
    }

    /// The error of a first number that is infinite in `out` only.
    fn beyond_f32(&self, width: usize, out: &[f32]) -> Option<DataError> {
        let index = out.iter().position(|value| value.is_infinite())?;
        let row = index / width;
        let of_row = if self.is_list() { list(self.array, row)? } else { self.array.slice(row, 1) };
        let value = to_f64(&of_row).get(index % width).copied().filter(|value| value.is_finite())?;
        let (place, column) = (self.place(row), self.column.name.clone());
        let problem = CellProblem::NotFinite { text: format!("{value:?}") };
        Some(DataError::from(TableError::Cell { place, column, problem }))
    }

    /// Texts, read as the cells of a file of text.
    fn texts(&self, role: Role, first: usize, rows: &mut TableRows) -> Result<()> {
        let mut text = Vec::new();
        if let (Role::Feature(feature), Some(TextMeaning::Date)) = (role, self.column.texts) {
            rows.kinds.add(feature, SeenKinds::DATE);
        }
        for row in 0..self.array.len() {
            text.clear();
            text::put(self.array, row, &mut text);
            if let Err(problem) = cell::put(rows, first + row, role, &text, self.notation)
                && !rows.mark_bad(first + row)
            {
                let (place, column) = (self.place(row), self.column.name.clone());
                let problem = problem.in_column(&column);
                return Err(DataError::from(TableError::Cell { place, column, problem }));
            }
        }
        Ok(())
    }

    /// The parts of dates, from feature `feature` on.
    fn dates(&self, feature: usize, n_features: usize, may_miss: bool, out: &mut [f32]) -> Result<()> {
        if !may_miss {
            self.require_all(FILL_IN)?;
        }
        let mut parts = vec![0.0; PARTS.len() * self.array.len()];
        to_date_parts(self.array, &mut parts);
        for (parts, out) in parts.chunks_exact(PARTS.len()).zip(out.chunks_exact_mut(n_features)) {
            out[feature..][..PARTS.len()].copy_from_slice(parts);
        }
        Ok(())
    }

    fn is_list(&self) -> bool {
        matches!(
            self.array.data_type(),
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
        )
    }

    fn lists(
        &self,
        width: usize,
        may_miss: bool,
        out: &mut [f32],
        mut bad_rows: Option<&mut Vec<usize>>,
    ) -> Result<()> {
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            let Some(list) = list(self.array, row) else {
                out.fill(f32::NAN);
                continue;
            };
            if list.len() != width {
                if let Some(bad_rows) = &mut bad_rows {
                    out.fill(f32::NAN);
                    bad_rows.push(row);
                    continue;
                }
                let lens = [width, list.len()];
                return Err(DataError::from(other_length(
                    self.path,
                    self.row + row,
                    &self.column.name,
                    lens,
                )));
            }
            if !may_miss && first_null(&list).is_some() {
                return Err(self.missing(row, FILL_IN));
            }
            to_f32(&list, out);
        }
        Ok(())
    }

    fn category(&self, first: usize, feature: usize, index: usize, rows: &mut TableRows) {
        let n_features = rows.n_features;
        let mut codes = vec![0; self.array.len()];
        // The spelling of files of text; a model may know another one, of files of this kind.
        let mut code = |value: &str| match rows.code(index, without_fraction(value)) {
            0 => rows.code(index, value),
            code => code,
        };
        let mut take = |row, code| codes[row] = code;
        let of = self.array.data_type();
        if are_moments(of) || are_decimals(of) {
            categories(&texts_of(self.array), &mut code, &mut take);
        } else {
            categories(self.array, &mut code, &mut take);
        }
        for (row, code) in codes.into_iter().enumerate() {
            rows.features[(first + row) * n_features + feature] = code as f32;
        }
    }

    fn target(&self, first: usize, index: usize, rows: &mut TableRows) -> Result<()> {
        let nulls = self.array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let mut lacking = Vec::new();
        if rows.without_target.is_none() {
            self.require_all(FILL_IN_TARGET)?;
        } else if let Some(nulls) = nulls {
            lacking.extend((0..self.array.len()).filter(|&row| nulls.is_null(row)));
        }
        let place = |row: usize| self.place(row);
        let columns = checks::Columns { rows: &[], place: &place };
        match &mut rows.targets {
            TargetCells::Classes(labels) => {
                let skips = rows.without_target.is_some();
                self.labels(first, labels, &mut lacking, skips).map_err(|(row, problem)| {
                    DataError::from(TargetError::Label {
                        place: format!("{}, {}", self.place(row), self.name()),
                        problem,
                    })
                })?;
            }
            TargetCells::Values { values, n_targets, is_binary } => {
                let mut column = vec![0.0; self.array.len()];
                to_f32(self.array, &mut column);
                if rows.without_target.is_some() {
                    for (row, value) in column.iter_mut().enumerate().filter(|(_, value)| value.is_nan()) {
                        *value = 0.0;
                        lacking.push(row);
                    }
                }
                let task = if *is_binary { Task::Multilabel } else { Task::Regression };
                checks::values(&column, task, std::slice::from_ref(&self.column.name), &columns)?;
                for (row, value) in column.into_iter().enumerate() {
                    values[(first + row) * *n_targets + index] = value;
                }
                if rows.exact_targets.keeps(index) {
                    let exact = exact(self.array).into_iter().flatten().enumerate();
                    // A missing value has any number in its place.
                    for (row, value) in exact.filter(|(row, _)| self.array.is_valid(*row)) {
                        rows.exact_targets.set(index, first + row, value, values);
                    }
                }
            }
        }
        if let Some(without_target) = &mut rows.without_target {
            without_target.extend(lacking.into_iter().map(|row| first + row));
        }
        Ok(())
    }

    /// Sets the labels of the rows from `first` on; an error has the index of its row. Rows of `lacking` have none; where rows are
    /// left out (`skips`), those with NaN or an empty text are added.
    fn labels(
        &self,
        first: usize,
        labels: &mut LabelColumn,
        lacking: &mut Vec<usize>,
        skips: bool,
    ) -> Result<(), (usize, CellProblem)> {
        // Nulls have a value without meaning.
        let nulls = lacking.clone();
        let is_null = |row: usize| nulls.binary_search(&row).is_ok();
        let of = self.array.data_type();
        // Durations are quantities.
        let values = if are_moments(of) && !matches!(of, DataType::Duration(_)) {
            label_values(&texts_of(self.array))
        } else {
            label_values(self.array)
        };
        match values {
            LabelValues::Integers(values) if nulls.is_empty() => labels.set_integers(first, &values),
            LabelValues::Integers(values) => {
                for (row, &value) in values.iter().enumerate().filter(|(row, _)| !is_null(*row)) {
                    labels.set(first + row, LabelCell::Integer(value)).map_err(|problem| (row, problem))?;
                }
                Ok(())
            }
            LabelValues::Unsigned(values) => {
                for (row, &value) in values.iter().enumerate().filter(|(row, _)| !is_null(*row)) {
                    let digits = value.to_string();
                    let cell = i64::try_from(value).map_or(LabelCell::Code(&digits), LabelCell::Integer);
                    labels.set(first + row, cell).map_err(|problem| (row, problem))?;
                }
                Ok(())
            }
            LabelValues::Floats(values) => {
                for (row, &value) in values.iter().enumerate().filter(|(row, _)| !is_null(*row)) {
                    if skips && value.is_nan() {
                        lacking.push(row);
                        continue;
                    }
                    if !value.is_finite() {
                        return Err((row, CellProblem::NotFinite { text: value.to_string() }));
                    }
                    let set = labels.set(first + row, LabelCell::from_number(value));
                    set.map_err(|problem| (row, problem))?;
                    labels.set_place(|| format!("{}, {}", self.place(row), self.name()));
                }
                Ok(())
            }
            LabelValues::Texts { codes, texts } => {
                // The rule of text files: NA is not a class.
                let are_marks: Vec<bool> =
                    texts.iter().map(|text| self.notation.is_missing_label(text)).collect();
                for (row, &code) in codes.iter().enumerate().filter(|(row, _)| !is_null(*row)) {
                    let text = match (code as usize).checked_sub(1) {
                        Some(code) if !are_marks[code] => &texts[code],
                        _ if skips => {
                            lacking.push(row);
                            continue;
                        }
                        Some(code) => {
                            return Err((row, CellProblem::LabelMissing { text: texts[code].clone() }));
                        }
                        None => return Err((row, CellProblem::TargetMissing)),
                    };
                    let set = labels.set(first + row, LabelCell::String(text));
                    set.map_err(|problem| (row, problem))?;
                    labels.set_place(|| format!("{}, {}", self.place(row), self.name()));
                }
                Ok(())
            }
        }
    }

    fn weights(&self, out: &mut [f32]) -> Result<()> {
        self.require_all("fill in the weight, or remove those rows")?;
        to_f32(self.array, out);
        checks::weights(out, &checks::Columns { rows: &[], place: &|row| self.place(row) })
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::TimestampMicrosecondArray;

    use super::*;

    #[test]
    fn kept_times_with_a_zone_say_that_they_are_utc() {
        let times = TimestampMicrosecondArray::from(vec![Some(1_000_000), None, Some(i64::MAX)]);
        for (times, ending) in [(times.clone().with_timezone("+01:00"), "Z"), (times, "")] {
            let mut texts = Texts::default();
            put_kept(&times, Kept { root: 0, element: None }, &mut texts);
            let first = format!("1970-01-01 00:00:01{ending}");
            assert_eq!([0, 1, 2].map(|row| texts.get(row).to_owned()), [&first, "", "infinity"]);
        }
    }
}
