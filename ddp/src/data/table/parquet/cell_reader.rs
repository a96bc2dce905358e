//! Reads the cells of record batches as text, to inspect them rather than to train on them.

use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Schema};

use super::columns::{Kind, check_names, first_list_len, kind, list_len, pandas_indices};
use super::file::{ParquetFile, guarded};
use super::lists::{self, ListColumn, Probe};
use super::text;
use crate::data::error::{DataError, Result};
use crate::data::errors::column_error::ColumnError;
use crate::data::source::SourceSpec;
use crate::data::table::reader::{CellReader, ColumnType, Record};
use crate::data::values::notation::Notation;
use crate::data::values::number::DecimalMark;
use crate::data::write::CellKind;

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 1024;

type NextBatch = Box<dyn FnMut() -> Result<Option<RecordBatch>>>;

/// Opens a Parquet file to read its cells.
pub(crate) fn open_cells(path: &Path, spec: &SourceSpec<'_>) -> Result<Box<dyn CellReader>> {
    let file = ParquetFile::open(path)?;
    let schema = file.metadata.schema().clone();
    let roots: Vec<usize> = (0..schema.fields().len()).collect();
    let mut batches = file.batches((0..file.group_rows.len()).collect(), &roots, BATCH_ROWS)?;
    let owned = path.to_owned();
    let next = Box::new(move || guarded(&owned, || batches.next().transpose()));
    // Lists of several lengths may be passed on as they are.
    let allowed = lists::most_elements(spec.memory_bytes);
    for (root, field) in schema.fields().iter().enumerate() {
        if let (Kind::List, Ok(Probe::TooLong(len))) = (kind(field.data_type()), lists::probe(&file, root))
            && len > allowed
        {
            list_len(path, field.name(), field.data_type(), &|| Ok(Some(len)))?;
        }
    }
    let cells = ArrowCells::new(path, &schema, &|root| first_list_len(&file, root), next, spec)?;
    let lists = cells.widths.iter().enumerate().filter(|(_, len)| **len > 0);
    let list =
        |(root, &len): (usize, &usize)| ListColumn { name: schema.field(root).name().clone(), root, len };
    lists::check(&file, &lists.map(list).collect::<Vec<_>>(), 0..file.group_rows.len(), allowed)?;
    Ok(Box::new(cells))
}

/// Reads the cells of one file.
pub(in crate::data::table) struct ArrowCells {
    path: PathBuf,
    names: Vec<String>,
    types: Vec<ColumnType>,
    indices: Vec<usize>,
    /// Number of names that each column of the file stands for.
    widths: Vec<usize>,
    next: NextBatch,
    batch: Option<RecordBatch>,
    /// The next row of the batch, and its number in the file.
    row: usize,
    number: u64,
    notation: Notation,
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl ArrowCells {
    /// Cells of batches with the columns `schema`; a list of numbers has a name per element.
    pub(in crate::data::table) fn new(
        path: &Path,
        schema: &Schema,
        first_list_len: &dyn Fn(usize) -> Result<Option<usize>>,
        next: NextBatch,
        spec: &SourceSpec<'_>,
    ) -> Result<Self> {
        check_names(path, schema)?;
        let of_pandas = pandas_indices(schema);
        let (mut names, mut types, mut widths, mut indices) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (root, field) in schema.fields().iter().enumerate() {
            let (name, of) = (field.name(), field.data_type());
            let len = match kind(of) {
                Kind::List => list_len(path, name, of, &|| first_list_len(root)).ok(),
                _ => None,
            };
            if of_pandas.contains(name) {
                indices.push(names.len());
            }
            match len {
                Some(len) => names.extend((0..len).map(|i| format!("{name}[{i}]"))),
                None => names.push(name.clone()),
            }
            let is_usable = len.is_some() || matches!(kind(of), Kind::Number | Kind::Text);
            let (name, is_text, cells) = (type_name(of), matches!(kind(of), Kind::Text), cell_kind(of));
            types.resize(names.len(), ColumnType { name, is_usable, is_text, cells });
            widths.push(len.unwrap_or(0));
        }
        Ok(ArrowCells {
            path: path.to_owned(),
            notation: Notation::new(DecimalMark::Point, &spec.data.missing_values),
            batch: None,
            row: 0,
            number: 0,
            text: Vec::new(),
            ends: Vec::new(),
            names,
            types,
            indices,
            widths,
            next,
        })
    }

    /// Appends the elements of a list as cells.
    fn put_list(&mut self, array: &dyn Array, width: usize) -> Result<()> {
        let row = self.row;
        let list = match array.data_type() {
            _ if array.is_null(row) => None,
            DataType::List(_) => Some(array.as_list::<i32>().value(row)),
            DataType::LargeList(_) => Some(array.as_list::<i64>().value(row)),
            _ => Some(array.as_fixed_size_list().value(row)),
        };
        if let Some(list) = list.as_ref().filter(|list| list.len() != width) {
            let place = format!("data file `{}`, row {}", self.path.display(), self.number);
            let column = format!("column \"{}\"", self.names[self.ends.len()]);
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

impl CellReader for ArrowCells {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn notation(&self) -> &Notation {
        &self.notation
    }

    fn indices(&self) -> &[usize] {
        &self.indices
    }

    fn types(&self) -> Option<&[ColumnType]> {
        Some(&self.types)
    }

    fn next(&mut self) -> Result<Option<Record<'_>>> {
        let batch = loop {
            if let Some(batch) = self.batch.clone().filter(|batch| self.row < batch.num_rows()) {
                break batch;
            }
            self.row = 0;
            self.batch = (self.next)()?;
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
        Ok(Some(Record { line, cells: &self.text, ends: &self.ends, strings: &[] }))
    }
}
