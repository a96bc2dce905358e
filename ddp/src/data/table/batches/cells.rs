//! Reads the cells of record batches as text, to inspect them rather than to train on them.

use std::path::{Path, PathBuf};

use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use ddp_rows::error::ColumnError;
use ddp_rows::table::batch_source::{BatchSource, Batches, ListColumn, Selection, most_elements};
use ddp_rows::table::source::{ColumnType, FileColumns, MAX_COLUMNS, Record};
use ddp_rows::values::notation::Notation;
use ddp_rows::values::number::DecimalMark;
use ddp_rows::write::CellKind;

use super::arrays::list;
use super::columns::{Kind, check_names, checked_len, first_list_len, kind, pandas_indices};
use super::text;
use crate::data::error::{DataError, Result};
use crate::data::source::SourceSpec;

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 1024;

/// Reads the cells of one file; a list of numbers has a cell per element.
pub(in crate::data::table) struct BatchCells {
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
    pub(in crate::data::table) fn open(
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
            let (name, is_text, cells) = (type_name(of), matches!(kind(of), Kind::Text), cell_kind(of));
            types.resize(names.len(), ColumnType { name, is_usable, is_text, cells });
            widths.push(width.unwrap_or(0));
        }
        columns.are_dates = vec![false; columns.names.len()];
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

    /// Appends the elements of a list as cells.
    fn put_list(&mut self, array: &dyn Array, width: usize) -> Result<()> {
        let list = list(array, self.row);
        if let Some(list) = list.as_ref().filter(|list| list.len() != width) {
            let place = format!("data file `{}`, row {}", self.path.display(), self.number);
            let column = format!("column \"{}\"", self.columns.names[self.ends.len()]);
            return Err(DataError::from(ColumnError::ListLength {
                place,
                column,
                expected: width,
                got: list.len(),
            }));
        }
        for element in 0..width {
            if let Some(list) = &list {
                text::put(list, element, &mut self.text);
            }
            self.ends.push(self.text.len());
        }
        Ok(())
    }
}

/// The meaning of the cells of a type; `None` for one whose values have no cells.
fn cell_kind(of: &DataType) -> Option<CellKind> {
    match of {
        DataType::Boolean => Some(CellKind::Truth),
        DataType::Dictionary(_, of) => cell_kind(of),
        of if of.is_temporal() && !matches!(of, DataType::Duration(_)) => Some(CellKind::Text),
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
    pub(in crate::data::table) fn columns(&self) -> &FileColumns {
        &self.columns
    }

    /// Notation of missing values.
    pub(in crate::data::table) fn notation(&self) -> &Notation {
        &self.notation
    }

    /// Types of the columns.
    pub(in crate::data::table) fn types(&self) -> &[ColumnType] {
        &self.types
    }

    /// The next row; `None` at the end.
    pub(in crate::data::table) fn next(&mut self) -> Result<Option<Record<'_>>> {
        let batch = loop {
            if let Some(batch) = self.batch.clone().filter(|batch| self.row < batch.num_rows()) {
                break batch;
            }
            self.row = 0;
            self.batch = self.batches.next().transpose()?;
            if self.batch.is_none() {
                return Ok(None);
            }
        };
        self.text.clear();
        self.ends.clear();
        for (column, array) in batch.columns().iter().enumerate() {
            match self.widths[column] {
                0 => {
                    text::put(array, self.row, &mut self.text);
                    self.ends.push(self.text.len());
                }
                width => self.put_list(array, width)?,
            }
        }
        let line = self.number;
        self.row += 1;
        self.number += 1;
        Ok(Some(Record { line, cells: &self.text, ends: &self.ends, strings: &[], is_bad: false }))
    }
}
