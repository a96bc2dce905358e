//! Takes the place of Parquet and Arrow IPC in a build without the feature `parquet`: every call fails with the reason.

use std::path::Path;

use crate::formats::error::{Result, RowsError};
use crate::formats::table::source::{ReadOptions, Source};
use crate::formats::write::{ColumnWriter, OutFiles, Schema, Staging};

pub(crate) fn open(path: &Path, _: &ReadOptions<'_>) -> Result<Source> {
    Err(RowsError::ParquetNotBuilt { path: path.to_owned() })
}

pub(crate) fn create(_: &Schema, files: &OutFiles, _: &mut Staging) -> Result<Box<dyn ColumnWriter>> {
    Err(RowsError::ParquetNotBuilt { path: files.rows.clone() })
}
