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
    /// Opens a file whose cells are copied as text; `None` for formats that hold values.
    pub(crate) open_text: Option<OpenText>,
    /// Endings that `--to` accepts, with those of compressed files.
    pub(crate) endings: &'static [&'static str],
    pub(crate) storage: Storage,
}

type OpenText = fn(&[String], &OutFiles, &mut Staging) -> Result<Box<dyn TextWriter>>;

/// Writes rows of cells to one file.
pub(crate) trait TextWriter {
    /// Appends a row.
    fn write(&mut self, cells: &mut dyn Iterator<Item = &str>) -> Result<()>;

    /// Completes the file on the disk; it keeps its temporary name.
    fn finish(self: Box<Self>) -> Result<()>;
}
