//! Copies tables to files of text cell by cell, so that every digit and every text stays.

use std::path::PathBuf;

use super::meter::Meter;
use super::target::Target;
use crate::config::DataConfig;
use crate::data::format::Reader;
use crate::data::table::{
    CellReader, ColumnPlan, FileColumns, Meaning, Notation, Role, TableReaders, TableRows, partition_columns,
    put_cell, same_columns, with_point,
};
use crate::data::write::{Staging, TextWriter};
use crate::data::{CellProblem, CsvError, DataError, SourceSpec, files_and_format};
use crate::error::Result;

/// Rows between two reports of progress.
const METER_ROWS: usize = 4096;

/// Tables whose cells are copied.
#[derive(Debug)]
pub(super) struct TextCopy<'a> {
    data: &'a DataConfig,
    files: Vec<PathBuf>,
    readers: &'static TableReaders,
}

impl<'a> TextCopy<'a> {
    /// The tables of `data`, if they can be copied; otherwise `None`.
    pub(super) fn find(data: &'a DataConfig) -> Result<Option<Self>> {
        if data.train.starts_with("builtin:") {
            return Ok(None);
        }
        let (files, format) = files_and_format(&SourceSpec::train(data))?;
        let Reader::Table(readers) = &format.reader else { return Ok(None) };
        // A pipe can be opened only once.
        let are_regular = files.iter().all(|path| path.metadata().is_ok_and(|data| data.is_file()));
        Ok(are_regular.then_some(TextCopy { data, files, readers }))
    }

    /// Copies all rows to the files of `target` and returns the numbers of rows and files.
    pub(super) fn run(
        self,
        target: &Target,
        rows_per_file: impl Fn(usize) -> usize,
        staging: &mut Staging,
        meter: &mut Meter,
    ) -> Result<(usize, usize)> {
        let open_text = target.writer.open_text.expect("the caller chose a format of text");
        let spec = SourceSpec::train(self.data);
        let (mut n_rows, mut n_files) = (0, 0);
        let mut first_names: Option<Vec<String>> = None;
        let mut current: Option<(Box<dyn TextWriter>, usize)> = None;
        for path in &self.files {
            let mut reader = (self.readers.open_cells)(path, &spec)?;
            let (names, indices) = (reader.names().to_vec(), reader.indices().to_vec());
            let are_dates = vec![false; names.len()];
            let plan = ColumnPlan::new(path, FileColumns { names, are_dates, indices }, &spec)?;
            let all_names = plan.all_names();
            let first_names = first_names.get_or_insert_with(|| all_names.clone());
            same_columns(&self.files[0], first_names, path, &all_names)?;
            let mut rows = Rows::new(&*reader, plan, path, &spec);
            let before = n_rows;
            while rows.read(&mut *reader)? {
                let (writer, rows_left) = match &mut current {
                    Some(current) => current,
                    None => {
                        let names: Vec<String> =
                            rows.order.iter().map(|&column| all_names[column].clone()).collect();
                        let opened = open_text(&names, &target.files(n_files), staging)?;
                        n_files += 1;
                        current.insert((opened, rows_per_file(4 * names.len())))
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
}

/// Rows of one file, checked like those of a run.
struct Rows<'a> {
    plan: ColumnPlan,
    notation: Notation,
    place: &'static str,
    path: &'a PathBuf,
    /// Columns in the order of the output: features, targets, weight.
    order: Vec<usize>,
    /// The cells of the current row; those of folders stay.
    cells: Vec<String>,
    /// Room for one row.
    checked: TableRows,
}

impl<'a> Rows<'a> {
    fn new(reader: &dyn CellReader, plan: ColumnPlan, path: &'a PathBuf, spec: &SourceSpec<'_>) -> Self {
        let names = plan.all_names();
        let wanted = plan.features.iter().chain(&spec.data.target).chain(&spec.data.weight);
        let column = |name: &String| names.iter().position(|other| other == name);
        let mut cells = vec![String::new(); plan.names.len()];
        let of_folders =
            partition_columns(path, spec).into_iter().filter(|(name, _)| !plan.names.contains(name));
        cells.extend(of_folders.map(|(_, value)| value));
        Rows {
            notation: reader.notation().clone(),
            place: if reader.types().is_some() { "row" } else { "line" },
            order: wanted.filter_map(column).collect(),
            checked: TableRows::new(&plan, spec),
            cells,
            path,
            plan,
        }
    }

    /// Reads the next row; false at the end.
    fn read(&mut self, reader: &mut dyn CellReader) -> Result<bool> {
        let Some(record) = reader.next()? else { return Ok(false) };
        self.checked.clear();
        let row = self.checked.begin_row();
        for (column, cell) in record.cells().enumerate() {
            let role = self.plan.roles[column];
            let put = match role {
                // A category is not checked, and its vocabulary is not needed.
                Role::Category { .. } | Role::Dropped => Ok(()),
                _ => put_cell(&mut self.checked, row, role, cell, &self.notation),
            };
            match (put, role) {
                (Ok(()), _) | (Err(CellProblem::NotANumber { .. }), Role::Feature(_)) => {}
                (Err(problem), _) => {
                    let place =
                        format!("data file `{}`, {} {}", self.path.display(), self.place, record.line);
                    let column = self.plan.names[column].clone();
                    return Err(DataError::Cell { place, column, problem }.into());
                }
            }
            let text = String::from_utf8_lossy(cell);
            let text = text.trim();
            let out = &mut self.cells[column];
            out.clear();
            // Numbers get the decimal mark of the output.
            match with_point(text).filter(|_| matches!(self.notation.meaning(text), Meaning::Number(_))) {
                Some(number) => out.push_str(&number),
                None => out.push_str(text),
            }
        }
        Ok(true)
    }
}
