//! Writing rows to files: shared by the writers of all formats.
//!
//! Rows come as a [`Chunk`] of typed blocks, one per group of the [`Schema`]. Files of arrays get them encoded by an
//! [`ArrayEncoder`]. Files keep temporary names in a [`Staging`] until all of them are complete.

mod chunk;
mod encode;
mod arrays;
mod staging;
#[cfg(feature = "parquet")]
mod record_batches;

use std::path::PathBuf;

pub use arrays::{ArrayEncoder, ArrayFiles, ArrayLayout, ArrayRows, ArrayStorage, Codes, cast_features};
pub use chunk::{Block, Chunk, Group, Kind, Nulls, Numbers, Purpose, Schema};
pub use encode::{common as common_type, first_not_finite};
#[cfg(feature = "parquet")]
pub use record_batches::RecordBatches;
pub use staging::{Staging, TextFile};

use crate::formats::error::Result;

/// Paths for the rows of one writer.
#[derive(Debug, Clone)]
pub struct OutFiles {
    /// File of the rows.
    pub rows: PathBuf,
    /// Labels, for formats whose files hold one array.
    pub labels: PathBuf,
    /// Weights, for formats whose files hold one array.
    pub weights: PathBuf,
}

/// The writing half of a format.
#[derive(Debug)]
pub struct WriteFormat {
    /// Writer of its files.
    pub writer: Writer,
    /// Endings that `--to` accepts, with those of compressed files.
    pub endings: &'static [&'static str],
}

/// Values that a writer takes.
#[derive(Debug)]
pub enum Writer {
    /// Cells of text.
    Text(OpenText),
    /// Typed columns.
    Columns(OpenColumns),
    /// Arrays of numbers.
    Arrays(OpenArrays, ArrayStorage),
}

/// Opens a writer of rows as text.
pub type OpenText = fn(&[TextColumn], &OutFiles, &mut Staging) -> Result<Box<dyn TextWriter>>;
/// Opens a writer of columns.
pub type OpenColumns = fn(&Schema, &OutFiles, &mut Staging) -> Result<Box<dyn ColumnWriter>>;
/// Opens a writer of arrays.
pub type OpenArrays = fn(&ArrayLayout, &OutFiles, &mut Staging) -> Result<Box<dyn ArrayWriter>>;

/// A column of text cells.
#[derive(Debug, Clone)]
pub struct TextColumn {
    /// Name in the header.
    pub name: String,
    /// Type of the cells.
    pub cells: CellKind,
}

/// Meaning of the cells of a column, for formats that distinguish numbers from texts. An empty cell is a missing value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellKind {
    /// Numbers.
    Number,
    /// Truth values.
    Truth,
    /// Strings.
    Text,
}

/// Writes rows of cells to one file.
pub trait TextWriter {
    /// Appends a row.
    fn write(&mut self, cells: &mut dyn Iterator<Item = &str>) -> Result<()>;

    /// Completes the file on the disk; it keeps its temporary name.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Writes columns of rows to one file.
pub trait ColumnWriter {
    /// Appends rows.
    fn write(&mut self, rows: Chunk) -> Result<()>;

    /// Completes the file on the disk; it keeps its temporary name.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Writes arrays to one file, or to one each.
pub trait ArrayWriter {
    /// Appends rows.
    fn write(&mut self, rows: &ArrayRows) -> Result<()>;

    /// Completes the files on the disk; they keep their temporary names.
    fn finish(self: Box<Self>) -> Result<()>;
}
