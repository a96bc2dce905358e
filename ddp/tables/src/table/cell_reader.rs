//! Reads the cells of a table as text, to look at them or to convert them rather than to train on them.

use std::path::{Path, PathBuf};

use ddp::data::error::Result;

use crate::formats::error::{CellProblem, CsvError};
use crate::formats::table::source::{ColumnType, FileColumns, Record, Source, TableFormat, TextSource};
use crate::source::SourceSpec;
#[cfg(feature = "parquet")]
use crate::table::batches::{BatchCells, widened};
use crate::table::cell_values::CellValues;
use crate::table::columns::ColumnPlan;
use crate::table::filtered;
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Reads the cells of one file in order.
pub struct CellReader(Cells);

/// Source of the cells.
enum Cells {
    Text(TextCells),
    #[cfg(feature = "parquet")]
    Batches(Box<BatchCells>),
}

/// Cells of a file of text.
struct TextCells {
    path: PathBuf,
    source: Box<dyn TextSource>,
    /// Index and name of the last column if the file has no name for it: all of its cells must be empty.
    blank: Option<(usize, String)>,
}

impl CellReader {
    /// Opens a file.
    ///
    /// # Errors
    /// A file that can't be read, or one whose columns have no names.
    pub fn open(path: &Path, format: &TableFormat, spec: &SourceSpec<'_>) -> Result<Self> {
        Ok(CellReader(match filtered::open(path, format, spec)? {
            Source::Text(source) => {
                let FileColumns { names, unnamed, .. } = source.columns();
                let blank = unnamed.last().filter(|&&at| at + 1 == names.len());
                let blank = blank.map(|&at| (at, names[at].clone()));
                let blank = blank.filter(|(_, name)| !spec.data.drop.contains(name));
                Cells::Text(TextCells { path: path.to_owned(), source, blank })
            }
            #[cfg(feature = "parquet")]
            Source::Batches(source) => {
                let source = widened(path, source, spec.types);
                Cells::Batches(Box::new(BatchCells::open(path, &*source, spec)?))
            }
        }))
    }

    /// Opens a file and assigns roles to its columns.
    pub fn open_planned(
        path: &Path,
        format: &TableFormat,
        spec: &SourceSpec<'_>,
    ) -> Result<(Self, ColumnPlan)> {
        let reader = Self::open(path, format, spec)?;
        let plan = ColumnPlan::new(path, reader.columns().clone(), spec)?;
        Ok((reader, plan))
    }

    /// The columns, with a name per element of lists.
    pub fn columns(&self) -> &FileColumns {
        match &self.0 {
            Cells::Text(text) => text.source.columns(),
            #[cfg(feature = "parquet")]
            Cells::Batches(batches) => batches.columns(),
        }
    }

    /// Notation of numbers and missing values.
    pub fn notation(&self) -> &Notation {
        match &self.0 {
            Cells::Text(text) => text.source.notation(),
            #[cfg(feature = "parquet")]
            Cells::Batches(batches) => batches.notation(),
        }
    }

    /// See [`TextSource::found_decimal`].
    pub(in crate::table) fn found_decimal(&self) -> Option<DecimalMark> {
        match &self.0 {
            Cells::Text(text) => text.source.found_decimal(),
            #[cfg(feature = "parquet")]
            Cells::Batches(_) => None,
        }
    }

    /// Types of the columns, if the file has them. Its rows are counted from 0 then; otherwise lines are, from 1.
    pub fn types(&self) -> Option<&[ColumnType]> {
        match &self.0 {
            Cells::Text(_) => None,
            #[cfg(feature = "parquet")]
            Cells::Batches(batches) => Some(batches.types()),
        }
    }

    /// Share of the file that was read, from 0 to 1; `None` if its length is unknown.
    pub fn fraction(&self) -> Option<f64> {
        match &self.0 {
            Cells::Text(text) => text.source.fraction(),
            #[cfg(feature = "parquet")]
            Cells::Batches(_) => None,
        }
    }

    /// Replaces `values` by up to `max_rows` next rows of a file with types, one element per name, and returns the number of the
    /// first one and their count, 0 only at the end.
    ///
    /// # Errors
    /// A list of another length.
    #[cfg_attr(not(feature = "parquet"), allow(unused_variables, clippy::ptr_arg))] // Only columnar files have values.
    pub fn values(&mut self, max_rows: usize, values: &mut Vec<CellValues>) -> Result<(u64, usize)> {
        match &mut self.0 {
            Cells::Text(_) => unreachable!("a file of text has no types"),
            #[cfg(feature = "parquet")]
            Cells::Batches(batches) => batches.values(max_rows, values),
        }
    }

    /// The next row, with one cell per name; `None` at the end.
    ///
    /// # Errors
    /// A row with more or fewer cells.
    pub fn record(&mut self) -> Result<Option<Record<'_>>> {
        match &mut self.0 {
            Cells::Text(text) => text.next(),
            #[cfg(feature = "parquet")]
            Cells::Batches(batches) => batches.next(),
        }
    }
}

impl TextCells {
    fn next(&mut self) -> Result<Option<Record<'_>>> {
        let record = self.source.next(false)?;
        if let (Some(record), Some((at, column))) = (&record, &self.blank)
            && !record.cell(*at).trim_ascii().is_empty()
        {
            let (column, problem) = (column.clone(), CellProblem::unnamed(record.cell(*at), column));
            return Err(CsvError::Cell { path: self.path.clone(), line: record.line, column, problem }.into());
        }
        Ok(record)
    }
}
