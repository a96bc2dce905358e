//! Reads the first row of a CSV file.

use std::path::Path;

use super::dialect::Dialect;
use super::input::Input;
use super::read_error::unreadable;
use crate::error::CellProblem;
use crate::error::CsvError;
use crate::error::Result;
use crate::options::Header;
use crate::table::source::FileColumns;

/// Reads the column names, which must be unique; without any, the first row stays to be read.
///
/// The first name may be empty. Other columns without a name are called by their place as in pandas: `Unnamed: 2` is the third.
///
/// - `dialect`: the cells of the first row, and what was found beside it
///
/// # Errors
/// [`CsvError::Empty`], [`CsvError::Comment`], [`CsvError::NoHeader`], [`CsvError::DuplicateColumn`].
pub(super) fn read(input: &mut Input, path: &Path, header: Header, dialect: &Dialect) -> Result<FileColumns> {
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
