//! The error of a row with texts where numbers are expected: it names all of these columns, not only the first.

use std::path::Path;

use crate::formats::error::{CellProblem, CsvError};
use crate::table::cell;
use crate::table::columns::Role;
use crate::values::notation::Notation;

/// The error of the cell in `line` and `column`, or of all features of its row that hold text.
pub(super) fn error_of_cell<'a>(
    path: &Path,
    line: u64,
    column: &str,
    problem: CellProblem,
    row: impl Iterator<Item = (&'a str, Role, &'a [u8])>,
    notation: &Notation,
) -> CsvError {
    let path = path.to_owned();
    if matches!(problem, CellProblem::NotANumber { .. }) {
        let texts = row.filter(|(_, role, _)| matches!(role, Role::Feature(_)));
        let texts = texts.filter(|(_, _, cell)| cell::is_text(cell, notation));
        let texts: Vec<_> = texts.map(|(name, _, cell)| (name.to_owned(), cell::shown(cell))).collect();
        if texts.len() > 1 {
            return CsvError::Texts { path, line, texts };
        }
    }
    CsvError::Cell { path, line, column: column.to_owned(), problem: problem.in_column(column) }
}
