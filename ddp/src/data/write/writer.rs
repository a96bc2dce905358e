//! Contract between `data convert` and the writers of the formats.

use std::path::PathBuf;

use super::chunk::Chunk;
use super::schema::{Schema, Storage};
use super::staging::Staging;
use crate::data::error::Result;

/// Writes the rows of one file.
pub(crate) trait RowWriter {
    /// Appends rows; the first has the number `first` among all rows of the command.
    fn write(&mut self, rows: &Chunk<'_>, first: usize) -> Result<()>;

    /// Completes the file and syncs it to disk.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Paths for the rows of one writer.
#[derive(Debug, Clone)]
pub(crate) struct OutFiles {
    pub(crate) rows: PathBuf,
    /// Labels, for formats whose files hold one array.
    pub(crate) labels: PathBuf,
    /// Weights, for formats whose files hold one array.
    pub(crate) weights: PathBuf,
}

/// The writing half of a format.
#[derive(Debug)]
pub(crate) struct WriteFormat {
    pub(crate) open: fn(Schema, &OutFiles, &mut Staging) -> Result<Box<dyn RowWriter>>,
    /// Endings that `--to` accepts, with those of compressed files.
    pub(crate) endings: &'static [&'static str],
    pub(crate) storage: Storage,
}
