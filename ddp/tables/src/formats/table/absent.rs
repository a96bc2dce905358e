//! Takes the place of Parquet and Arrow IPC in a build without the feature `parquet`: every call fails with the reason.

use std::path::Path;

use crate::formats::error::{Result, RowsError};
use crate::formats::table::source::{ReadOptions, Source};
use crate::formats::write::{Chunk, Schema, Staging};

pub(crate) fn open(path: &Path, _: &ReadOptions<'_>) -> Result<Source> {
    Err(RowsError::ParquetNotBuilt { path: path.to_owned() })
}

/// An empty type, which can't be constructed.
pub enum ParquetWriter {}

#[allow(missing_docs)] // Those of the other build have them.
impl ParquetWriter {
    pub fn create(_: &Schema, path: &Path, _: &mut Staging) -> Result<Self> {
        Err(RowsError::ParquetNotBuilt { path: path.to_owned() })
    }

    pub fn write(&mut self, _: Chunk) -> Result<()> {
        match *self {}
    }

    pub fn finish(self) -> Result<()> {
        match self {}
    }
}
