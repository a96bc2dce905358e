//! Contract between the formats of tables and their callers: a file is opened once, as records of text or as record batches.
//!
//! ```
//! use ddp_tables::formats::table::csv;
//! use ddp_tables::formats::table::source::{ReadOptions, Source};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("rows.csv");
//! std::fs::write(&path, "x;label\n1,5;\"a;b\"\n")?;
//! match csv::open(&path, &ReadOptions::default())? {
//!     Source::Text(mut rows) => {
//!         assert_eq!(rows.columns().names, ["x", "label"]);
//!         let record = rows.next(false)?.expect("a row");
//!         assert_eq!((record.line, record.cell(1)), (2, &b"a;b"[..]));
//!     }
//!     #[cfg(feature = "parquet")]
//!     Source::Batches(_) => unreachable!("CSV is text"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;

use ddp::config::table_options::{Decimal, Delimiter, Header};

use crate::formats::error::Result;
#[cfg(feature = "parquet")]
use crate::formats::table::batch_source::BatchSource;
use crate::formats::write::CellKind;
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Columns that a table may have, elements of lists included. A longer header is a mistake or an attack: more columns fit an array.
pub const MAX_COLUMNS: usize = 1 << 20;

/// Bytes that one page or buffer of a file may take once it is decompressed, if rows may take `memory_bytes`.
#[cfg(feature = "parquet")]
pub(super) fn decode_limit(memory_bytes: u64) -> u64 {
    // Writers make pages and batches of some MiB, whatever the memory of readers.
    memory_bytes.max(64 << 20)
}

/// The reading half of a format of tables.
#[derive(Debug)]
pub struct TableFormat {
    /// Whether its files are text, whose columns have no types.
    pub is_text: bool,
    /// Whether row groups of its files can be decoded on demand.
    pub has_row_groups: bool,
    /// Opens a file.
    pub open: fn(&Path, &ReadOptions<'_>) -> Result<Source>,
}

/// Settings for reading files. Most of them concern files of text only.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions<'a> {
    /// Character between cells.
    pub delimiter: Delimiter,
    /// Whether the first line holds names.
    pub header: Header,
    /// Decimal mark of numbers.
    pub decimal: Decimal,
    /// Mark of a file whose first rows leave it open.
    pub known_decimal: Option<DecimalMark>,
    /// Texts that mark a missing value, in addition to the usual ones.
    pub missing_values: &'a [String],
    /// Columns that are not used: their lists need not be equally long.
    pub dropped: &'a [String],
    /// The column of class labels: its numbers are read as the names that the file has for them.
    pub label: Option<&'a str>,
    /// Whether dates become parts: their columns must be known before the rows are read.
    pub has_parts: bool,
    /// Memory for rows; one row takes a fraction of it.
    pub memory_bytes: u64,
}

impl Default for ReadOptions<'_> {
    /// Finds the settings in the first rows of a file, and reads rows in any memory.
    fn default() -> Self {
        ReadOptions {
            delimiter: Delimiter::Auto,
            header: Header::Auto,
            decimal: Decimal::Auto,
            known_decimal: None,
            missing_values: &[],
            dropped: &[],
            label: None,
            has_parts: false,
            memory_bytes: u64::MAX,
        }
    }
}

/// An open file.
pub enum Source {
    /// Records of text.
    Text(Box<dyn TextSource>),
    /// Columns with types.
    #[cfg(feature = "parquet")]
    Batches(Box<dyn BatchSource>),
}

/// A file of text, read once from its first record to its last.
pub trait TextSource: Send {
    /// The columns.
    fn columns(&self) -> &FileColumns;

    /// Notation of numbers and missing values.
    fn notation(&self) -> &Notation;

    /// Decimal mark that was found in the first rows; `None` if the format or commas between cells decide.
    fn found_decimal(&self) -> Option<DecimalMark> {
        None
    }

    /// Share of the file that was read, from 0 to 1; `None` if its length is unknown.
    fn fraction(&self) -> Option<f64>;

    /// The next record, with one cell per column; `None` at the end.
    ///
    /// # Errors
    /// A record with other cells than the columns, unless it `may_be_bad` and can be marked as [`Record::is_bad`].
    fn next(&mut self, may_be_bad: bool) -> Result<Option<Record<'_>>>;

    /// The delimiter of cells, if a line without quotes is a record; only then are there [`TextSource::lines`].
    fn delimiter(&self) -> Option<u8> {
        None
    }

    /// Whether its lines may be read at once.
    fn has_lines(&self) -> bool {
        true
    }

    /// The text from the next line that is not empty, and the length of its whole lines, at least one, with their ends; at least eight
    /// more bytes follow. `None` at the end.
    fn lines(&mut self) -> Result<Option<(&[u8], usize)>> {
        Ok(None)
    }

    /// Skips lines of `len` bytes, including their ends, in place of reading their records.
    fn skip_lines(&mut self, _len: usize, _n_lines: usize) {}
}

/// Columns of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileColumns {
    /// Names of the columns.
    pub names: Vec<String>,
    /// Whether a column holds dates: in a file of text, whether its first value is one.
    pub are_dates: Vec<bool>,
    /// Columns of row numbers, which pandas writes unasked.
    pub indices: Vec<usize>,
    /// Columns after the first that have no name in the file.
    pub unnamed: Vec<usize>,
    /// Guesses about the columns: ends of sentences.
    pub notes: Vec<String>,
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
    /// The cells, one after the other.
    pub cells: &'a [u8],
    /// End of each cell.
    pub ends: &'a [usize],
    /// Bytes between two cells.
    pub gap: usize,
    /// Whether the file marks each cell as a text; empty in formats that do not.
    pub strings: &'a [bool],
    /// Whether the row has a list of another length than the others, whose cells are empty.
    pub is_bad: bool,
}

impl Record<'_> {
    /// Number of cells.
    pub fn n_cells(&self) -> usize {
        self.ends.len()
    }

    /// Whether the file marks a cell as a text.
    pub fn is_string(&self, index: usize) -> bool {
        self.strings.get(index).is_some_and(|is_string| *is_string)
    }

    /// Cell number `index`.
    pub fn cell(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] + self.gap };
        &self.cells[start..self.ends[index]]
    }

    /// The cells in the order of the columns.
    pub fn cells(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.n_cells()).map(|index| self.cell(index))
    }
}
