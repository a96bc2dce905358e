//! CSV: rows of cells behind a first row of names, every cell checked.
//!
//! All columns but those with another use are features. Errors name file, line and column.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, Position, Reader, ReaderBuilder};

use super::columns::{ColumnPlan, Role};
use super::rows::{TableRows, TargetCell, TargetCells};
use crate::data::open::{Compression, SourceSpec};
use crate::error::{CellProblem, Error, Result};
use crate::files;

/// Reads the rows of one file.
pub(crate) struct CsvReader {
    path: PathBuf,
    reader: Reader<Box<dyn Read + Send>>,
    plan: ColumnPlan,
    record: ByteRecord,
}

impl CsvReader {
    /// Opens the file and reads its first row.
    pub(crate) fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let file = files::open("data file", path)?;
        let content = Compression::of(path).reader(file, path)?;
        let mut reader = ReaderBuilder::new().flexible(true).buffer_capacity(1 << 20).from_reader(content);
        let names = header(&mut reader, path)?;
        let plan = ColumnPlan::new(path, names, spec)?;
        Ok(CsvReader { path: path.to_owned(), reader, plan, record: ByteRecord::new() })
    }

    pub(crate) fn plan(&self) -> &ColumnPlan {
        &self.plan
    }

    /// Appends up to `max_rows` rows to `rows`; how many, 0 only at the end.
    pub(crate) fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        for n in 0..max_rows {
            let record = &mut self.record;
            if !self.reader.read_byte_record(record).map_err(|error| unreadable(&self.path, error))? {
                return Ok(n);
            }
            if record.len() != self.plan.names.len() {
                return Err(Error::CsvRagged {
                    path: self.path.clone(),
                    line: line_of(&self.path, record.position()),
                    expected: self.plan.names.len(),
                    got: record.len(),
                });
            }
            let row = rows.begin_row();
            for ((cell, role), name) in record.iter().zip(&self.plan.roles).zip(&self.plan.names) {
                put(rows, row, *role, cell)
                    .map_err(|problem| cell_error(&self.path, record.position(), name, problem))?;
            }
        }
        Ok(max_rows)
    }
}

/// Takes one cell.
fn put(rows: &mut TableRows, row: usize, role: Role, cell: &[u8]) -> Result<(), CellProblem> {
    let n = rows.n_features;
    match role {
        Role::Feature(index) => {
            rows.features[row * n + index] =
                if rows.may_miss && is_missing(cell) { f32::NAN } else { number(cell)? };
        }
        Role::Category { feature, index } => {
            // An empty cell is a value that nobody knows.
            let code = match text_of(cell) {
                Ok(value) => rows.code(index, value),
                Err(CellProblem::Empty) => 0,
                Err(problem) => return Err(problem),
            };
            rows.features[row * n + feature] = code as f32;
        }
        Role::Target(index) => {
            let target = match &rows.targets {
                TargetCells::Classes { .. } => TargetCell::Label(label(cell)?),
                TargetCells::Values { .. } => TargetCell::Value(number(cell)?),
            };
            rows.set_target(row, index, target)?;
        }
        Role::Weight => {
            let weight = number(cell)?;
            if weight < 0.0 {
                return Err(CellProblem::WeightNegative { text: shown(cell) });
            }
            rows.weights.as_mut().expect("a column of weights has a place")[row] = weight;
        }
        Role::Dropped => {}
    }
    Ok(())
}

/// Whether a cell says that nothing is known, as pandas reads it.
fn is_missing(cell: &[u8]) -> bool {
    matches!(cell.trim_ascii(), b"" | b"NA" | b"N/A" | b"NaN" | b"nan" | b"null" | b"NULL" | b"None" | b"?")
}

/// The first row: names, each once.
fn header(reader: &mut Reader<Box<dyn Read + Send>>, path: &Path) -> Result<Vec<String>> {
    let record = reader.byte_headers().map_err(|error| unreadable(path, error))?;
    if record.is_empty() {
        return Err(Error::CsvEmpty { path: path.to_owned() });
    }
    let mut names: Vec<String> = Vec::with_capacity(record.len());
    for (index, cell) in record.iter().enumerate() {
        let name = std::str::from_utf8(cell).map_err(|_| Error::CsvCell {
            path: path.to_owned(),
            line: 1,
            column: (index + 1).to_string(),
            problem: CellProblem::NotUtf8,
        })?;
        names.push(name.trim().to_owned());
    }
    if names.iter().all(|name| name.parse::<f64>().is_ok()) {
        return Err(Error::CsvNoHeader { path: path.to_owned(), first: names[0].clone() });
    }
    if let Some(index) = names.iter().position(String::is_empty) {
        return Err(Error::CsvUnnamedColumn { path: path.to_owned(), position: index + 1 });
    }
    let mut sorted: Vec<_> = names.iter().enumerate().map(|(index, name)| (name, index + 1)).collect();
    sorted.sort();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::CsvDuplicateColumn {
            path: path.to_owned(),
            column: pair[0].0.clone(),
            first: pair[0].1,
            second: pair[1].1,
        });
    }
    Ok(names)
}

fn text_of(cell: &[u8]) -> Result<&str, CellProblem> {
    let text = std::str::from_utf8(cell).map_err(|_| CellProblem::NotUtf8)?.trim();
    if text.is_empty() { Err(CellProblem::Empty) } else { Ok(text) }
}

/// The cell for messages, cut where it is long.
fn shown(cell: &[u8]) -> String {
    let text = String::from_utf8_lossy(cell);
    let text = text.trim();
    match text.char_indices().nth(40) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}

fn number(cell: &[u8]) -> Result<f32, CellProblem> {
    let text = text_of(cell)?;
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(CellProblem::NotFinite { text: shown(cell) }),
        Err(_) => Err(CellProblem::NotANumber { text: shown(cell) }),
    }
}

/// A class index; `3.0` is one too, as floating-point tables write it.
fn label(cell: &[u8]) -> Result<i64, CellProblem> {
    let text = text_of(cell)?;
    if let Ok(label) = text.parse::<i64>() {
        return Ok(label);
    }
    match text.parse::<f64>() {
        Ok(value) if !value.is_finite() => Err(CellProblem::NotFinite { text: shown(cell) }),
        Ok(value) if value.fract() != 0.0 => Err(CellProblem::LabelFractional { text: shown(cell) }),
        // Saturates, and so ends above every number of classes.
        Ok(value) => Ok(value as i64),
        Err(_) => Err(CellProblem::LabelNotANumber { text: shown(cell) }),
    }
}

fn cell_error(path: &Path, position: Option<&Position>, column: &str, problem: CellProblem) -> Error {
    let line = line_of(path, position);
    Error::CsvCell { path: path.to_owned(), line, column: column.to_owned(), problem }
}

/// Line, from 1, at which the record starts. The reader's own count is taken before it skips blank
/// lines and the second half of a CRLF, so those are counted here.
fn line_of(path: &Path, position: Option<&Position>) -> u64 {
    let Some(position) = position else { return 1 };
    let blank_lines = || -> std::io::Result<u64> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(position.byte()))?;
        let mut count = 0;
        for byte in BufReader::new(file).bytes() {
            match byte? {
                b'\n' => count += 1,
                b'\r' => {}
                _ => break,
            }
        }
        Ok(count)
    };
    // A pipe can't be read twice: then the reader's own count has to do.
    position.line() + blank_lines().unwrap_or(0)
}

fn unreadable(path: &Path, error: csv::Error) -> Error {
    Error::FileUnreadable { what: "data file", path: path.to_owned(), source: error.into() }
}

#[cfg(test)]
#[path = "csv_tests.rs"]
mod tests;
