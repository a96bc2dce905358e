//! Takes the place of Arrow IPC in a build without the feature `parquet`: every call fails with the reason.

use std::path::Path;

use crate::data::error::{DataError, Result};
use crate::data::source::SourceSpec;
use crate::data::table::inferred::Destination;
use crate::data::table::reader::{CellReader, ChunkReader, TableReader};
use crate::data::write::{ColumnWriter, OutFiles, Schema, Staging};

pub(crate) fn open(path: &Path, _: &SourceSpec<'_>) -> Result<Box<dyn TableReader>> {
    Err(DataError::ParquetNotBuilt { path: path.to_owned() })
}

pub(crate) fn open_cells(path: &Path, _: &SourceSpec<'_>) -> Result<Box<dyn CellReader>> {
    Err(DataError::ParquetNotBuilt { path: path.to_owned() })
}

pub(crate) fn open_chunks(path: &Path, _: &SourceSpec<'_>, _: Destination) -> Result<Box<dyn ChunkReader>> {
    Err(DataError::ParquetNotBuilt { path: path.to_owned() })
}

pub(crate) fn create(_: &Schema, files: &OutFiles, _: &mut Staging) -> Result<Box<dyn ColumnWriter>> {
    Err(DataError::ParquetNotBuilt { path: files.rows.clone() })
}

pub(crate) fn has_signature(begin: &[u8]) -> bool {
    begin.starts_with(b"ARROW1")
}
