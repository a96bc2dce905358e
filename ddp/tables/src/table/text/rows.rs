//! Reads the records of a file of text into a table.
//!
//! Plain lines are parsed in place ([`plain`](super::plain)). A row of another one is read cell by cell, with the same
//! result or the error of that cell.

use std::path::{Path, PathBuf};

use ddp::data::column_kind::SeenKinds;
use ddp::data::error::Result;
use memchr::memchr3_iter;

use crate::formats::error::CellProblem;
use crate::formats::table::source::TextSource;
use crate::source::SourceSpec;
use crate::table::columns::{ColumnPlan, Role};
use crate::table::rows::TableRows;
use crate::table::text::plain::{Block, PlainRows, len_of_line};
use crate::table::text::row_error::error_of_cell;
use crate::table::{cell, partition_rows};
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Reads the rows of one file.
pub(in crate::table) struct TextRows {
    path: PathBuf,
    source: Box<dyn TextSource>,
    plan: ColumnPlan,
    notation: Notation,
    plain: Option<PlainRows>,
}

impl TextRows {
    /// Starts to read `source`, the file `path`.
    pub(in crate::table) fn open(
        path: &Path,
        source: Box<dyn TextSource>,
        spec: &SourceSpec<'_>,
    ) -> Result<Self> {
        let plan = ColumnPlan::new(path, source.columns().clone(), spec)?;
        let notation = source.notation().clone();
        let delimiter = source.delimiter().filter(|_| source.has_lines());
        let plain = delimiter.and_then(|delimiter| PlainRows::new(delimiter, &notation, &plan));
        Ok(TextRows { path: path.to_owned(), source, plan, notation, plain })
    }

    /// Decimal mark of the file.
    pub(in crate::table) fn decimal(&self) -> DecimalMark {
        self.notation.decimal
    }

    /// See [`TextSource::found_decimal`].
    pub(in crate::table) fn found_decimal(&self) -> Option<DecimalMark> {
        self.source.found_decimal()
    }

    /// Columns of the file and their roles.
    pub(in crate::table) fn plan(&self) -> &ColumnPlan {
        &self.plan
    }

    /// Appends up to `max_rows` rows to `rows` and returns their number, 0 only at the end.
    pub(in crate::table) fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        let first = rows.n_rows;
        for (role, _) in self.plan.roles.iter().zip(&self.source.columns().are_dates).filter(|(_, is)| **is) {
            if let Role::Feature(feature) = role {
                rows.kinds.add(*feature, SeenKinds::DATE);
            }
        }
        while rows.n_rows < first + max_rows
            && (self.plain_rows(rows, first + max_rows - rows.n_rows)? || self.exact_row(rows)?)
        {}
        partition_rows::fill(&self.plan, rows, first, &self.path)?;
        rows.check_mixed(&self.plan, first, &self.path)?;
        rows.check_kinds(&self.plan, first, &self.path)?;
        Ok(rows.n_rows - first)
    }

    /// Skips up to `max_rows` rows, whose cells are not looked at, and returns their number, 0 only at the end.
    pub(in crate::table) fn skip(&mut self, max_rows: usize) -> Result<usize> {
        let mut n_rows = 0;
        while n_rows < max_rows {
            if let (Some(delimiter), true) = (self.source.delimiter(), self.source.has_lines()) {
                let Some((text, len)) = self.source.lines()? else { break };
                let Skipped { n_rows: n, n_lines, n_bytes } =
                    plain_rows(&text[..len], delimiter, max_rows - n_rows);
                self.source.skip_lines(n_bytes, n_lines);
                n_rows += n;
                if n > 0 {
                    continue;
                }
            }
            if self.source.next(true)?.is_none() {
                break;
            }
            n_rows += 1;
        }
        Ok(n_rows)
    }

    /// Appends the plain rows that follow, up to `max_rows` of them; false if there are none.
    fn plain_rows(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<bool> {
        let Some(plain) = &mut self.plain else { return Ok(false) };
        let Some((text, len)) = self.source.lines()? else { return Ok(false) };
        let block = Block { text, len, roles: &self.plan.roles, notation: &self.notation };
        let (n_rows, n_bytes) = plain.read(&block, max_rows, rows);
        self.source.skip_lines(n_bytes, n_rows);
        Ok(n_rows > 0)
    }

    /// Appends the next row, whatever its cells hold; false at the end.
    fn exact_row(&mut self, rows: &mut TableRows) -> Result<bool> {
        let Some(record) = self.source.next(rows.bad_rows.is_some())? else { return Ok(false) };
        let row = rows.begin_row();
        for (column, (cell, role)) in record.cells().zip(&self.plan.roles).enumerate() {
            let put = if record.is_string(column) {
                cell::put_string(rows, row, *role, cell, &self.notation)
            } else {
                cell::put(rows, row, *role, cell, &self.notation)
            };
            let Err(problem) = put else { continue };
            let name = &self.plan.names[column];
            let problem = if *role == Role::Blank { CellProblem::unnamed(cell, name) } else { problem };
            if !rows.mark_bad(row) {
                let cells = record.cells().zip(&self.plan.roles).zip(&self.plan.names);
                let cells = cells.map(|((cell, role), name)| (name.as_str(), *role, cell));
                return Err(
                    error_of_cell(&self.path, record.line, name, problem, cells, &self.notation).into()
                );
            }
        }
        if record.is_bad {
            rows.mark_bad(row);
        }
        // Columns of folders follow those of the file.
        for (&column, texts) in self.plan.kept.iter().zip(&mut rows.kept) {
            if column < record.n_cells() {
                texts.push(&String::from_utf8_lossy(record.cell(column)));
            }
        }
        if rows.lacks_place() {
            let (path, line, column) = (self.path.display(), record.line, self.plan.target_name());
            rows.set_place(|| format!("data file `{path}`: line {line}, column \"{column}\""));
        }
        Ok(true)
    }
}

/// Lines that were skipped.
struct Skipped {
    /// Lines that are not empty.
    n_rows: usize,
    n_lines: usize,
    n_bytes: usize,
}

/// The lines of `text`, up to `max_rows` rows and up to the first one that may be part of a longer record, or several records.
fn plain_rows(text: &[u8], delimiter: u8, max_rows: usize) -> Skipped {
    let mut skipped = Skipped { n_rows: 0, n_lines: 0, n_bytes: 0 };
    let mut may_be_longer = false;
    // One pass: a search per line would begin anew as often as there are lines.
    for at in memchr3_iter(b'\n', b'"', b'\r', text) {
        if text[at] != b'\n' {
            may_be_longer |= text[at] == b'"' || text.get(at + 1) != Some(&b'\n');
            continue;
        }
        let line = &text[skipped.n_bytes..at];
        if may_be_longer && len_of_line(&text[skipped.n_bytes..], delimiter) != Some(line.len() + 1) {
            break;
        }
        skipped.n_rows += usize::from(!matches!(line, b"" | b"\r"));
        skipped.n_lines += 1;
        skipped.n_bytes = at + 1;
        may_be_longer = false;
        if skipped.n_rows == max_rows {
            break;
        }
    }
    skipped
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "reference_tests.rs"]
mod reference_tests;
