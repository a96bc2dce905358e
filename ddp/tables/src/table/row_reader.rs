//! Reads the rows of one file of a table in order, whatever its format.

use std::path::Path;

use ddp::config::table_options::Decimal;
use ddp::data::error::Result;

use crate::error::TableError;
use crate::formats::table::source::{Source, TableFormat};
use crate::source::{KnownFeatures, SourceSpec};
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

/// The decimal mark of a table's files, and what shows it: the first such file, or the model that the rows are for.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommonMark(Option<(String, DecimalMark)>);

impl CommonMark {
    /// The mark of the model that rows of `spec` are read for, if it is known.
    pub(crate) fn new(spec: &SourceSpec<'_>) -> Self {
        let of_model =
            |known: KnownFeatures<'_>| Some((known.of.to_owned(), DecimalMark::known(known.decimal)?));
        CommonMark(spec.features.and_then(of_model))
    }

    /// Opens a file of the table. A file whose first rows leave the mark open takes that of those before.
    ///
    /// # Errors
    /// [`TableError::OtherDecimal`], and the errors of [`RowReader::open`].
    pub(crate) fn open(
        &mut self,
        path: &Path,
        format: &TableFormat,
        spec: &SourceSpec<'_>,
    ) -> Result<RowReader> {
        let reader = RowReader::open(path, format, &self.for_next(spec))?;
        self.add(path, reader.found_decimal(), spec)?;
        Ok(reader)
    }

    /// Settings for the next file.
    pub(crate) fn for_next<'a>(&self, spec: &SourceSpec<'a>) -> SourceSpec<'a> {
        let known = self.0.as_ref().map(|(_, mark)| *mark).filter(|mark| mark.is_evident());
        SourceSpec { decimal: known.or(spec.decimal), ..*spec }
    }

    /// Adds a file with the mark that was found in it, `None` if its format decides.
    ///
    /// # Errors
    /// [`TableError::OtherDecimal`]
    pub(crate) fn add(
        &mut self,
        path: &Path,
        found: Option<DecimalMark>,
        spec: &SourceSpec<'_>,
    ) -> Result<()> {
        let Some(own) = found.filter(|_| spec.data.decimal.is_auto()) else { return Ok(()) };
        let has_comma = own == DecimalMark::Comma;
        match &self.0 {
            None | Some((_, DecimalMark::Either | DecimalMark::Unclear)) => {
                self.0 = Some((format!("`{}`", path.display()), own))
            }
            Some((of, mark)) if (*mark == DecimalMark::Comma) != has_comma => {
                let (path, of) = (path.to_owned(), of.clone());
                let own = if has_comma { "comma" } else { "point" };
                return Err(TableError::OtherDecimal { path, of, own }.into());
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// The mark of the files, if they show one.
    pub(crate) fn found(&self) -> Decimal {
        self.0.as_ref().map_or(Decimal::Auto, |(_, mark)| mark.found())
    }
}
