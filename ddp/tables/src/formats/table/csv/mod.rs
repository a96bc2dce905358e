//! CSV: a row of names, then rows of cells.
//!
//! Errors name file, line and column. Delimiter and decimal mark are found in the first rows (`dialect`); runs of blanks that
//! separate cells become tabs on the way (`blanks`). The text is split into records (`input`); a reader of plain numbers may
//! take it line by line instead.

mod blanks;
mod input;
mod dialect;

use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};

use ddp::config::table_options::Header;
use ddp::storage::user_file;
use ddp::storage::user_file::FileError;
pub(crate) use input::Input;

use self::dialect::Dialect;
use self::input::{QuoteUnclosed, RecordTooLarge};
use crate::formats::compression::Compression;
use crate::formats::error::{CellProblem, CsvError, Result, RowsError};
use crate::formats::table::source::{FileColumns, ReadOptions, Record, Source, TextSource};
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Opens a CSV file: finds its notation and reads its header; its records follow.
///
/// # Errors
/// A file that can't be read, or a first row that does not hold names.
pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<Source> {
    let (mut source, is_file) = opened(path, options)?;
    if options.has_parts && is_file {
        source.find_dates(options)?;
    }
    Ok(Source::Text(Box::new(source)))
}

/// The file, and whether it can be opened again.
fn opened(path: &Path, options: &ReadOptions<'_>) -> Result<(CsvSource, bool)> {
    let file = user_file::open("data file", path)?;
    let compression = Compression::from_opened(&file, path);
    let length = file.metadata().ok().filter(|data| data.is_file()).map(|data| data.len());
    let n_bytes = length.filter(|_| compression == Compression::None);
    let input = Input::new(compression.reader(file, path)?).map_err(|error| unreadable(path, error))?;
    let source = CsvSource::new(input.within(options.memory_bytes), path, options, n_bytes)?;
    Ok((source, length.is_some()))
}

/// A CSV file.
struct CsvSource {
    path: PathBuf,
    input: Input,
    columns: FileColumns,
    dialect: Dialect,
    has_line_feeds: bool,
    /// Length of an uncompressed file.
    n_bytes: Option<u64>,
}

/// Reads `text`, the content of the file `path`, in blocks of `block_bytes`.
#[doc(hidden)]
pub fn from_text(
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
        let has_line_feeds = input.has_line_feeds();
        let mut columns = read_header(&mut input, path, options.header, &dialect)?;
        columns.are_dates = dialect.are_dates.iter().map(|is_date| *is_date == Some(true)).collect();
        columns.are_dates.resize(columns.names.len(), false);
        input.enlarge_block();
        Ok(CsvSource { path: path.to_owned(), input, columns, dialect, has_line_feeds, n_bytes })
    }

    /// Reads the file, opened again, until each column in use has shown whether its first value is a date.
    fn find_dates(&mut self, options: &ReadOptions<'_>) -> Result<()> {
        let mut are_dates = std::mem::take(&mut self.dialect.are_dates);
        are_dates.resize(self.columns.names.len(), None);
        for (is_date, name) in are_dates.iter_mut().zip(&self.columns.names) {
            *is_date = is_date.or(options.dropped.contains(name).then_some(false));
        }
        if !are_dates.contains(&None) {
            return Ok(());
        }
        let (mut rows, _) = opened(&self.path, options)?;
        // A faulty row is an error where the rows are read.
        while let Ok(Some(record)) = rows.next(true) {
            for (is_date, cell) in are_dates.iter_mut().zip(record.cells()) {
                *is_date = is_date.or_else(|| self.dialect.notation.is_date(cell));
            }
            if !are_dates.contains(&None) {
                break;
            }
        }
        self.columns.are_dates = are_dates.into_iter().map(|is_date| is_date == Some(true)).collect();
        Ok(())
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

    fn found_decimal(&self) -> Option<DecimalMark> {
        (self.dialect.delimiter != b',').then_some(self.dialect.notation.decimal)
    }

    fn delimiter(&self) -> Option<u8> {
        Some(self.dialect.delimiter)
    }

    fn has_lines(&self) -> bool {
        // Else each block would be searched for lines once per record.
        self.has_line_feeds
    }

    fn lines(&mut self) -> Result<Option<(&[u8], usize)>> {
        let is_there = self.input.next_line().map_err(|error| unreadable(&self.path, error))?;
        Ok(is_there.then(|| (self.input.rest(), self.input.len_of_lines())))
    }

    fn skip_lines(&mut self, len: usize, n_lines: usize) {
        self.input.skip_lines(len, n_lines);
    }
}

/// Reads the column names, which must be unique; without any, the first row stays to be read.
///
/// The first name may be empty. Other columns without a name are called by their place as in pandas: `Unnamed: 2` is the third.
///
/// - `dialect`: the cells of the first row, and what was found beside it
///
/// # Errors
/// [`CsvError::Empty`], [`CsvError::Comment`], [`CsvError::NoHeader`], [`CsvError::DuplicateColumn`].
fn read_header(input: &mut Input, path: &Path, header: Header, dialect: &Dialect) -> Result<FileColumns> {
    let n_cells = dialect.n_cells;
    if header == Header::Absent && n_cells > 0 {
        let names = (1..=n_cells).map(|number| format!("column_{number}")).collect();
        return Ok(FileColumns { names, ..FileColumns::default() });
    }
    let Some(record) = input.record().map_err(|error| unreadable(path, error))? else {
        return Err(CsvError::Empty { path: path.to_owned() }.into());
    };
    let mut names: Vec<String> = Vec::with_capacity(record.n_cells());
    for (index, cell) in record.cells().enumerate() {
        let name = std::str::from_utf8(cell).map_err(|_| CsvError::Cell {
            path: path.to_owned(),
            line: 1,
            column: (index + 1).to_string(),
            problem: CellProblem::NotUtf8,
        })?;
        names.push(name.trim().to_owned());
    }
    if dialect.has_row_names {
        names.insert(0, String::new());
    }
    let unnamed: Vec<usize> = (1..names.len()).filter(|&index| names[index].is_empty()).collect();
    unnamed.iter().for_each(|&index| names[index] = format!("Unnamed: {index}"));
    if header == Header::Auto && n_cells == 1 && names[0].starts_with('#') {
        return Err(CsvError::Comment { path: path.to_owned(), text: names.swap_remove(0) }.into());
    }
    if header == Header::Auto && looks_like_row(&names) {
        return Err(CsvError::NoHeader { path: path.to_owned(), cells: names }.into());
    }
    let mut sorted: Vec<_> = names.iter().enumerate().map(|(index, name)| (name, index + 1)).collect();
    sorted.sort();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(CsvError::DuplicateColumn {
            path: path.to_owned(),
            column: pair[0].0.clone(),
            first: pair[0].1,
            second: pair[1].1,
        }
        .into());
    }
    if unnamed.last().is_some_and(|&index| index + 1 == names.len()) {
        // The rows may end without the delimiter of the header.
        input.pad_to(names.len());
    }
    let indices = if names[0].is_empty() { vec![0] } else { Vec::new() };
    let title = |title: &String| format!("the line \"{title}\" above the names is taken for a title");
    let notes = dialect.titles.iter().map(title).collect();
    Ok(FileColumns { names, unnamed, indices, notes, ..FileColumns::default() })
}

/// Whether the first row is one of data: all of its cells are numbers, or some are that do not ascend. Numbers that name columns, such
/// as years or wavelengths, ascend.
fn looks_like_row(names: &[String]) -> bool {
    let numbers: Vec<f64> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.len() == names.len() || numbers.windows(2).any(|pair| pair[0] >= pair[1])
}

/// The error of a file whose text can't be read.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> RowsError {
    use io::ErrorKind as K;
    if let Some(&RecordTooLarge { line, max_bytes }) = error.get_ref().and_then(|error| error.downcast_ref())
    {
        return RowsError::RecordTooLarge { path: path.to_owned(), line, max_mib: max_bytes >> 20 };
    }
    if let Some(&QuoteUnclosed { line }) = error.get_ref().and_then(|error| error.downcast_ref()) {
        return CsvError::QuoteUnclosed { path: path.to_owned(), line }.into();
    }
    let compression = Compression::from_file(path);
    let is_content = matches!(error.kind(), K::UnexpectedEof | K::InvalidData | K::InvalidInput | K::Other);
    if compression != Compression::None && is_content {
        return RowsError::Malformed {
            path: path.to_owned(),
            format: compression.name(),
            reason: error.to_string(),
            hint: "is the file cut off, or still being written?",
        };
    }
    FileError::Unreadable { what: "data file", path: path.to_owned(), source: error }.into()
}

/// A text as a cell; quoted if it holds a delimiter or a quote.
pub fn quoted(text: &str, delimiter: char) -> String {
    if text.contains(['"', delimiter, '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
