//! Copies tables to text files cell by cell, so that every digit and every string is kept.

use std::path::{Path, PathBuf};

use ddp::data::DataError;
use ddp_tables::error::TableError;
use ddp_tables::formats::Reader;
use ddp_tables::formats::error::{CellProblem, ColumnError, CsvError};
use ddp_tables::formats::table::source::TableFormat;
use ddp_tables::formats::table::types::Destination;
use ddp_tables::formats::write::{CellKind, OpenText, Staging, TextColumn, TextWriter};
use ddp_tables::open::files::files_and_format;
use ddp_tables::shared_types::SharedTypes;
use ddp_tables::source::SourceSpec;
use ddp_tables::table::{CellColumns, CellReader, ColumnPlan, Role, Shards, same_columns, shards};
use ddp_tables::values::notation::{Meaning, Notation};
use ddp_tables::values::time;
use tracing::info;

use super::input::Input;
use super::meter::Meter;
use super::target::Target;
use crate::error::Result;

/// Rows between two reports of progress.
const METER_ROWS: usize = 4096;

/// Tables whose cells are copied.
pub(super) struct TextCopy<'a> {
    spec: SourceSpec<'a>,
    files: Vec<PathBuf>,
    types: SharedTypes,
    format: &'static TableFormat,
}

impl<'a> TextCopy<'a> {
    /// The tables of `input`; `None` for arrays.
    pub(super) fn find(input: &Input<'a>) -> Result<Option<Self>> {
        let spec = input.spec();
        if spec.source.starts_with("builtin:") {
            return Ok(None);
        }
        let (files, format) = files_and_format(&spec)?;
        let Reader::Table(format) = &format.reader else { return Ok(None) };
        let Shards { files, types } = shards(files, format, &spec);
        types.notes.iter().for_each(|note| info!("{}: {note}", spec.source));
        Ok(Some(TextCopy { spec, files, types, format }))
    }

    /// Copies all rows to the files of `target` and returns the numbers of rows and files. With `needs_kinds` the output
    /// distinguishes numbers from strings, so all cells are read first.
    pub(super) fn run(
        self,
        target: &Target,
        open: OpenText,
        needs_kinds: bool,
        rows_per_file: impl Fn(usize) -> usize,
        staging: &mut Staging,
        meter: &mut Meter,
    ) -> Result<(usize, usize)> {
        let (mut n_rows, mut n_files) = (0, 0);
        let mut first_names: Option<Vec<String>> = None;
        let mut columns: Vec<TextColumn> = Vec::new();
        let mut current: Option<(Box<dyn TextWriter>, usize)> = None;
        let spec = SourceSpec { types: Some(&self.types), ..self.spec };
        for path in &self.files {
            let (mut reader, plan) = CellReader::open_planned(path, self.format, &spec)?;
            let all_names = plan.all_names();
            if let Some(first_names) = &first_names {
                same_columns(&self.files[0], first_names, path, &all_names)?;
            }
            let mut rows = Rows::new(&reader, plan, path)?;
            if first_names.is_none() {
                columns = self.columns(&reader, &rows, &all_names, needs_kinds)?;
                first_names = Some(all_names);
            }
            let before = n_rows;
            while rows.read(&mut reader)? {
                let (writer, rows_left) = match &mut current {
                    Some(current) => current,
                    None => {
                        let opened = open(&columns, &target.files(n_files), staging)?;
                        n_files += 1;
                        current.insert((opened, rows_per_file(4 * columns.len())))
                    }
                };
                writer.write(&mut rows.order.iter().map(|&column| rows.cells[column].as_str()))?;
                n_rows += 1;
                *rows_left -= 1;
                if *rows_left == 0
                    && let Some((writer, _)) = current.take()
                {
                    writer.finish()?;
                }
                if n_rows % METER_ROWS == 0 {
                    meter.advance(n_rows, n_rows * 4 * rows.order.len(), None);
                }
            }
            if n_rows == before {
                return Err(DataError::from(CsvError::NoRows { path: path.clone() }).into());
            }
        }
        if let Some((writer, _)) = current {
            writer.finish()?;
        }
        Ok((n_rows, n_files))
    }

    /// Names of the columns, and the meaning of their cells.
    fn columns(
        &self,
        reader: &CellReader,
        rows: &Rows<'_>,
        names: &[String],
        needs_kinds: bool,
    ) -> Result<Vec<TextColumn>> {
        let mut kinds = vec![CellKind::Text; names.len()];
        match reader.types() {
            Some(types) => {
                for (kind, of) in kinds.iter_mut().zip(types) {
                    *kind = of.cells.unwrap_or(CellKind::Text);
                }
            }
            None if needs_kinds => {
                let scanned =
                    CellColumns::scan(&self.files, self.format, &self.spec, Destination::Columns, true)?;
                scanned.cells().for_each(|(column, kind)| kinds[column] = kind);
            }
            None => {}
        }
        let column = |&at: &usize| TextColumn { name: names[at].clone(), cells: kinds[at] };
        Ok(rows.order.iter().map(column).collect())
    }
}

/// Rows of one file.
struct Rows<'a> {
    notation: Notation,
    place: &'static str,
    path: &'a Path,
    plan: ColumnPlan,
    /// Whether each column contains strings, so that none of its cells is a number.
    are_texts: Vec<bool>,
    /// Whether each column contains dates, which may be infinite.
    are_dates: Vec<bool>,
    /// Columns that are copied.
    order: Vec<usize>,
    /// The cells of the current row; cells from folder names stay the same.
    cells: Vec<String>,
}

impl<'a> Rows<'a> {
    fn new(reader: &CellReader, plan: ColumnPlan, path: &'a Path) -> Result<Self> {
        let roles = plan.all_roles();
        let order: Vec<usize> = (0..roles.len()).filter(|&at| roles[at].purpose().is_some()).collect();
        let types = reader.types().unwrap_or_default();
        if let Some(&at) = order.iter().find(|&&at| types.get(at).is_some_and(|of| of.cells.is_none())) {
            return Err(DataError::from(ColumnError::WrongType {
                path: path.to_owned(),
                column: plan.names[at].clone(),
                expected: "numbers, texts or dates",
                got: types[at].name.clone(),
                hint: "text has no cells for it: leave it out with --drop, or write to .parquet or .arrow",
            })
            .into());
        }
        let mut cells = vec![String::new(); plan.names.len()];
        cells.extend(plan.partitions.iter().map(|partition| partition.value.clone()));
        let is_text = |at: usize| types.get(at).is_some_and(|of| of.cells == Some(CellKind::Text));
        Ok(Rows {
            notation: reader.notation().clone(),
            place: if reader.types().is_some() { "row" } else { "line" },
            are_texts: (0..plan.names.len()).map(is_text).collect(),
            are_dates: reader.columns().are_dates.clone(),
            order,
            cells,
            path,
            plan,
        })
    }

    /// Reads the next row; false at the end.
    fn read(&mut self, reader: &mut CellReader) -> Result<bool> {
        let Some(record) = reader.record()? else { return Ok(false) };
        for (column, cell) in record.cells().enumerate() {
            let role = self.plan.roles[column];
            if role.purpose().is_none() {
                continue;
            }
            let problem = |problem| {
                let place = format!("data file `{}`, {} {}", self.path.display(), self.place, record.line);
                DataError::from(TableError::Cell { place, column: self.plan.names[column].clone(), problem })
            };
            let text = std::str::from_utf8(cell).map_err(|_| problem(CellProblem::NotUtf8))?;
            let out = &mut self.cells[column];
            out.clear();
            if self.are_texts[column] {
                out.push_str(text);
                continue;
            }
            let text = text.trim();
            match self.notation.meaning(text) {
                _ if self.are_dates[column] && time::is_infinite(text) => out.push_str(text),
                Meaning::Number(number) if !number.is_finite() && !matches!(role, Role::Category { .. }) => {
                    return Err(problem(CellProblem::NotFinite { text: text.to_owned() }).into());
                }
                // Numbers get the decimal mark of the output.
                Meaning::Number(_) => match self.notation.decimal.normalized(text) {
                    Ok(number) => out.push_str(number.as_str()),
                    Err(_) => out.push_str(text),
                },
                _ => out.push_str(text),
            }
        }
        Ok(true)
    }
}
