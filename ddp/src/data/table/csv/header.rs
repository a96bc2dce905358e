//! Reads the first row of a CSV file.

use std::path::Path;

use super::error::CsvError;
use super::input::Input;
use super::read_error::unreadable;
use crate::data::CellProblem;
use crate::data::error::Result;

/// Reads the column names, which must be unique; the first one may be empty.
///
/// # Errors
/// [`CsvError::Empty`], [`CsvError::NoHeader`], [`CsvError::UnnamedColumn`], [`CsvError::DuplicateColumn`].
pub(crate) fn read(input: &mut Input, path: &Path) -> Result<Vec<String>> {
    let Some(record) = input.record().map_err(|error| unreadable(path, error))? else {
        return Err(CsvError::Empty { path: path.to_owned() }.into());
    };
    let mut names: Vec<String> = Vec::with_capacity(record.len());
    for (index, cell) in record.cells().enumerate() {
        let name = std::str::from_utf8(cell).map_err(|_| CsvError::Cell {
            path: path.to_owned(),
            line: 1,
            column: (index + 1).to_string(),
            problem: CellProblem::NotUtf8,
        })?;
        names.push(name.trim().to_owned());
    }
    if names.iter().all(|name| name.parse::<f64>().is_ok()) {
        return Err(CsvError::NoHeader { path: path.to_owned(), first: names[0].clone() }.into());
    }
    if let Some(index) = names.iter().skip(1).position(String::is_empty) {
        return Err(CsvError::UnnamedColumn { path: path.to_owned(), position: index + 2 }.into());
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
    Ok(names)
}
