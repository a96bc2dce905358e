//! Takes the place of Parquet and Arrow IPC in a build without the feature `parquet`: every call fails with the reason.

use std::path::Path;

use super::source::{ReadOptions, Source};
use crate::data::error::{DataError, Result};
use crate::data::write::{ColumnWriter, OutFiles, Schema, Staging};

pub(crate) fn open(path: &Path, _: &ReadOptions<'_>) -> Result<Source> {
    Err(DataError::ParquetNotBuilt { path: path.to_owned() })
}

pub(crate) fn create(_: &Schema, files: &OutFiles, _: &mut Staging) -> Result<Box<dyn ColumnWriter>> {
    Err(DataError::ParquetNotBuilt { path: files.rows.clone() })
}
