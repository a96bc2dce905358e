//! CSV: rows of cells behind a first row of names, every cell checked.
//!
//! All columns but those with another use are features. Errors name file, line and column.
//!
//! Lines of plain numbers are taken in place ([`plain`]); a row that holds anything else is read once more cell by cell
//! ([`input`], [`cells`]), which finds the same and says what is wrong with it.

mod cell_reader;
mod cells;
mod error;
mod header;
mod input;
mod number;
mod plain;

use std::io;
use std::path::{Path, PathBuf};

use super::columns::ColumnPlan;
use super::rows::TableRows;
use crate::data::compression::Compression;
use crate::data::error::{DataError, Result};
use crate::data::source::SourceSpec;
use crate::storage::user_file::{self, FileError};
pub(crate) use cell_reader::CellReader;
pub(crate) use cells::is_missing;
pub use error::CsvError;
use input::{Input, RecordTooLarge};

/// Reads the rows of one file.
pub(crate) struct CsvReader {
    path: PathBuf,
    input: Input,
    plan: ColumnPlan,
    /// Length of a file that is not compressed.
    n_bytes: Option<u64>,
}

impl CsvReader {
    /// Opens the file and reads its first row.
    pub(crate) fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let compression = Compression::of(path);
        let length = file.metadata().ok().filter(|data| data.is_file() && compression == Compression::None);
        let n_bytes = length.map(|data| data.len());
        let content = compression.reader(file, path)?;
        let input = Input::new(content).map_err(|error| unreadable(path, error))?;
        Ok(CsvReader { n_bytes, ..Self::from_input(input, path, spec)? })
    }

    fn from_input(mut input: Input, path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let names = header::read(&mut input, path)?;
        let plan = ColumnPlan::new(path, names, spec)?;
        Ok(CsvReader { path: path.to_owned(), input, plan, n_bytes: None })
    }

    pub(crate) fn plan(&self) -> &ColumnPlan {
        &self.plan
    }

    /// The part of the file that was read, from 0 to 1, unless it is compressed or no file.
    pub(crate) fn fraction(&self) -> Option<f64> {
        self.n_bytes.map(|n_bytes| self.input.n_read() as f64 / n_bytes.max(1) as f64)
    }

    /// Appends up to `max_rows` rows to `rows`; how many, 0 only at the end.
    pub(crate) fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        for n in 0..max_rows {
            if !self.input.next_line().map_err(|error| unreadable(&self.path, error))? {
                return Ok(n);
            }
            match plain::row(self.input.rest(), &self.plan.roles, rows) {
                Some(len) => self.input.skip_line(len),
                None => {
                    rows.drop_rows_from(rows.n_rows - 1);
                    self.exact_row(rows)?;
                }
            }
        }
        Ok(max_rows)
    }

    /// Appends the next row, whatever its cells look like.
    fn exact_row(&mut self, rows: &mut TableRows) -> Result<()> {
        let record = self.input.record().map_err(|error| unreadable(&self.path, error))?;
        let record = record.expect("the input stands at a line that is not empty");
        if record.len() != self.plan.names.len() {
            return Err(CsvError::Ragged {
                path: self.path.clone(),
                line: record.line,
                expected: self.plan.names.len(),
                got: record.len(),
            }
            .into());
        }
        let row = rows.begin_row();
        for ((cell, role), name) in record.cells().zip(&self.plan.roles).zip(&self.plan.names) {
            cells::put(rows, row, *role, cell).map_err(|problem| CsvError::Cell {
                path: self.path.clone(),
                line: record.line,
                column: name.clone(),
                problem,
            })?;
        }
        Ok(())
    }
}

/// What stops the reading: the disk, or a compressed file that is none or not whole.
fn unreadable(path: &Path, error: io::Error) -> DataError {
    use io::ErrorKind as K;
    if let Some(&RecordTooLarge { line, max_bytes }) = error.get_ref().and_then(|error| error.downcast_ref())
    {
        return DataError::RecordTooLarge { path: path.to_owned(), line, max_mib: max_bytes >> 20 };
    }
    let compression = Compression::of(path);
    let is_content = matches!(error.kind(), K::UnexpectedEof | K::InvalidData | K::InvalidInput | K::Other);
    if compression != Compression::None && is_content {
        return DataError::Malformed {
            path: path.to_owned(),
            format: compression.name(),
            reason: error.to_string(),
            hint: "is the file cut off, or still being written?",
        };
    }
    FileError::Unreadable { what: "data file", path: path.to_owned(), source: error }.into()
}

#[cfg(test)]
#[path = "csv_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "csv_reference_tests.rs"]
mod reference_tests;
