//! Reads the first row of a CSV file.

use std::path::Path;

use super::input::Input;
use super::read_error::unreadable;
use crate::config::Header as Setting;
use crate::data::CellProblem;
use crate::data::error::Result;
use crate::data::errors::csv_error::CsvError;

/// The first row.
#[derive(Debug)]
pub(super) struct Header {
    /// Names of the columns; the first one may be empty.
    pub(super) names: Vec<String>,
    /// Other columns without a name, which are called by their place as in pandas: `Unnamed: 2` is the third.
    pub(super) unnamed: Vec<usize>,
}

/// Reads the column names, which must be unique; without any, the first row stays to be read.
///
/// - `n_cells`: cells of the first row
///
/// # Errors
/// [`CsvError::Empty`], [`CsvError::Comment`], [`CsvError::NoHeader`], [`CsvError::DuplicateColumn`].
pub(super) fn read(input: &mut Input, path: &Path, setting: Setting, n_cells: usize) -> Result<Header> {
    if setting == Setting::Absent && n_cells > 0 {
        let names = (1..=n_cells).map(|number| format!("column_{number}")).collect();
        return Ok(Header { names, unnamed: Vec::new() });
    }
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
    let unnamed: Vec<usize> = (1..names.len()).filter(|&index| names[index].is_empty()).collect();
    unnamed.iter().for_each(|&index| names[index] = format!("Unnamed: {index}"));
    if setting == Setting::Auto && n_cells == 1 && names[0].starts_with('#') {
        return Err(CsvError::Comment { path: path.to_owned(), text: names.swap_remove(0) }.into());
    }
    if setting == Setting::Auto && looks_like_row(&names) {
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
    Ok(Header { names, unnamed })
}

/// Whether the first row is one of data: all of its cells are numbers, or some are that do not ascend. Numbers that name columns, such
/// as years or wavelengths, ascend.
fn looks_like_row(names: &[String]) -> bool {
    let numbers: Vec<f64> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.len() == names.len() || numbers.windows(2).any(|pair| pair[0] >= pair[1])
}
