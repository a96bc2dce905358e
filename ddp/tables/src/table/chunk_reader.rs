//! Reads the rows of a table as typed columns, to convert them to other files.

use std::path::Path;

use ddp::data::error::Result;

use crate::formats::table::source::{Source, TableFormat};
use crate::formats::write::{Chunk, Group};
use crate::source::SourceSpec;
#[cfg(feature = "parquet")]
use crate::table::batches::{BatchChunks, widened};
use crate::table::cell_chunks::{CellChunks, CellColumns};
use crate::table::columns::Partition;
use crate::table::filtered;

/// Reads the rows of one file as typed columns.
pub struct ChunkReader(Chunks);

/// Source of the chunks.
enum Chunks {
    Text(Box<CellChunks>),
    #[cfg(feature = "parquet")]
    Batches(Box<BatchChunks>),
}

impl ChunkReader {
    /// Opens a file of text, whose columns have the types of `columns`.
    pub fn from_text(
        path: &Path,
        format: &TableFormat,
        spec: &SourceSpec<'_>,
        columns: &CellColumns,
    ) -> Result<Self> {
        Ok(ChunkReader(Chunks::Text(Box::new(columns.open(path, format, spec)?))))
    }

    /// Opens a file that has types.
    #[cfg_attr(not(feature = "parquet"), allow(unused_variables))]
    pub fn from_types(path: &Path, format: &TableFormat, spec: &SourceSpec<'_>) -> Result<Self> {
        match filtered::open(path, format, spec)? {
            #[cfg(feature = "parquet")]
            Source::Batches(source) => {
                let source = widened(path, source, spec.types);
                Ok(ChunkReader(Chunks::Batches(Box::new(BatchChunks::open(path, &*source, spec)?))))
            }
            Source::Text(_) => unreachable!("a file of text has no types"),
        }
    }

    /// The columns of the file that are converted.
    pub fn groups(&self) -> Vec<Group> {
        match &self.0 {
            Chunks::Text(text) => text.groups(),
            #[cfg(feature = "parquet")]
            Chunks::Batches(batches) => batches.groups().to_vec(),
        }
    }

    /// Columns with one value for the whole file, which the groups lack.
    pub fn partitions(&self) -> &[Partition] {
        match &self.0 {
            Chunks::Text(_) => &[],
            #[cfg(feature = "parquet")]
            Chunks::Batches(batches) => batches.partitions(),
        }
    }

    /// Share of the file that was read, from 0 to 1; `None` if its length is unknown.
    pub fn fraction(&self) -> Option<f64> {
        match &self.0 {
            Chunks::Text(text) => text.fraction(),
            #[cfg(feature = "parquet")]
            Chunks::Batches(_) => None,
        }
    }

    /// Up to `max_rows` next rows; `None` at the end.
    pub fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>> {
        match &mut self.0 {
            Chunks::Text(text) => text.next(max_rows),
            #[cfg(feature = "parquet")]
            Chunks::Batches(batches) => batches.next(max_rows),
        }
    }
}
