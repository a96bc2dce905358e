//! Reads tables of text as typed columns, to convert them to other files. All cells are read twice: first for the types.

use std::path::{Path, PathBuf};

use ddp::config::Task;
#[cfg(feature = "parquet")]
use ddp::config::table_options::Decimal;
use ddp::data::error::{DataError, Result};

use crate::error::TableError;
use crate::formats::error::{CellProblem, CsvError, RowsError};
use crate::formats::table::source::TableFormat;
use crate::formats::table::types::{CellUse, Inference, Place, TypedColumn};
use crate::formats::write::{Chunk, Group};
use crate::source::SourceSpec;
use crate::table::cell_reader::CellReader;
use crate::table::columns::{ColumnPlan, Role, same_columns};
use crate::table::row_reader::CommonMark;

/// Columns of tables of text, with the types that all of their cells have in common.
#[derive(Debug, Clone)]
pub struct CellColumns {
    names: Vec<String>,
    columns: Vec<CellColumn>,
    /// Integers that the types of their columns round.
    pub n_rounded: u64,
    mark: CommonMark,
}

/// A column that is converted.
#[derive(Debug, Clone)]
struct CellColumn {
    /// Index among the names.
    index: usize,
    use_: CellUse,
    group: Group,
}

impl CellColumns {
    /// Reads all cells of `files`.
    ///
    /// # Errors
    /// Cells that no type of columns holds, by place.
    pub fn scan(files: &[PathBuf], format: &TableFormat, spec: &SourceSpec<'_>) -> Result<Self> {
        let mut first: Option<(ColumnPlan, Vec<Inference>)> = None;
        let mut mark = CommonMark::new(spec);
        for (file, path) in files.iter().enumerate() {
            if first.is_some() && spec.filter.is_some_and(|filter| filter.is_full()) {
                break;
            }
            let (mut reader, plan) = CellReader::open_planned(path, format, &mark.for_next(spec))?;
            mark.add(path, reader.found_decimal(), spec)?;
            let names = plan.all_names();
            let (first_plan, columns) =
                first.get_or_insert_with(|| (plan.clone(), vec![Inference::default(); names.len()]));
            same_columns(&files[0], &first_plan.all_names(), path, &names)?;
            let notation = reader.notation().clone();
            let roles = plan.all_roles();
            for (column, are_dates) in columns.iter_mut().zip(&reader.columns().are_dates) {
                column.are_dates |= are_dates;
            }
            let uses: Vec<CellUse> = roles.iter().map(|role| cell_use(*role, spec)).collect();
            let of_folders: Vec<String> =
                plan.partitions.iter().map(|partition| partition.value.clone()).collect();
            let mut n_rows = 0;
            while let Some(record) = reader.record()? {
                let cells = record.cells().chain(of_folders.iter().map(String::as_bytes));
                for (column, cell) in cells.enumerate() {
                    if roles[column].purpose().is_none() {
                        continue;
                    }
                    let place = Place { file, number: record.line };
                    let (is_string, use_) = (record.is_string(column), uses[column]);
                    let added = columns[column].add(cell, is_string, use_, &notation, place);
                    added.map_err(|problem| cell_error(files, place, &names[column], problem))?;
                }
                n_rows += 1;
            }
            if n_rows == 0 && spec.filter.is_none() {
                return Err(CsvError::NoRows { path: path.clone() }.into());
            }
        }
        let (plan, columns) = first.expect("there is a file");
        Ok(CellColumns { mark, ..Self::new(files, &plan, &columns, spec)? })
    }

    fn new(
        files: &[PathBuf],
        plan: &ColumnPlan,
        inferred: &[Inference],
        spec: &SourceSpec<'_>,
    ) -> Result<Self> {
        let names = plan.all_names();
        let (mut columns, mut n_rounded) = (Vec::new(), 0);
        for (index, (role, inference)) in plan.all_roles().into_iter().zip(inferred).enumerate() {
            let Some(purpose) = role.purpose() else { continue };
            let use_ = cell_use(role, spec);
            let kind = inference.kind(use_);
            let kind = kind.map_err(|(place, problem)| cell_error(files, place, &names[index], problem))?;
            n_rounded += inference.n_rounded(&kind);
            columns.push(CellColumn {
                index,
                use_,
                group: Group::column(purpose, names[index].clone(), kind),
            });
        }
        Ok(CellColumns { names, columns, n_rounded, mark: CommonMark::default() })
    }

    /// The columns that are converted.
    pub fn groups(&self) -> Vec<Group> {
        self.columns.iter().map(|column| column.group.clone()).collect()
    }

    /// Decimal mark of the files, if they show one.
    #[cfg(feature = "parquet")]
    pub(in crate::table) fn decimal(&self) -> Decimal {
        self.mark.found()
    }

    /// Opens a file of these columns.
    pub(in crate::table) fn open(
        &self,
        path: &Path,
        format: &TableFormat,
        spec: &SourceSpec<'_>,
    ) -> Result<CellChunks> {
        let (reader, plan) = CellReader::open_planned(path, format, &self.mark.for_next(spec))?;
        if plan.all_names() != self.names {
            return Err(DataError::from(RowsError::Changed { path: path.to_owned() }));
        }
        Ok(CellChunks {
            path: path.to_owned(),
            typed: self
                .columns
                .iter()
                .map(|column| TypedColumn::from_kind(column.use_, &column.group.kind))
                .collect(),
            columns: self.clone(),
            plan,
            reader,
        })
    }
}

fn cell_error(files: &[PathBuf], place: Place, column: &str, problem: CellProblem) -> DataError {
    let place = format!("data file `{}`, line {}", files[place.file].display(), place.number);
    DataError::from(TableError::Cell { place, column: column.to_owned(), problem })
}

fn cell_use(role: Role, spec: &SourceSpec<'_>) -> CellUse {
    match role {
        Role::Category { .. } => CellUse::Category,
        Role::Target(_) if spec.data.task == Task::Classification && spec.data.target.len() == 1 => {
            CellUse::Label
        }
        _ => CellUse::Number,
    }
}

/// Reads the rows of one file.
pub(in crate::table) struct CellChunks {
    path: PathBuf,
    reader: CellReader,
    plan: ColumnPlan,
    columns: CellColumns,
    typed: Vec<TypedColumn>,
}

impl CellChunks {
    /// The columns that are converted.
    pub(in crate::table) fn groups(&self) -> Vec<Group> {
        self.columns.groups()
    }

    /// Share of the file that was read, from 0 to 1; `None` if its length is unknown.
    pub(in crate::table) fn fraction(&self) -> Option<f64> {
        self.reader.fraction()
    }

    /// Up to `max_rows` next rows; `None` at the end.
    pub(in crate::table) fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>> {
        let notation = self.reader.notation().clone();
        let n_own = self.plan.names.len();
        let mut n_rows = 0;
        while n_rows < max_rows
            && let Some(record) = self.reader.record()?
        {
            for (column, typed) in self.columns.columns.iter().zip(&mut self.typed) {
                let cell = match column.index.checked_sub(n_own) {
                    None => record.cell(column.index),
                    Some(folder) => self.plan.partitions[folder].value.as_bytes(),
                };
                if !typed.push(cell, &notation) {
                    return Err(DataError::from(RowsError::Changed { path: self.path.clone() }));
                }
            }
            n_rows += 1;
        }
        let blocks = self.typed.iter_mut().map(TypedColumn::take).collect();
        Ok((n_rows > 0).then_some(Chunk { n_rows, blocks }))
    }
}
