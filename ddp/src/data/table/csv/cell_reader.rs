//! Reads the cells of a CSV file as text, to inspect them rather than to train on them.

use std::path::{Path, PathBuf};

use super::dialect::Dialect;
use super::error::CsvError;
use super::header;
use super::input::Input;
use super::read_error::unreadable;
use crate::data::compression::Compression;
use crate::data::error::Result;
use crate::data::source::SourceSpec;
use crate::data::table::cell::Notation;
use crate::data::table::reader::{CellReader, Record};
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
}

impl CsvCells {
    fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let content = Compression::of_file(path).reader(file, path)?;
        let mut input = Input::new(content).map_err(|error| unreadable(path, error))?;
        let dialect = Dialect::find(&mut input, spec).map_err(|error| unreadable(path, error))?;
        let names = header::read(&mut input, path)?;
        Ok(CsvCells { path: path.to_owned(), input, dialect, names })
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
            record => Ok(record),
        }
    }
}
