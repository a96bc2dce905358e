//! Reads the cells of record batches as text, to inspect them rather than to train on them.

use std::path::{Path, PathBuf};

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use ddp::data::error::{DataError, Result};

use crate::formats::error::ColumnError;
use crate::formats::table::batch_source::{BatchSource, Batches, ListColumn, Selection, most_elements};
use crate::formats::table::source::{ColumnType, FileColumns, MAX_COLUMNS, Record};
use crate::formats::write::CellKind;
use crate::source::SourceSpec;
use crate::table::batches::arrays::{MAX_EXACT, list, to_f64};
use crate::table::batches::columns::{
    Kept, Kind, check_names, checked_len, first_list_len, is_date, kind, pandas_indices,
};
use crate::table::batches::marks::without_marked;
use crate::table::batches::rows::put_kept;
use crate::table::batches::text;
use crate::table::cell_values::CellValues;
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;
use crate::values::texts::Texts;

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 4096;

/// Reads the cells of one file; a list of numbers has a cell per element.
pub(in crate::table) struct BatchCells {
    path: PathBuf,
    columns: FileColumns,
    types: Vec<ColumnType>,
    /// Number of names that each column of the file stands for.
    widths: Vec<usize>,
    batches: Batches,
    batch: Option<RecordBatch>,
    /// The next row of the batch, and its number in the file.
    row: usize,
    number: u64,
    notation: Notation,
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl BatchCells {
    /// Starts to read `source`, the file `path`.
    pub(in crate::table) fn open(
        path: &Path,
        source: &dyn BatchSource,
        spec: &SourceSpec<'_>,
    ) -> Result<Self> {
        let schema = source.schema();
        check_names(path, schema)?;
        let of_pandas = pandas_indices(schema);
        let (mut columns, mut types, mut widths) = (FileColumns::default(), Vec::new(), Vec::new());
        let mut lists = Vec::new();
        // Lists of several lengths may be passed on as they are.
        let max_len = most_elements(spec.memory_bytes);
        for (root, field) in schema.fields().iter().enumerate() {
            let (name, of) = (field.name(), field.data_type());
            let names = &mut columns.names;
            let mut width = None;
            if let (Kind::List, Ok(len)) = (kind(of), first_list_len(source, root)) {
                width = match checked_len(path, field, len) {
                    Err(error) if len.is_some_and(|len| len > max_len.max(MAX_COLUMNS)) => return Err(error),
                    checked => checked.ok(),
                };
            }
            if of_pandas.contains(name) {
                columns.indices.push(names.len());
            }
            match width {
                Some(len) => {
                    lists.push(ListColumn { name: name.clone(), root, len });
                    names.extend((0..len).map(|i| format!("{name}[{i}]")));
                }
                None => names.push(name.clone()),
            }
            let is_usable = width.is_some() || matches!(kind(of), Kind::Number | Kind::Text);
            // Lists of no length, or of several, have no cells.
            let has_cells = width.is_some() || !matches!(kind(of), Kind::List);
            let cells = cell_kind(of).filter(|_| has_cells);
            let (name, is_text) = (type_name(of), matches!(kind(of), Kind::Text));
            columns.are_dates.resize(columns.names.len(), is_date(of));
            types.resize(columns.names.len(), ColumnType { name, is_usable, is_text, cells });
            widths.push(width.unwrap_or(0));
        }
        let roots = (0..schema.fields().len()).collect();
        let batches = source.read(&Selection { roots, lists, max_len, batch_rows: BATCH_ROWS })?;
        Ok(BatchCells {
            path: path.to_owned(),
            notation: Notation::new(DecimalMark::Point, &spec.data.missing_values),
            batch: None,
            row: 0,
            number: 0,
            text: Vec::new(),
            ends: Vec::new(),
            columns,
            types,
            widths,
            batches,
        })
    }

    /// The list in a row of `array`, of `width` elements from the file's column `column` on; `None` for a missing one.
    fn list(&self, array: &dyn Array, row: usize, width: usize, column: usize) -> Result<Option<ArrayRef>> {
        let list = list(array, row);
        if let Some(list) = list.as_ref().filter(|list| list.len() != width) {
            return Err(DataError::from(ColumnError::ListLength {
                place: format!("data file `{}`, row {}", self.path.display(), self.number + row as u64),
                column: format!("column \"{}\"", self.columns.names[column]),
                expected: width,
                got: list.len(),
            }));
        }
        Ok(list)
    }
}

/// The values of a column that is no list.
fn cell_values(array: &ArrayRef) -> CellValues {
    let of = array.data_type();
    let are_singles = matches!(of, DataType::Float16 | DataType::Float32);
    let doubles = (of.is_integer() || of.is_floating()).then(|| doubles(array));
    match doubles {
        Some(doubles) if of.is_floating() || !doubles.iter().any(|value| value.abs() >= MAX_EXACT) => {
            CellValues::Numbers { doubles, are_singles }
        }
        _ => {
            let mut texts = Texts::default();
            put_kept(array, Kept { root: 0, element: None }, &mut texts);
            CellValues::Texts(texts)
        }
    }
}

/// Numbers; NaN for missing ones.
fn doubles(array: &dyn Array) -> Vec<f64> {
    let mut values = to_f64(array);
    if let Some(nulls) = array.nulls().filter(|nulls| nulls.null_count() > 0) {
        values
            .iter_mut()
            .zip(nulls)
            .filter(|(_, is_valid)| !is_valid)
            .for_each(|(value, _)| *value = f64::NAN);
    }
    values
}

/// The meaning of the cells of a type; `None` for one whose values have no cells.
fn cell_kind(of: &DataType) -> Option<CellKind> {
    match of {
        DataType::Boolean => Some(CellKind::Truth),
        DataType::Dictionary(_, of) => cell_kind(of),
        of if of.is_temporal() && !matches!(of, DataType::Duration(_) | DataType::Interval(_)) => {
            Some(CellKind::Text)
        }
        _ => match kind(of) {
            Kind::Number | Kind::List => Some(CellKind::Number),
            Kind::Text => Some(CellKind::Text),
            Kind::Other(_) => None,
        },
    }
}

/// The name of a type without its details.
fn type_name(of: &DataType) -> String {
    let inner = |of: &DataType| type_name(of);
    match of {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".to_owned(),
        DataType::Dictionary(_, of) => format!("dictionary of {}", inner(of)),
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            format!("list of {}", inner(field.data_type()))
        }
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => format!("decimal({precision}, {scale})"),
        DataType::Struct(_) => "struct".to_owned(),
        DataType::Map(..) => "map".to_owned(),
        DataType::Timestamp(..) => "timestamp".to_owned(),
        DataType::Date32 | DataType::Date64 => "date".to_owned(),
        DataType::Time32(_) | DataType::Time64(_) => "time".to_owned(),
        DataType::Duration(_) => "duration".to_owned(),
        other => other.to_string().to_lowercase(),
    }
}

impl BatchCells {
    /// The columns, with a name per element of lists.
    pub(in crate::table) fn columns(&self) -> &FileColumns {
        &self.columns
    }

    /// Notation of missing values.
    pub(in crate::table) fn notation(&self) -> &Notation {
        &self.notation
    }

    /// Types of the columns.
    pub(in crate::table) fn types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Takes the batch of the next row, which is to be put back; `None` at the end.
    fn take_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.batch.as_ref().is_none_or(|batch| self.row == batch.num_rows()) {
            self.batch = self.batches.next().transpose()?;
            self.row = 0;
        }
        Ok(self.batch.take())
    }

    /// Replaces `values` by up to `max_rows` next rows, and returns the number of the first one and their count, 0 only at the end.
    pub(in crate::table) fn values(
        &mut self,
        max_rows: usize,
        values: &mut Vec<CellValues>,
    ) -> Result<(u64, usize)> {
        values.clear();
        let first = self.number;
        let Some(batch) = self.take_batch()? else { return Ok((first, 0)) };
        let n_rows = max_rows.min(batch.num_rows() - self.row);
        for (column, array) in batch.slice(self.row, n_rows).columns().iter().enumerate() {
            let array = without_marked(array, &self.notation);
            match self.widths[column] {
                0 => values.push(cell_values(&array)),
                width => {
                    let mut elements = vec![Vec::with_capacity(n_rows); width];
                    for row in 0..n_rows {
                        let list = self.list(&array, row, width, values.len())?;
                        let of_row = list.map_or_else(|| vec![f64::NAN; width], |list| doubles(&list));
                        elements.iter_mut().zip(of_row).for_each(|(element, value)| element.push(value));
                    }
                    let are_singles = true;
                    values.extend(
                        elements.into_iter().map(|doubles| CellValues::Numbers { doubles, are_singles }),
                    );
                }
            }
        }
        (self.row, self.number) = (self.row + n_rows, self.number + n_rows as u64);
        self.batch = Some(batch);
        Ok((first, n_rows))
    }

    /// The next row; `None` at the end.
    pub(in crate::table) fn next(&mut self) -> Result<Option<Record<'_>>> {
        let Some(batch) = self.take_batch()? else { return Ok(None) };
        self.text.clear();
        self.ends.clear();
        for (column, array) in batch.columns().iter().enumerate() {
            match self.widths[column] {
                0 => {
                    text::put(array, self.row, &mut self.text);
                    self.ends.push(self.text.len());
                }
                width => {
                    let list = self.list(&array.slice(self.row, 1), 0, width, self.ends.len())?;
                    for element in 0..width {
                        if let Some(list) = &list {
                            text::put(list, element, &mut self.text);
                        }
                        self.ends.push(self.text.len());
                    }
                }
            }
        }
        let line = self.number;
        self.row += 1;
        self.number += 1;
        self.batch = Some(batch);
        Ok(Some(Record { line, cells: &self.text, ends: &self.ends, gap: 0, strings: &[], is_bad: false }))
    }
}
