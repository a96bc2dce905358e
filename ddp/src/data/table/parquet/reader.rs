//! Converts batches of columns to rows of a table; every value is checked.

use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

use super::cells::{Whole, categories, first_null, to_date_parts, to_f32, to_whole};
use super::columns::{Column, Columns};
use super::file::{ParquetFile, guarded, malformed};
use crate::config::Task;
use crate::data::DataError;
use crate::data::checks;
use crate::data::error::Result;
use crate::data::source::SourceSpec;
use crate::data::table::columns::{ColumnPlan, Role};
use crate::data::table::partition_rows;
use crate::data::table::reader::TableReader;
use crate::data::table::rows::{TableRows, TargetCells};
use crate::data::table::time::PARTS;

/// Bytes of rows per batch.
const BATCH_BYTES: usize = 1 << 20;
/// Rows that are written while they are in the CPU's cache.
const TILE_ROWS: usize = 16;

const FILL_IN: &str = "set `data.missing` to \"mean\" or \"zero\", or fill in the value";

/// Opens a file to read its rows.
pub(crate) fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Box<dyn TableReader>> {
    Ok(Box::new(ParquetReader::open(path, spec)?))
}

/// Reads the rows of one file, or of some of its row groups, in order.
pub(super) struct ParquetReader {
    batches: ParquetRecordBatchReader,
    rows: BatchRows,
    /// End of the rows to read.
    end: usize,
}

/// Converts the batches of a file to rows.
pub(in crate::data::table) struct BatchRows {
    pub(in crate::data::table) path: PathBuf,
    pub(in crate::data::table) columns: Columns,
    /// Decoded rows that were not read yet.
    pub(in crate::data::table) pending: Option<RecordBatch>,
    /// Number of the next row in the file.
    pub(in crate::data::table) row: usize,
    /// Values of columns, concatenated.
    scratch: Vec<f32>,
}

impl ParquetReader {
    /// Opens the file and reads its footer.
    fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let file = ParquetFile::open(path)?;
        let columns = Columns::of_file(&file, spec)?;
        let n_groups = file.group_rows.len();
        Self::new(file, columns, 0..n_groups)
    }

    /// Reads some row groups of `file`.
    pub(super) fn new(file: ParquetFile, columns: Columns, groups: std::ops::Range<usize>) -> Result<Self> {
        let roots: Vec<usize> = columns.needed.iter().map(|column| column.root).collect();
        let row = file.group_rows[..groups.start].iter().sum();
        let end = row + file.group_rows[groups.clone()].iter().sum::<usize>();
        let batches = file.batches(groups.collect(), &roots, batch_rows(&columns))?;
        Ok(ParquetReader { batches, rows: BatchRows::new(&file.path, columns, row), end })
    }
}

impl BatchRows {
    /// Rows of `columns` from row `row` on.
    pub(in crate::data::table) fn new(path: &Path, columns: Columns, row: usize) -> Self {
        BatchRows { path: path.to_owned(), columns, pending: None, row, scratch: Vec::new() }
    }

    /// Appends up to `max_rows` rows of `batch`, keeps the others, and returns their number.
    pub(in crate::data::table) fn read(
        &mut self,
        batch: RecordBatch,
        rows: &mut TableRows,
        max_rows: usize,
    ) -> Result<usize> {
        let n = batch.num_rows().min(max_rows);
        if n < batch.num_rows() {
            self.pending = Some(batch.slice(n, batch.num_rows() - n));
        }
        let first = rows.n_rows;
        self.take(&batch.slice(0, n), rows)?;
        partition_rows::fill(&self.columns.plan, rows, first, &self.path)?;
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
        for (column, array) in self.columns.needed.iter().zip(batch.columns()) {
            let cells = Cells { path: &self.path, row: self.row, column, array };
            match column.roles[0] {
                Role::Feature(feature) => {
                    let width = column.roles.len();
                    self.scratch.resize(self.scratch.len().max(at + n * width), 0.0);
                    let out = &mut self.scratch[at..][..n * width];
                    cells.features(width, rows.may_miss, out)?;
                    if width == 1 {
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
                Role::Dropped => {}
            }
        }
        let n_features = rows.n_features;
        let features = &mut rows.features[first * n_features..];
        for start in (0..n).step_by(TILE_ROWS) {
            let tile = start..(start + TILE_ROWS).min(n);
            for &(feature, at) in &places {
                for row in tile.clone() {
                    features[row * n_features + feature] = self.scratch[at + row];
                }
            }
        }
        Ok(())
    }
}

impl TableReader for ParquetReader {
    fn plan(&self) -> &ColumnPlan {
        &self.rows.columns.plan
    }

    fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        let batch = match self.rows.pending.take() {
            Some(batch) => batch,
            None => match guarded(&self.rows.path, || self.batches.next().transpose())? {
                Some(batch) => batch,
                None if self.rows.row == self.end => return Ok(0),
                None => {
                    let reason = format!(
                        "its rows end at row {}, but its footer declares {}",
                        self.rows.row, self.end
                    );
                    return Err(malformed(&self.rows.path, reason));
                }
            },
        };
        self.rows.read(batch, rows, max_rows)
    }

    fn fraction(&self) -> Option<f64> {
        Some(self.rows.row as f64 / self.end.max(1) as f64)
    }
}

/// Rows per batch.
pub(super) fn batch_rows(columns: &Columns) -> usize {
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

/// The values of one column in one batch.
struct Cells<'a> {
    path: &'a Path,
    /// Number of the first row in the file.
    row: usize,
    column: &'a Column,
    array: &'a dyn Array,
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
        DataError::MissingValue { place: self.place(row), column: self.name(), hint }
    }

    fn name(&self) -> String {
        format!("column \"{}\"", self.column.name)
    }

    /// Numbers, or concatenated lists of `width` numbers.
    fn features(&self, width: usize, may_miss: bool, out: &mut [f32]) -> Result<()> {
        if !may_miss {
            self.require_all(FILL_IN)?;
        }
        if self.is_list() {
            self.lists(width, may_miss, out)?;
        } else {
            to_f32(self.array, out);
        }
        let place = |index: usize| self.place(index / width);
        let columns = checks::Columns { rows: &[], place: &place };
        let names = [self.column.name.clone()];
        checks::floats(out, 0, &names, may_miss, &columns)
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

    fn lists(&self, width: usize, may_miss: bool, out: &mut [f32]) -> Result<()> {
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            if self.array.is_null(row) {
                out.fill(f32::NAN);
                continue;
            }
            let list = match self.array.data_type() {
                DataType::List(_) => self.array.as_list::<i32>().value(row),
                DataType::LargeList(_) => self.array.as_list::<i64>().value(row),
                _ => self.array.as_fixed_size_list().value(row),
            };
            if list.len() != width {
                let (place, column, got) = (self.place(row), self.name(), list.len());
                return Err(DataError::ListLength { place, column, expected: width, got });
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
        categories(self.array, &mut |value| rows.code(index, value), &mut |row, code| codes[row] = code);
        for (row, code) in codes.into_iter().enumerate() {
            rows.features[(first + row) * n_features + feature] = code as f32;
        }
    }

    fn target(&self, first: usize, index: usize, rows: &mut TableRows) -> Result<()> {
        self.require_all("fill in the value, or remove those rows")?;
        let place = |row: usize| self.place(row);
        let columns = checks::Columns { rows: &[], place: &place };
        match &mut rows.targets {
            TargetCells::Classes { labels, classes } => {
                let labels = &mut labels[first..];
                match to_whole(self.array) {
                    Whole::Integers(values) => labels.copy_from_slice(&values),
                    Whole::Floats(values) => checks::whole(&values, labels, &columns)?,
                }
                checks::labels(labels, *classes, &columns)
            }
            TargetCells::Values { values, n_targets, is_binary } => {
                let mut column = vec![0.0; self.array.len()];
                to_f32(self.array, &mut column);
                let task = if *is_binary { Task::Multilabel } else { Task::Regression };
                checks::values(&column, task, std::slice::from_ref(&self.column.name), &columns)?;
                for (row, value) in column.into_iter().enumerate() {
                    values[(first + row) * *n_targets + index] = value;
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
