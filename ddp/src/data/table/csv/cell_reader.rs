//! Reads the cells of a CSV file as text, to inspect them rather than to train on them.

use std::path::{Path, PathBuf};

use super::dialect::Dialect;
use super::header::{self, Header};
use super::input::Input;
use super::read_error::unreadable;
use crate::data::CellProblem;
use crate::data::compression::Compression;
use crate::data::error::Result;
use crate::data::errors::csv_error::CsvError;
use crate::data::source::SourceSpec;
use crate::data::table::reader::{CellReader, Record};
use crate::data::values::notation::Notation;
use crate::storage::user_file;

/// Opens a file to read its cells.
///
/// # Errors
/// A file that can't be read, or a first row that does not hold names.
pub(crate) fn open_cells(path: &Path, spec: &SourceSpec<'_>) -> Result<Box<dyn CellReader>> {
    Ok(Box::new(CsvCells::open(path, spec)?))
}

/// Reads the cells of one file.
struct CsvCells {
    path: PathBuf,
    input: Input,
    dialect: Dialect,
    names: Vec<String>,
    unnamed: Vec<usize>,
    /// The last column if it has no name: all of its cells must be empty.
    blank: Option<usize>,
    /// Length of an uncompressed file.
    n_bytes: Option<u64>,
}

impl CsvCells {
    fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let compression = Compression::of_file(path);
        let length = file.metadata().ok().filter(|data| data.is_file() && compression == Compression::None);
        let n_bytes = length.map(|data| data.len());
        let content = compression.reader(file, path)?;
        let input = Input::new(content).map_err(|error| unreadable(path, error))?;
        let mut input = input.within(spec.memory_bytes);
        let dialect = Dialect::find(&mut input, spec).map_err(|error| unreadable(path, error))?;
        let Header { names, unnamed } = header::read(&mut input, path, spec.data.header, dialect.n_cells)?;
        let blank = unnamed.last().copied().filter(|&at| at + 1 == names.len());
        let blank = blank.filter(|&at| !spec.data.drop.contains(&names[at]));
        Ok(CsvCells { path: path.to_owned(), input, dialect, names, unnamed, blank, n_bytes })
    }
}

impl CellReader for CsvCells {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn notation(&self) -> &Notation {
        &self.dialect.notation
    }

    fn indices(&self) -> &[usize] {
        if self.names[0].is_empty() { &[0] } else { &[] }
    }

    fn unnamed(&self) -> &[usize] {
        &self.unnamed
    }

    fn are_dates(&self) -> Vec<bool> {
        let mut are_dates = self.dialect.are_dates.clone();
        are_dates.resize(self.names.len(), false);
        are_dates
    }

    fn fraction(&self) -> Option<f64> {
        self.n_bytes.map(|n_bytes| self.input.n_read() as f64 / n_bytes.max(1) as f64)
    }

    fn next(&mut self) -> Result<Option<Record<'_>>> {
        let record = self.input.record().map_err(|error| unreadable(&self.path, error))?;
        match record {
            Some(record) if record.len() != self.names.len() => Err(CsvError::Ragged {
                path: self.path.clone(),
                line: record.line,
                expected: self.names.len(),
                got: record.len(),
            }
            .into()),
            Some(record) => match self.blank.filter(|&at| !record.cell(at).trim_ascii().is_empty()) {
                Some(at) => Err(CsvError::Cell {
                    path: self.path.clone(),
                    line: record.line,
                    column: self.names[at].clone(),
                    problem: CellProblem::unnamed(record.cell(at), &self.names[at]),
                }
                .into()),
                None => Ok(Some(record)),
            },
            None => Ok(None),
        }
    }
}
