//! CSV -> [`Dataset`], every cell checked.
//!
//! The first row holds the column names; each other row is one row of data. All columns but the
//! targets are features, and every cell is a finite number. Errors name file, line and column.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use csv::{ByteRecord, Position, Reader, ReaderBuilder};

use super::dataset::{Dataset, Targets};
use super::load::TargetSpec;
use crate::config::{Task, nearest};
use crate::error::{CellProblem, Error, Result};
use crate::files;

/// A class number above this, where the config gives no `data.classes`, is taken for a slip: the
/// model would get an output for each class below it.
const MAX_GUESSED_CLASSES: i64 = 1_000_000;

/// Reads all rows of the CSV file `path`.
///
/// # Errors
/// The first fault of the file, with its line and column; all are the user's (exit status 2).
pub fn read(path: &Path, spec: &TargetSpec<'_>) -> Result<Dataset> {
    let file = files::open("data file", path)?;
    let mut reader = ReaderBuilder::new().flexible(true).buffer_capacity(1 << 20).from_reader(file);
    let header = Header::read(&mut reader, path, spec)?;

    let mut features = Vec::new();
    let mut targets = TargetCells::new(spec);
    let mut n_rows = 0;
    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(|error| unreadable(path, error))? {
        if record.len() != header.names.len() {
            return Err(Error::CsvRagged {
                path: path.to_owned(),
                line: line_of(path, record.position()),
                expected: header.names.len(),
                got: record.len(),
            });
        }
        for ((cell, role), name) in record.iter().zip(&header.roles).zip(&header.names) {
            match role {
                Role::Feature => number(cell).map(|value| features.push(value)),
                Role::Target(index) => targets.put(*index, cell),
            }
            .map_err(|problem| cell_error(path, record.position(), name, problem))?;
        }
        targets.end_row();
        n_rows += 1;
    }
    if n_rows == 0 {
        return Err(Error::CsvNoRows { path: path.to_owned() });
    }
    let feature_names = header.names_of(|role| matches!(role, Role::Feature));
    Ok(Dataset {
        features,
        n_rows,
        n_features: feature_names.len(),
        feature_names,
        targets: targets.finish(path)?,
        source: path.display().to_string(),
    })
}

/// What a column is for.
enum Role {
    Feature,
    /// The target column of this index in the spec.
    Target(usize),
}

/// The first row: names, and what each column is for.
struct Header {
    names: Vec<String>,
    roles: Vec<Role>,
}

impl Header {
    fn read(reader: &mut Reader<File>, path: &Path, spec: &TargetSpec<'_>) -> Result<Self> {
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
        for target in spec.columns {
            if !names.contains(target) {
                return Err(target_missing(path, target, &names));
            }
        }
        let roles: Vec<_> = names
            .iter()
            .map(|name| match spec.columns.iter().position(|target| target == name) {
                Some(index) => Role::Target(index),
                None => Role::Feature,
            })
            .collect();
        let header = Self { names, roles };
        if header.names_of(|role| matches!(role, Role::Feature)).is_empty() {
            return Err(Error::CsvNoFeatures { path: path.to_owned(), targets: spec.columns.join(", ") });
        }
        Ok(header)
    }

    fn names_of(&self, wanted: impl Fn(&Role) -> bool) -> Vec<String> {
        let pairs = self.names.iter().zip(&self.roles);
        pairs.filter(|(_, role)| wanted(role)).map(|(name, _)| name.clone()).collect()
    }
}

fn target_missing(path: &Path, target: &str, names: &[String]) -> Error {
    let hint = if let Some(name) = nearest(target, names.iter().map(String::as_str)) {
        format!("did you mean \"{name}\"?")
    } else if names.len() == 1 && names[0].contains([';', '\t', '|']) {
        "columns must be separated by commas".to_owned()
    } else {
        const SHOWN: usize = 8;
        let list = match names.len().checked_sub(SHOWN) {
            None | Some(0) => names.join(", "),
            Some(_) => format!("{}, ... {}", names[..SHOWN - 1].join(", "), names[names.len() - 1]),
        };
        format!("set `data.target` to one of the columns: {list}")
    };
    Error::CsvTargetMissing { path: path.to_owned(), target: target.to_owned(), hint }
}

/// The target cells read so far.
enum TargetCells<'a> {
    Classes { labels: Vec<i64>, classes: Option<usize> },
    Values { values: Vec<f32>, row: Vec<f32>, spec: &'a TargetSpec<'a> },
}

impl<'a> TargetCells<'a> {
    fn new(spec: &'a TargetSpec<'a>) -> Self {
        match spec.task {
            Task::Classification => Self::Classes { labels: Vec::new(), classes: spec.classes },
            Task::Regression | Task::Multilabel => {
                Self::Values { values: Vec::new(), row: vec![0.0; spec.columns.len()], spec }
            }
        }
    }

    /// Takes the cell of target `index`; those of a row come in the file's order, not the spec's.
    fn put(&mut self, index: usize, cell: &[u8]) -> Result<(), CellProblem> {
        match self {
            Self::Classes { labels, classes } => labels.push(label(cell, *classes)?),
            Self::Values { row, spec, .. } => {
                let value = number(cell)?;
                if spec.task == Task::Multilabel && value != 0.0 && value != 1.0 {
                    return Err(CellProblem::NotBinary { text: shown(cell) });
                }
                row[index] = value;
            }
        }
        Ok(())
    }

    fn end_row(&mut self) {
        if let Self::Values { values, row, .. } = self {
            values.extend_from_slice(row);
        }
    }

    fn finish(self, path: &Path) -> Result<Targets> {
        match self {
            Self::Classes { labels, classes } => {
                let largest = labels.iter().copied().max().unwrap_or(0);
                let n_classes = classes.unwrap_or(largest as usize + 1);
                if n_classes < 2 {
                    return Err(Error::SingleClass { path: path.to_owned(), n_rows: labels.len() });
                }
                Ok(Targets::Classes { labels, n_classes })
            }
            Self::Values { values, spec, .. } => {
                Ok(Targets::Values { values, n_targets: spec.columns.len(), names: spec.columns.to_vec() })
            }
        }
    }
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
fn label(cell: &[u8], classes: Option<usize>) -> Result<i64, CellProblem> {
    let text = text_of(cell)?;
    let label = match text.parse::<i64>() {
        Ok(label) => label,
        Err(_) => match text.parse::<f64>() {
            Ok(value) if !value.is_finite() => {
                return Err(CellProblem::NotFinite { text: shown(cell) });
            }
            Ok(value) if value.fract() != 0.0 => {
                return Err(CellProblem::LabelFractional { text: shown(cell) });
            }
            // Saturates, and so ends above every number of classes.
            Ok(value) => value as i64,
            Err(_) => return Err(CellProblem::LabelNotANumber { text: shown(cell) }),
        },
    };
    match classes {
        _ if label < 0 => Err(CellProblem::LabelNegative { label }),
        Some(classes) if label >= classes as i64 => Err(CellProblem::LabelOutOfRange { label, classes }),
        None if label >= MAX_GUESSED_CLASSES => Err(CellProblem::LabelHuge { label }),
        _ => Ok(label),
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
