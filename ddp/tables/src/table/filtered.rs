//! Opens files of tables without the rows that `data.filter` leaves out, whatever the format: nothing else sees these rows.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp::data::error::{DataError, Result};

use crate::error::TableError;
use crate::formats::error::{CellProblem, ColumnError, CsvError, Result as FormatResult};
#[cfg(feature = "parquet")]
use crate::formats::table::batch_source::{BatchSource, Batches, ListColumn, Selection};
use crate::formats::table::source::{FileColumns, Record, Source, TableFormat, TextSource};
use crate::source::SourceSpec;
#[cfg(feature = "parquet")]
use crate::table::batches::elements::Element;
#[cfg(feature = "parquet")]
use crate::table::batches::filtered_columns;
use crate::table::partition;
use crate::values::filter::{Cell, Filter};
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// The condition of `data.filter` with the limit of `data.max_rows`, if there is one of them. It counts rows: each pass over a table has one of its own.
///
/// # Errors
/// [`TableError::Filter`] for a text that is no condition.
pub fn filter_of(spec: &SourceSpec<'_>) -> Result<Option<Arc<Filter>>> {
    if spec.data.filter.is_none() && spec.max_rows() == usize::MAX {
        return Ok(None);
    }
    let parse = |text: &String| {
        let wrong = |problem| DataError::from(TableError::Filter { text: text.clone(), problem });
        text.parse::<Filter>().map_err(wrong)
    };
    let filter = spec.data.filter.as_ref().map_or_else(|| Ok(Filter::all()), parse)?;
    Ok(Some(Arc::new(filter.first(spec.max_rows()))))
}

/// Opens a file of a table, without the rows that `spec.filter` leaves out.
///
/// # Errors
/// Errors of the format; [`ColumnError::Missing`] for a column of the filter that the file lacks.
pub(super) fn open(path: &Path, format: &TableFormat, spec: &SourceSpec<'_>) -> Result<Source> {
    let source = (format.open)(path, &spec.read_options())?;
    let Some(filter) = spec.filter else { return Ok(source) };
    let folders = partition::columns_of(path, spec);
    let find = |names: &[String]| -> Result<Vec<Place>> {
        let place = |column: &String| {
            // The value of a folder applies to a column of its files, as it does to features.
            let of_folder = folders.iter().rfind(|(name, _)| name == column);
            let of_folder = of_folder.map(|(_, value)| Place::Folder(value.clone()));
            let of_file = || names.iter().position(|name| name == column).map(Place::File);
            of_folder.or_else(of_file).ok_or_else(|| {
                let near = ddp::config::nearest(column, names.iter().map(String::as_str));
                let listed =
                    names.iter().take(20).map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
                let hint = match near {
                    Some(near) => format!("is it \"{near}\"?"),
                    None => format!(
                        "columns of the file: {listed}{}",
                        if names.len() > 20 { ", ..." } else { "" }
                    ),
                };
                let (path, column) = (path.to_owned(), column.clone());
                DataError::from(ColumnError::Missing { path, column, key: "data.filter", hint })
            })
        };
        filter.columns().iter().map(place).collect()
    };
    let filter = filter.clone();
    Ok(match source {
        Source::Text(inner) => {
            let places = find(&inner.columns().names)?;
            Source::Text(Box::new(FilteredText::new(path, inner, filter, places)?))
        }
        #[cfg(feature = "parquet")]
        Source::Batches(inner) => {
            let mut names: Vec<String> =
                inner.schema().fields().iter().map(|field| field.name().clone()).collect();
            // An element of a list is a column, too.
            let elements = filtered_columns::elements(&*inner, filter.columns())?;
            names.extend(elements.iter().map(|(_, element)| format!("{}[{}]", element.list, element.at)));
            let n_own = inner.schema().fields().len();
            let places = find(&names)?.into_iter().map(|place| match place {
                Place::File(at) if at >= n_own => {
                    let (root, element) = elements[at - n_own].clone();
                    Place::Element(root, element)
                }
                other => other,
            });
            let places: Vec<Place> = places.collect();
            filtered_columns::check(path, inner.schema(), places.iter().filter_map(Place::cell_column))?;
            let notation = Notation::new(DecimalMark::Point, &spec.data.missing_values);
            let (path, before) = (path.to_owned(), filter.counts());
            Source::Batches(Box::new(FilteredBatches { path, inner, filter, before, places, notation }))
        }
    })
}

/// The place of a column of the filter.
#[derive(Debug, Clone)]
enum Place {
    /// Index among the columns of the file.
    File(usize),
    /// An element of the lists in one of the columns of the file.
    #[cfg(feature = "parquet")]
    Element(usize, Element),
    /// Value in the name of the file's folder.
    Folder(String),
}

impl Place {
    /// Index of the column of the file that is read.
    #[cfg(feature = "parquet")]
    fn file_index(&self) -> Option<usize> {
        match self {
            Place::File(index) | Place::Element(index, _) => Some(*index),
            Place::Folder(_) => None,
        }
    }

    /// Index of a column of the file whose values are the cells.
    #[cfg(feature = "parquet")]
    fn cell_column(&self) -> Option<usize> {
        self.file_index().filter(|_| matches!(self, Place::File(_)))
    }
}

/// A file of text without the rows that its filter leaves out. It offers no lines in place of records.
struct FilteredText {
    path: PathBuf,
    inner: Box<dyn TextSource>,
    filter: Arc<Filter>,
    places: Vec<Place>,
    /// The columns; the rows that are kept decide which of them hold dates.
    columns: FileColumns,
    notation: Notation,
    /// Rows that were read to find the dates.
    ahead: VecDeque<OwnedRecord>,
    row: OwnedRecord,
}

/// Rows that are read to find the dates.
const ROWS_AHEAD: usize = 256;

/// A copy of a record.
#[derive(Default)]
struct OwnedRecord {
    line: u64,
    cells: Vec<u8>,
    ends: Vec<usize>,
    gap: usize,
    strings: Vec<bool>,
    is_bad: bool,
}

impl OwnedRecord {
    fn copy(&mut self, record: &Record<'_>) {
        (self.line, self.gap, self.is_bad) = (record.line, record.gap, record.is_bad);
        self.cells.clear();
        self.cells.extend_from_slice(record.cells);
        self.ends.clear();
        self.ends.extend_from_slice(record.ends);
        self.strings.clear();
        self.strings.extend_from_slice(record.strings);
    }

    fn record(&self) -> Record<'_> {
        let OwnedRecord { line, cells, ends, gap, strings, is_bad } = self;
        Record { line: *line, cells, ends, gap: *gap, strings, is_bad: *is_bad }
    }
}

impl FilteredText {
    fn new(path: &Path, inner: Box<dyn TextSource>, filter: Arc<Filter>, places: Vec<Place>) -> Result<Self> {
        let (columns, notation) = (inner.columns().clone(), inner.notation().clone());
        let (path, ahead) = (path.to_owned(), VecDeque::new());
        let mut text = FilteredText {
            path,
            inner,
            filter,
            places,
            columns,
            notation,
            ahead,
            row: OwnedRecord::default(),
        };
        while text.ahead.len() < ROWS_AHEAD && text.read(false)? {
            text.ahead.push_back(std::mem::take(&mut text.row));
        }
        // A column holds dates if its first value is one, as in files without a filter.
        for column in 0..text.columns.are_dates.len() {
            let records = text.ahead.iter().map(OwnedRecord::record);
            let mut records = records.filter(|record| column < record.n_cells());
            if let Some(is_date) = records.find_map(|record| text.notation.is_date(record.cell(column))) {
                text.columns.are_dates[column] = is_date;
            }
        }
        Ok(text)
    }

    /// Reads the next row that is kept into `row`; false at the end.
    fn read(&mut self, may_be_bad: bool) -> FormatResult<bool> {
        while !self.filter.is_full()
            && let Some(record) = self.inner.next(may_be_bad)?
        {
            let cell = |column: usize| match &self.places[column] {
                Place::File(index) if *index < record.n_cells() => Cell::Text(record.cell(*index)),
                Place::File(_) => Cell::Text(b""),
                #[cfg(feature = "parquet")]
                Place::Element(..) => unreachable!("files of text have no lists here"),
                Place::Folder(value) => Cell::Text(value.as_bytes()),
            };
            let keeps = self.filter.keeps(&cell, &self.notation).map_err(|unclear| CsvError::Cell {
                path: self.path.clone(),
                line: record.line,
                column: self.filter.columns()[unclear.column].clone(),
                problem: CellProblem::UnclearMark { text: unclear.text },
            })?;
            if keeps {
                self.row.copy(&record);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl TextSource for FilteredText {
    fn columns(&self) -> &FileColumns {
        &self.columns
    }

    fn notation(&self) -> &Notation {
        &self.notation
    }

    fn found_decimal(&self) -> Option<DecimalMark> {
        self.inner.found_decimal()
    }

    fn fraction(&self) -> Option<f64> {
        self.inner.fraction()
    }

    fn next(&mut self, may_be_bad: bool) -> FormatResult<Option<Record<'_>>> {
        match self.ahead.pop_front() {
            Some(row) => self.row = row,
            None if !self.read(may_be_bad)? => return Ok(None),
            None => {}
        }
        Ok(Some(self.row.record()))
    }
}

/// A file of record batches without the rows that its filter leaves out.
#[cfg(feature = "parquet")]
struct FilteredBatches {
    path: PathBuf,
    inner: Box<dyn BatchSource>,
    filter: Arc<Filter>,
    /// Its counts before the rows of this file, which may be read several times.
    before: (u64, u64),
    places: Vec<Place>,
    notation: Notation,
}

#[cfg(feature = "parquet")]
impl BatchSource for FilteredBatches {
    fn schema(&self) -> &arrow_schema::SchemaRef {
        self.inner.schema()
    }

    fn first_list_len(&self, root: usize) -> FormatResult<Option<usize>> {
        self.inner.first_list_len(root)
    }

    fn read(&self, selection: &Selection) -> FormatResult<Batches> {
        // The filter's columns are read with the others, and taken out again.
        let mut roots = selection.roots.clone();
        roots.extend(self.places.iter().filter_map(Place::file_index));
        roots.sort_unstable();
        roots.dedup();
        let at = |root: usize| roots.binary_search(&root).expect("each column is read");
        let wanted: Vec<usize> = selection.roots.iter().map(|root| at(*root)).collect();
        let places = self.places.iter().map(|place| match place {
            Place::File(root) => Place::File(at(*root)),
            Place::Element(root, element) => Place::Element(at(*root), element.clone()),
            Place::Folder(value) => Place::Folder(value.clone()),
        });
        let places: Vec<Place> = places.collect();
        let mut lists = selection.lists.clone();
        for place in &self.places {
            if let Place::Element(root, Element { list, len, .. }) = place
                && lists.iter().all(|list| list.root != *root)
            {
                lists.push(ListColumn { name: list.clone(), root: *root, len: *len });
            }
        }
        let (filter, notation) = (self.filter.clone(), self.notation.clone());
        filter.rewind(self.before);
        let batches = self.inner.read(&Selection { roots, lists, ..selection.clone() })?;
        let limit = filter.clone();
        let (path, mut row) = (self.path.clone(), 0);
        let kept = batches.take_while(move |_| !limit.is_full()).filter_map(move |batch| {
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => return Some(Err(error)),
            };
            let columns = places.iter().map(|place| {
                Ok(match place {
                    Place::File(index) => Ok(batch.column(*index).clone()),
                    Place::Element(index, element) => {
                        Ok(element.of_lists(batch.column(*index), &path, row, None)?)
                    }
                    Place::Folder(value) => Err(value.as_bytes()),
                })
            });
            let columns: Vec<_> = match columns.collect::<FormatResult<_>>() {
                Ok(columns) => columns,
                Err(error) => return Some(Err(error)),
            };
            row += batch.num_rows();
            let batch = filtered_columns::kept(&batch, &columns, &wanted, &filter, &notation);
            (batch.num_rows() > 0).then_some(Ok(batch))
        });
        Ok(Box::new(kept))
    }
}

#[cfg(test)]
#[path = "filtered_tests.rs"]
mod tests;
