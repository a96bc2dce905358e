//! Reads rows of any format in order, in chunks.

use ddp_tables::formats::Reader;
use ddp_tables::formats::write::{Chunk, Schema};
use ddp_tables::open::files::files_and_format;

use super::array_source::ArraySource;
use super::input::Input;
use super::table_source::TableSource;
use crate::error::Result;

/// Number of bytes of rows per chunk.
pub(super) const CHUNK_BYTES: usize = 2 << 20;

/// Source of rows.
pub(super) enum Source {
    Table(Box<TableSource>),
    Arrays(Box<ArraySource>),
}

impl Source {
    /// Opens the rows.
    ///
    /// # Errors
    /// A [`DataError`] that names the file.
    pub(super) fn open(input: &Input<'_>) -> Result<Self> {
        let spec = input.spec();
        if spec.source.starts_with("builtin:") {
            return Ok(Source::Arrays(Box::new(ArraySource::builtin(&spec)?)));
        }
        let (files, format) = files_and_format(&spec)?;
        match &format.reader {
            Reader::Table(format) => Ok(Source::Table(Box::new(TableSource::new(files, format, input)?))),
            Reader::Arrays(reader) => Ok(Source::Arrays(Box::new(ArraySource::open(&files, reader, input)?))),
        }
    }

    pub(super) fn schema(&self) -> &Schema {
        match self {
            Source::Table(table) => table.schema(),
            Source::Arrays(arrays) => arrays.schema(),
        }
    }

    /// Reads up to `max_rows` rows; `None` at the end.
    pub(super) fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>> {
        let max_rows = max_rows.min((CHUNK_BYTES / self.schema().row_bytes()).clamp(1, 1 << 16));
        match self {
            Source::Table(table) => table.next(max_rows),
            Source::Arrays(arrays) => arrays.next(max_rows),
        }
    }

    /// Fraction of the rows that has been read, from 0 to 1, if known.
    pub(super) fn fraction(&self) -> Option<f64> {
        match self {
            Source::Table(table) => table.fraction(),
            Source::Arrays(arrays) => Some(arrays.fraction()),
        }
    }

    /// Number of integers that f64, the type of their columns, rounds.
    pub(super) fn n_rounded(&self) -> u64 {
        match self {
            Source::Table(table) => table.n_rounded(),
            Source::Arrays(_) => 0,
        }
    }
}
