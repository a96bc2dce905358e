//! Takes the place of Parquet in a build without the feature `parquet`: every call fails with the reason.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::datasets::dataset::Dataset;
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

pub(crate) fn open_large(_: &[PathBuf], _: &SourceSpec<'_>) -> Result<Option<Arc<dyn Dataset>>> {
    Ok(None)
}

pub(crate) fn open_chunks(path: &Path, _: &SourceSpec<'_>, _: Destination) -> Result<Box<dyn ChunkReader>> {
    Err(DataError::ParquetNotBuilt { path: path.to_owned() })
}

pub(crate) fn create(_: &Schema, files: &OutFiles, _: &mut Staging) -> Result<Box<dyn ColumnWriter>> {
    Err(DataError::ParquetNotBuilt { path: files.rows.clone() })
}
