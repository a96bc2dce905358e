//! Opens a CSV file: finds its notation, reads its header, then its records.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::dialect::Dialect;
use super::header;
use super::input::Input;
use super::read_error::unreadable;
use crate::compression::Compression;
use crate::error::CsvError;
use crate::error::Result;
use crate::table::source::{FileColumns, ReadOptions, Record, Source, TextSource};
use crate::user_file;
use crate::values::notation::Notation;

/// Opens a file and reads its first row.
///
/// # Errors
/// A file that can't be read, or a first row that does not hold names.
pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<Source> {
    let file = user_file::open("data file", path)?;
    let compression = Compression::of_file(path);
    let length = file.metadata().ok().filter(|data| data.is_file() && compression == Compression::None);
    let n_bytes = length.map(|data| data.len());
    let input = Input::new(compression.reader(file, path)?).map_err(|error| unreadable(path, error))?;
    Ok(Source::Text(Box::new(CsvSource::new(input.within(options.memory_bytes), path, options, n_bytes)?)))
}

/// A CSV file.
struct CsvSource {
    path: PathBuf,
    input: Input,
    columns: FileColumns,
    dialect: Dialect,
    /// Length of an uncompressed file.
    n_bytes: Option<u64>,
}

/// Reads `text`, the content of the file `path`, in blocks of `block_bytes`.
#[doc(hidden)]
pub fn of_text(
    text: Box<dyn Read + Send>,
    block_bytes: usize,
    path: &Path,
    options: &ReadOptions<'_>,
) -> Result<Box<dyn TextSource>> {
    let input = Input::with_block(text, block_bytes).map_err(|error| unreadable(path, error))?;
    Ok(Box::new(CsvSource::new(input, path, options, None)?))
}

impl CsvSource {
    fn new(mut input: Input, path: &Path, options: &ReadOptions<'_>, n_bytes: Option<u64>) -> Result<Self> {
        let dialect = Dialect::find(&mut input, options).map_err(|error| unreadable(path, error))?;
        let mut columns = header::read(&mut input, path, options.header, &dialect)?;
        columns.are_dates.clone_from(&dialect.are_dates);
        columns.are_dates.resize(columns.names.len(), false);
        Ok(CsvSource { path: path.to_owned(), input, columns, dialect, n_bytes })
    }
}

impl TextSource for CsvSource {
    fn columns(&self) -> &FileColumns {
        &self.columns
    }

    fn notation(&self) -> &Notation {
        &self.dialect.notation
    }

    fn fraction(&self) -> Option<f64> {
        self.n_bytes.map(|n_bytes| self.input.n_read() as f64 / n_bytes.max(1) as f64)
    }

    fn next(&mut self, _: bool) -> Result<Option<Record<'_>>> {
        let Some(record) = self.input.record().map_err(|error| unreadable(&self.path, error))? else {
            return Ok(None);
        };
        let expected = self.columns.names.len();
        if record.n_cells() != expected {
            let (path, line, got) = (self.path.clone(), record.line, record.n_cells());
            return Err(CsvError::Ragged { path, line, expected, got }.into());
        }
        Ok(Some(record))
    }

    fn delimiter(&self) -> Option<u8> {
        Some(self.dialect.delimiter)
    }

    fn lines(&mut self) -> Result<Option<&[u8]>> {
        let is_there = self.input.next_line().map_err(|error| unreadable(&self.path, error))?;
        Ok(is_there.then(|| self.input.rest()))
    }

    fn skip_line(&mut self, len: usize) {
        self.input.skip_line(len);
    }
}
