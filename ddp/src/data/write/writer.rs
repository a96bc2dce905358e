//! Contract between `data convert` and the writers of the formats.

use std::path::PathBuf;

use super::arrays::{ArrayLayout, ArrayRows, ArrayStorage};
use super::chunk::Chunk;
use super::schema::Schema;
use super::staging::Staging;
use crate::data::error::Result;

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
    pub(crate) writer: Writer,
    /// Endings that `--to` accepts, with those of compressed files.
    pub(crate) endings: &'static [&'static str],
}

/// Values that a writer takes.
#[derive(Debug)]
pub(crate) enum Writer {
    /// Cells of text.
    Text(OpenText),
    /// Typed columns.
    Columns(OpenColumns),
    /// Arrays of numbers.
    Arrays(OpenArrays, ArrayStorage),
}

pub(crate) type OpenText = fn(&[TextColumn], &OutFiles, &mut Staging) -> Result<Box<dyn TextWriter>>;
pub(crate) type OpenColumns = fn(&Schema, &OutFiles, &mut Staging) -> Result<Box<dyn ColumnWriter>>;
pub(crate) type OpenArrays = fn(&ArrayLayout, &OutFiles, &mut Staging) -> Result<Box<dyn ArrayWriter>>;

/// A column of text cells.
#[derive(Debug, Clone)]
pub(crate) struct TextColumn {
    pub(crate) name: String,
    pub(crate) cells: CellKind,
}

/// Meaning of the cells of a column, for formats that distinguish numbers from texts. An empty cell is a missing value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellKind {
    Number,
    Truth,
    Text,
}

/// Writes rows of cells to one file.
pub(crate) trait TextWriter {
    /// Appends a row.
    fn write(&mut self, cells: &mut dyn Iterator<Item = &str>) -> Result<()>;

    /// Completes the file on the disk; it keeps its temporary name.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Writes columns of rows to one file.
pub(crate) trait ColumnWriter {
    /// Appends rows.
    fn write(&mut self, rows: Chunk) -> Result<()>;

    /// Completes the file on the disk; it keeps its temporary name.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Writes arrays to one file, or to one each.
pub(crate) trait ArrayWriter {
    /// Appends rows.
    fn write(&mut self, rows: &ArrayRows) -> Result<()>;

    /// Completes the files on the disk; they keep their temporary names.
    fn finish(self: Box<Self>) -> Result<()>;
}
