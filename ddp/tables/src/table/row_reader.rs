//! Reads the rows of one file of a table in order, whatever its format.

use std::fs;
use std::path::{Path, PathBuf};

use ddp::config::DataConfig;
use ddp::config::table_options::Decimal;
use ddp::data::error::Result;

use crate::error::TableError;
use crate::formats::table::source::{Source, TableFormat};
use crate::source::SourceSpec;
#[cfg(feature = "parquet")]
use crate::table::batches::{BatchRows, widened};
use crate::table::columns::ColumnPlan;
use crate::table::filtered;
use crate::table::kept::KeptType;
use crate::table::rows::TableRows;
use crate::table::text::TextRows;
use crate::values::number::DecimalMark;

/// Reads the rows of one file in order.
pub(crate) enum RowReader {
    Text(Box<TextRows>),
    #[cfg(feature = "parquet")]
    Batches(Box<BatchRows>),
}

impl RowReader {
    /// Opens a file.
    pub(crate) fn open(path: &Path, format: &TableFormat, spec: &SourceSpec<'_>) -> Result<Self> {
        Ok(match filtered::open(path, format, spec)? {
            Source::Text(source) => RowReader::Text(Box::new(TextRows::open(path, source, spec)?)),
            #[cfg(feature = "parquet")]
            Source::Batches(source) => {
                let source = widened(path, source, spec.types);
                RowReader::Batches(Box::new(BatchRows::open(path, &*source, spec)?))
            }
        })
    }

    /// Columns of the file and their roles.
    pub(crate) fn plan(&self) -> &ColumnPlan {
        match self {
            RowReader::Text(rows) => rows.plan(),
            #[cfg(feature = "parquet")]
            RowReader::Batches(rows) => rows.plan(),
        }
    }

    /// Decimal mark of the texts of numbers.
    pub(crate) fn decimal(&self) -> DecimalMark {
        match self {
            RowReader::Text(rows) => rows.decimal(),
            #[cfg(feature = "parquet")]
            RowReader::Batches(_) => DecimalMark::Either,
        }
    }

    /// Decimal mark that was found in the first rows of the file; `None` if its format decides.
    fn found_decimal(&self) -> Option<DecimalMark> {
        match self {
            RowReader::Text(rows) => rows.found_decimal(),
            #[cfg(feature = "parquet")]
            RowReader::Batches(_) => None,
        }
    }

    /// Types of the kept columns, one per column of the plan; `None` for text.
    pub(crate) fn kept_types(&self) -> Vec<Option<KeptType>> {
        match self {
            RowReader::Text(rows) => vec![None; rows.plan().kept.len()],
            #[cfg(feature = "parquet")]
            RowReader::Batches(rows) => rows.kept_types().to_vec(),
        }
    }

    /// Skips up to `max_rows` rows, whose values are not looked at, and returns their number, 0 only at the end.
    pub(crate) fn skip(&mut self, max_rows: usize) -> Result<usize> {
        match self {
            RowReader::Text(reader) => reader.skip(max_rows),
            #[cfg(feature = "parquet")]
            RowReader::Batches(reader) => reader.skip(max_rows),
        }
    }

    /// Appends up to `max_rows` rows to `rows` and returns their number, 0 only at the end.
    pub(crate) fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        match self {
            RowReader::Text(reader) => reader.read(rows, max_rows),
            #[cfg(feature = "parquet")]
            RowReader::Batches(reader) => reader.read(rows, max_rows),
        }
    }
}

/// The decimal mark of a table's files, and the first file that shows it.
#[derive(Debug, Default)]
pub(crate) struct CommonMark(Option<(PathBuf, DecimalMark)>);

impl CommonMark {
    /// Opens a file of the table. A file whose first rows leave the mark open takes a comma of those before.
    ///
    /// # Errors
    /// [`TableError::OtherDecimal`], and the errors of [`RowReader::open`].
    pub(crate) fn open(
        &mut self,
        path: &Path,
        format: &TableFormat,
        spec: &SourceSpec<'_>,
    ) -> Result<RowReader> {
        let reader = RowReader::open(path, format, spec)?;
        let Some(own) = reader.found_decimal() else { return Ok(reader) };
        match &self.0 {
            None | Some((_, DecimalMark::Either | DecimalMark::Unclear)) => {
                self.0 = Some((path.to_owned(), own))
            }
            Some((of, mark)) if (*mark == DecimalMark::Comma) != (own == DecimalMark::Comma) => {
                let is_open = own != DecimalMark::PointAfterCommas && own != DecimalMark::Comma;
                if !is_open || !fs::metadata(path).is_ok_and(|file| file.is_file()) {
                    return Err(TableError::OtherDecimal { path: path.to_owned(), of: of.clone() }.into());
                }
                let data = DataConfig { decimal: Decimal::Comma, ..spec.data.clone() };
                let mut reader = RowReader::open(path, format, &SourceSpec { data: &data, ..*spec })?;
                if let RowReader::Text(rows) = &mut reader {
                    rows.set_found_decimal(DecimalMark::Comma);
                }
                return Ok(reader);
            }
            Some(_) => {}
        }
        Ok(reader)
    }
}
