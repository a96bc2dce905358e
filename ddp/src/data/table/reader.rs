//! Contract between the readers of table formats and their callers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::columns::{ColumnPlan, Partition};
use super::inferred::Destination;
use super::kept::KeptType;
use super::rows::TableRows;
use crate::data::datasets::dataset::Dataset;
use crate::data::error::Result;
use crate::data::source::SourceSpec;
use crate::data::values::notation::Notation;
use crate::data::write::{CellKind, Chunk, Group};

/// The reading half of a format of tables.
#[derive(Debug)]
pub struct TableReaders {
    /// Opens a file to read its rows in order.
    pub(crate) open: fn(&Path, &SourceSpec<'_>) -> Result<Box<dyn TableReader>>,
    /// Opens files that exceed the memory and are decoded on demand; returns `None` if they fit in memory.
    pub(crate) open_large: Option<OpenLarge>,
    /// Opens a file to read its cells as text.
    pub open_cells: OpenCells,
    /// Opens a file to convert its columns: to numbers and texts for arrays, or as they are; `None` for files of text.
    pub open_chunks: Option<OpenChunks>,
}

type OpenCells = fn(&Path, &SourceSpec<'_>) -> Result<Box<dyn CellReader>>;
pub(crate) type OpenChunks = fn(&Path, &SourceSpec<'_>, Destination) -> Result<Box<dyn ChunkReader>>;
type OpenLarge = fn(&[PathBuf], &SourceSpec<'_>) -> Result<Option<Arc<dyn Dataset>>>;

/// Reads the rows of one file in order.
pub(crate) trait TableReader: Send {
    /// Columns of the file and their roles.
    fn plan(&self) -> &ColumnPlan;

    /// Types of the kept columns, one per column of the plan; `None` for text.
    fn kept_types(&self) -> Vec<Option<KeptType>> {
        vec![None; self.plan().kept.len()]
    }

    /// Appends up to `max_rows` rows to `rows` and returns their number, 0 only at the end.
    fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize>;
}

/// Reads the rows of one file as typed columns.
pub trait ChunkReader {
    /// The columns of the file that are converted.
    fn groups(&self) -> Vec<Group>;

    /// Columns with one value for the whole file, which the groups lack.
    fn partitions(&self) -> &[Partition];

    /// Share of the file that was read, from 0 to 1; `None` if its length is unknown.
    fn fraction(&self) -> Option<f64>;

    /// Up to `max_rows` next rows; `None` at the end.
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>>;
}

/// Reads the cells of one file in order.
pub trait CellReader {
    /// Names of the columns.
    fn names(&self) -> &[String];

    /// Notation of numbers and missing values.
    fn notation(&self) -> &Notation;

    /// Columns of row numbers, which are not used.
    fn indices(&self) -> &[usize] {
        &[]
    }

    /// Columns after the first that have no name in the file.
    fn unnamed(&self) -> &[usize] {
        &[]
    }

    /// Whether the first value of each column is a date, where the file does not have types.
    fn are_dates(&self) -> Vec<bool> {
        vec![false; self.names().len()]
    }

    /// Types of the columns, if the file has them. Its rows are counted from 0 then; otherwise lines are, from 1.
    fn types(&self) -> Option<&[ColumnType]> {
        None
    }

    /// Share of the file that was read, from 0 to 1; `None` if its length is unknown.
    fn fraction(&self) -> Option<f64> {
        None
    }

    /// The next row, with one cell per name; `None` at the end.
    ///
    /// # Errors
    /// A row with more or fewer cells.
    fn next(&mut self) -> Result<Option<Record<'_>>>;
}

/// Type of a column in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnType {
    /// Name of the column.
    pub name: String,
    /// Whether a model can use it.
    pub is_usable: bool,
    /// Whether its values are texts, which no model takes for numbers.
    pub is_text: bool,
    /// Meaning of its cells; `None` for values that no cell shows.
    pub cells: Option<CellKind>,
}

/// Cells of one row, without quotes.
pub struct Record<'a> {
    /// Line on which the row starts, from 1, or number of the row, from 0.
    pub line: u64,
    /// The cells, joined.
    pub(super) cells: &'a [u8],
    /// End of each cell.
    pub(super) ends: &'a [usize],
    /// Whether the file marks each cell as a text; empty in formats that do not.
    pub(super) strings: &'a [bool],
}

impl Record<'_> {
    /// Number of cells.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the file marks a cell as a text.
    pub fn is_string(&self, index: usize) -> bool {
        self.strings.get(index).is_some_and(|is_string| *is_string)
    }

    pub(crate) fn cell(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.cells[start..self.ends[index]]
    }

    pub fn cells(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(self.ends);
        starts.zip(self.ends).map(|(&start, &end)| &self.cells[start..end])
    }
}
