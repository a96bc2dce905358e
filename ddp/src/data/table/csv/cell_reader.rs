//! The rows of a file as texts, for who wants to see what is there rather than train on it.

use std::path::{Path, PathBuf};

use super::input::{Input, Record};
use super::{header, unreadable};
use crate::data::compression::Compression;
use crate::data::error::Result;
use crate::data::table::CsvError;
use crate::storage::user_file;

/// Reads the cells of one file.
pub(crate) struct CellReader {
    path: PathBuf,
    input: Input,
    names: Vec<String>,
}

impl CellReader {
    /// Opens the file and reads its first row.
    ///
    /// # Errors
    /// A file that can't be read, or a first row that does not hold names.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let content = Compression::of(path).reader(file, path)?;
        let mut input = Input::new(content).map_err(|error| unreadable(path, error))?;
        let names = header::read(&mut input, path)?;
        Ok(CellReader { path: path.to_owned(), input, names })
    }

    /// Names of the columns.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The next row, as many cells as there are names; None at the end.
    ///
    /// # Errors
    /// A row of another length.
    pub(crate) fn next(&mut self) -> Result<Option<Record<'_>>> {
        let record = self.input.record().map_err(|error| unreadable(&self.path, error))?;
        match record {
            Some(record) if record.len() != self.names.len() => Err(CsvError::Ragged {
                path: self.path.clone(),
                line: record.line,
                expected: self.names.len(),
                got: record.len(),
            }
            .into()),
            record => Ok(record),
        }
    }
}
