//! Reads the rows of a file into a table, or its cells as text.

use std::path::{Path, PathBuf};

use super::lines::{Cells, Fault, Keys, Lines};
use crate::data::error::{DataError, Result};
use crate::data::errors::column_error::ColumnError;
use crate::data::source::SourceSpec;
use crate::data::table::cell;
use crate::data::table::columns::{ColumnPlan, FileColumns};
use crate::data::table::partition_rows;
use crate::data::table::reader::{CellReader, Record, TableReader};
use crate::data::table::row_texts::error_of_cell;
use crate::data::table::rows::TableRows;
use crate::data::values::notation::Notation;
use crate::data::values::number::DecimalMark;
use crate::data::values::time;
use crate::storage::user_file;

/// Opens a file to read its rows.
pub(crate) fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Box<dyn TableReader>> {
    let rows = Rows::open(path, spec)?;
    let names = rows.keys.names();
    let are_dates = rows.are_dates.clone();
    let plan = ColumnPlan::new(path, FileColumns { names, are_dates, ..FileColumns::default() }, spec)?;
    Ok(Box::new(JsonReader { rows, plan }))
}

/// Opens a file to read its cells.
pub(crate) fn open_cells(path: &Path, spec: &SourceSpec<'_>) -> Result<Box<dyn CellReader>> {
    let rows = Rows::open(path, spec)?;
    Ok(Box::new(JsonCells { names: rows.keys.names(), rows, ends: Vec::new(), text: Vec::new() }))
}

/// The rows of one file as cells.
struct Rows {
    path: PathBuf,
    lines: Lines,
    keys: Keys,
    notation: Notation,
    are_dates: Vec<bool>,
    cells: Cells,
}

impl Rows {
    /// Reads the keys of all lines, then starts again.
    fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        if !file.metadata().is_ok_and(|data| data.is_file()) {
            let (path, format) = (path.to_owned(), "JSON lines");
            let reason = "it is a pipe, but its lines are read twice".to_owned();
            return Err(DataError::Malformed { path, format, reason, hint: "save it as a file first" });
        }
        let keys = Keys::of_file(path, spec.memory_bytes)?;
        if keys.n_columns == 0 {
            return Err(DataError::NoRows { path: path.to_owned() });
        }
        let notation = Notation::new(DecimalMark::Point, &spec.data.missing_values);
        let lines = Lines::open(path, spec.memory_bytes)?;
        let mut rows = Rows {
            path: path.to_owned(),
            are_dates: vec![false; keys.n_columns],
            cells: Cells::default(),
            lines,
            keys,
            notation,
        };
        rows.find_dates()?;
        rows.lines = Lines::open(path, spec.memory_bytes)?;
        Ok(rows)
    }

    /// Marks the columns whose first value is a date.
    fn find_dates(&mut self) -> Result<()> {
        let mut is_open = vec![true; self.keys.n_columns];
        while is_open.contains(&true) && self.next(true)?.is_some() {
            for (column, is_open) in is_open.iter_mut().enumerate().filter(|(_, is_open)| **is_open) {
                let cell = self.cells.cell(column);
                if !self.notation.is_missing(cell) {
                    let text = std::str::from_utf8(cell).unwrap_or_default().trim();
                    self.are_dates[column] = time::parse(text).is_some_and(|moment| moment.has_date);
                    *is_open = false;
                }
            }
        }
        Ok(())
    }

    /// Reads the cells of the next row and returns its line, and whether it has a list of another length, which is an error
    /// unless it `may_be_bad`; `None` at the end.
    fn next(&mut self, may_be_bad: bool) -> Result<Option<(u64, bool)>> {
        let (keys, cells, path) = (&self.keys, &mut self.cells, &self.path);
        self.lines.next(|line, object| match keys.cells(&object, cells) {
            Ok(()) => Ok((line, false)),
            Err((_, Fault::Length { .. })) if may_be_bad => Ok((line, true)),
            Err((_, Fault::NewKey)) => Err(DataError::Changed { path: path.clone() }),
            Err((key, Fault::Length { expected, got })) => Err(DataError::from(ColumnError::ListLength {
                place: format!("data file `{}`, line {line}", path.display()),
                column: format!("column \"{key}\""),
                expected,
                got,
            })),
        })
    }
}

/// Reads the rows of one file.
struct JsonReader {
    rows: Rows,
    plan: ColumnPlan,
}

impl TableReader for JsonReader {
    fn plan(&self) -> &ColumnPlan {
        &self.plan
    }

    fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        let first = rows.n_rows;
        while rows.n_rows < first + max_rows
            && let Some((line, is_bad)) = self.rows.next(rows.bad_rows.is_some())?
        {
            let row = rows.begin_row();
            for (column, (role, name)) in self.plan.roles.iter().zip(&self.plan.names).enumerate() {
                let cell = self.rows.cells.cell(column);
                let put = if self.rows.cells.strings[column] { cell::put_string } else { cell::put };
                let Err(problem) = put(rows, row, *role, cell, &self.rows.notation) else { continue };
                if !rows.mark_bad(row) {
                    let Rows { path, cells, notation, .. } = &self.rows;
                    let roles = self.plan.roles.iter().zip(&self.plan.names).enumerate();
                    let row = roles.map(|(at, (role, name))| (name.as_str(), *role, cells.cell(at)));
                    return Err(error_of_cell(path, line, name, problem, row, notation).into());
                }
            }
            if is_bad {
                rows.mark_bad(row);
            }
            for (&column, texts) in self.plan.kept.iter().zip(&mut rows.kept) {
                if column < self.plan.names.len() {
                    texts.push(&String::from_utf8_lossy(self.rows.cells.cell(column)));
                }
            }
            if rows.lacks_place() {
                let (path, column) = (self.rows.path.display(), self.plan.target_name());
                rows.set_place(|| format!("data file `{path}`: line {line}, column \"{column}\""));
            }
        }
        partition_rows::fill(&self.plan, rows, first, &self.rows.path)?;
        Ok(rows.n_rows - first)
    }
}

/// Reads the cells of one file.
struct JsonCells {
    rows: Rows,
    names: Vec<String>,
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl CellReader for JsonCells {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn notation(&self) -> &Notation {
        &self.rows.notation
    }

    fn are_dates(&self) -> Vec<bool> {
        self.rows.are_dates.clone()
    }

    fn fraction(&self) -> Option<f64> {
        let lines = &self.rows.lines;
        lines.n_bytes.map(|n_bytes| lines.n_read() as f64 / n_bytes.max(1) as f64)
    }

    fn next(&mut self) -> Result<Option<Record<'_>>> {
        let Some((line, _)) = self.rows.next(false)? else { return Ok(None) };
        // Keys may come in any order, and cells in that of the columns.
        self.text.clear();
        self.ends.clear();
        for column in 0..self.names.len() {
            self.text.extend_from_slice(self.rows.cells.cell(column));
            self.ends.push(self.text.len());
        }
        Ok(Some(Record { line, cells: &self.text, ends: &self.ends, strings: &self.rows.cells.strings }))
    }
}
