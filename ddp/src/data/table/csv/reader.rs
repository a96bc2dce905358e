//! Reads the rows of a CSV file into a table.

use std::path::{Path, PathBuf};

use super::dialect::Dialect;
use super::header::{self, Header};
use super::input::Input;
use super::plain;
use super::read_error::unreadable;
use crate::data::CellProblem;
use crate::data::compression::Compression;
use crate::data::error::Result;
use crate::data::errors::csv_error::CsvError;
use crate::data::source::SourceSpec;
use crate::data::table::columns::{ColumnPlan, FileColumns, Role};
use crate::data::table::reader::TableReader;
use crate::data::table::row_texts::error_of_cell;
use crate::data::table::rows::TableRows;
use crate::data::table::{cell, partition_rows};
use crate::storage::user_file;

/// Opens a file to read its rows.
pub(crate) fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Box<dyn TableReader>> {
    Ok(Box::new(CsvReader::open(path, spec)?))
}

/// Reads the rows of one file.
struct CsvReader {
    path: PathBuf,
    input: Input,
    plan: ColumnPlan,
    dialect: Dialect,
    /// Columns of the file that are kept, ascending, each with its place among the kept ones.
    kept: Vec<(usize, usize)>,
}

impl CsvReader {
    /// Opens the file and reads its first row.
    fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let content = Compression::of_file(path).reader(file, path)?;
        let input = Input::new(content).map_err(|error| unreadable(path, error))?;
        Self::from_input(input.within(spec.memory_bytes), path, spec)
    }

    fn from_input(mut input: Input, path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let dialect = Dialect::find(&mut input, spec).map_err(|error| unreadable(path, error))?;
        let Header { names, unnamed } = header::read(&mut input, path, spec.data.header, dialect.n_cells)?;
        let mut are_dates = dialect.are_dates.clone();
        are_dates.resize(names.len(), false);
        let indices = if names[0].is_empty() { vec![0] } else { Vec::new() };
        let plan = ColumnPlan::new(path, FileColumns { names, are_dates, indices, unnamed }, spec)?;
        let n_columns = plan.names.len();
        let kept = plan.kept.iter().copied().enumerate().map(|(place, column)| (column, place));
        let mut kept: Vec<_> = kept.filter(|(column, _)| *column < n_columns).collect();
        kept.sort_unstable();
        Ok(CsvReader { path: path.to_owned(), input, plan, dialect, kept })
    }

    /// Appends the next row, whatever its cells hold.
    fn exact_row(&mut self, rows: &mut TableRows) -> Result<()> {
        let record = self.input.record().map_err(|error| unreadable(&self.path, error))?;
        let record = record.expect("the input is at a line that is not empty");
        if record.len() != self.plan.names.len() {
            return Err(CsvError::Ragged {
                path: self.path.clone(),
                line: record.line,
                expected: self.plan.names.len(),
                got: record.len(),
            }
            .into());
        }
        let row = rows.begin_row();
        for ((cell, role), name) in record.cells().zip(&self.plan.roles).zip(&self.plan.names) {
            let Err(problem) = cell::put(rows, row, *role, cell, &self.dialect.notation) else { continue };
            let problem = if *role == Role::Blank { CellProblem::unnamed(cell, name) } else { problem };
            if !rows.mark_bad(row) {
                let (line, notation) = (record.line, &self.dialect.notation);
                let cells = record.cells().zip(&self.plan.roles).zip(&self.plan.names);
                let cells = cells.map(|((cell, role), name)| (name.as_str(), *role, cell));
                return Err(error_of_cell(&self.path, line, name, problem, cells, notation).into());
            }
        }
        // Columns of folders follow those of the file.
        for (&column, texts) in self.plan.kept.iter().zip(&mut rows.kept) {
            if column < record.len() {
                texts.push(&String::from_utf8_lossy(record.cell(column)));
            }
        }
        if rows.lacks_place() {
            let (path, line, column) = (self.path.display(), record.line, self.plan.target_name());
            rows.set_place(|| format!("data file `{path}`: line {line}, column \"{column}\""));
        }
        Ok(())
    }
}

impl TableReader for CsvReader {
    fn plan(&self) -> &ColumnPlan {
        &self.plan
    }

    fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        let first = rows.n_rows;
        while rows.n_rows < first + max_rows
            && self.input.next_line().map_err(|error| unreadable(&self.path, error))?
        {
            match plain::row(self.input.rest(), &self.plan.roles, &self.dialect, rows) {
                Some(len) => {
                    let line = &self.input.rest()[..len];
                    plain::keep(line, self.dialect.delimiter, &self.kept, &mut rows.kept);
                    self.input.skip_line(len);
                }
                None => {
                    rows.drop_rows_from(rows.n_rows - 1);
                    self.exact_row(rows)?;
                }
            }
        }
        partition_rows::fill(&self.plan, rows, first, &self.path)?;
        Ok(rows.n_rows - first)
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "reference_tests.rs"]
mod reference_tests;
