//! Reads tables from the first to the last row, as typed columns.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp::config::DataConfig;
use ddp::data::DataError;
use ddp::storage::user_file::special_kind;
use ddp_tables::error::TableError;
use ddp_tables::formats::error::{CellProblem, ColumnError, CsvError, RowsError};
use ddp_tables::formats::table::source::TableFormat;
use ddp_tables::formats::table::types::{CellUse, Inference, Place, TypedColumn};
#[cfg(feature = "parquet")]
use ddp_tables::formats::write::Kind;
use ddp_tables::formats::write::{Chunk, Group, Schema};
use ddp_tables::shared_types::SharedTypes;
use ddp_tables::source::SourceSpec;
use ddp_tables::table::{CellColumns, ChunkReader, Partition, Shards, filter_of, same_columns, shards};
use ddp_tables::values::filter::Filter;
use ddp_tables::values::notation::Notation;
use tracing::info;

use super::input::Input;
use crate::error::Result;

/// Rows of tables.
pub(super) struct TableSource {
    files: Vec<PathBuf>,
    types: SharedTypes,
    format: &'static TableFormat,
    data: DataConfig,
    filter: Option<Arc<Filter>>,
    schema: Schema,
    /// Types of the columns of text files.
    cells: Option<CellColumns>,
    /// Types of the columns that come from folder names, for other files.
    folders: Vec<Inference>,
    reader: Option<ChunkReader>,
    n_opened: usize,
    /// Number of rows read from the current file.
    n_rows: usize,
}

impl TableSource {
    pub(super) fn new(files: Vec<PathBuf>, format: &'static TableFormat, input: &Input<'_>) -> Result<Self> {
        let filter = filter_of(&input.spec())?;
        let spec = SourceSpec { filter: filter.as_ref(), ..input.spec() };
        let Shards { files, types } = shards(files, format, &spec);
        types.notes.iter().for_each(|note| info!("{}: {note}", spec.source));
        let mut source = TableSource {
            format,
            data: input.data.clone(),
            filter: filter.clone(),
            schema: Schema { source: spec.source.to_owned(), groups: Vec::new() },
            cells: None,
            folders: Vec::new(),
            reader: None,
            n_opened: 0,
            n_rows: 0,
            files,
            types,
        };
        if format.is_text {
            refuse_pipes(&source.files)?;
            let cells = CellColumns::scan(&source.files, format, &spec)?;
            // The rows are read again.
            if let Some(filter) = &filter {
                filter.take_counts();
            }
            source.schema.groups = cells.groups();
            source.cells = Some(cells);
        } else {
            source.find_types()?;
        }
        Ok(source)
    }

    /// Determines the types of the columns over all files.
    fn find_types(&mut self) -> Result<()> {
        for at in 0..self.files.len() {
            let reader = self.open(at)?;
            let groups = reader.groups();
            check_types(&self.files[at], &groups)?;
            let partitions = used(reader.partitions());
            if at == 0 {
                self.schema.groups = groups;
                self.folders = vec![Inference::default(); partitions.len()];
            } else {
                let names = |groups: &[Group]| {
                    groups.iter().flat_map(|group| group.names.clone()).collect::<Vec<_>>()
                };
                let path = &self.files[at];
                same_columns(&self.files[0], &names(&self.schema.groups), path, &names(&groups))?;
                for (first, group) in self.schema.groups.iter_mut().zip(groups) {
                    match (&first.kind, &group.kind) {
                        // Types of the files differ at most in what they say besides.
                        #[cfg(feature = "parquet")]
                        (Kind::Arrow(a), Kind::Arrow(b)) if a.data_type() == b.data_type() => {
                            let field = a.as_ref().clone().with_nullable(a.is_nullable() || b.is_nullable());
                            first.kind = Kind::Arrow(Arc::new(field));
                        }
                        _ => {
                            let difference = format!("column \"{}\" has another type", first.names[0]);
                            let (first, other) = (self.files[0].clone(), path.clone());
                            return Err(DataError::from(RowsError::ShardsDiffer {
                                first,
                                other,
                                difference,
                            })
                            .into());
                        }
                    }
                }
            }
            for (inference, partition) in self.folders.iter_mut().zip(&partitions) {
                let (value, place) = (partition.value.as_bytes(), Place { file: at, number: 0 });
                let added = inference.add(value, false, CellUse::Number, &Notation::for_folders(), place);
                added.map_err(|problem| place_in_folder(&self.files, place, &partition.name, problem))?;
            }
            if at + 1 == self.files.len() {
                for (inference, partition) in self.folders.iter().zip(partitions) {
                    let kind = inference.kind(CellUse::Number);
                    let kind = kind.map_err(|(place, problem)| {
                        place_in_folder(&self.files, place, &partition.name, problem)
                    })?;
                    let purpose = partition.role.purpose().expect("it is used");
                    self.schema.groups.push(Group::column(purpose, partition.name, kind));
                }
            }
        }
        Ok(())
    }

    fn open(&self, at: usize) -> Result<ChunkReader> {
        let path = &self.files[at];
        let filter = self.filter.as_ref();
        let spec = SourceSpec { types: Some(&self.types), filter, ..SourceSpec::train(&self.data) };
        Ok(match &self.cells {
            Some(cells) => ChunkReader::from_text(path, self.format, &spec, cells)?,
            None => ChunkReader::from_types(path, self.format, &spec)?,
        })
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }

    pub(super) fn n_rounded(&self) -> u64 {
        self.cells.as_ref().map_or(0, |cells| cells.n_rounded)
    }

    pub(super) fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>> {
        loop {
            if self.reader.is_none() {
                if self.n_opened == self.files.len() {
                    return self.check_filter().map(|()| None);
                }
                self.reader = Some(self.open(self.n_opened)?);
                self.n_opened += 1;
                self.n_rows = 0;
            }
            let reader = self.reader.as_mut().expect("it was opened");
            if let Some(mut chunk) = reader.next(max_rows)? {
                let partitions = used(reader.partitions());
                for (partition, group) in partitions.iter().zip(&self.schema.groups[chunk.blocks.len()..]) {
                    let mut column = TypedColumn::from_kind(CellUse::Number, &group.kind);
                    for _ in 0..chunk.n_rows {
                        column.push(partition.value.as_bytes(), &Notation::for_folders());
                    }
                    chunk.blocks.push(column.take());
                }
                self.n_rows += chunk.n_rows;
                return Ok(Some(chunk));
            }
            if self.n_rows == 0 && self.filter.is_none() {
                let path = self.files[self.n_opened - 1].clone();
                return Err(DataError::from(CsvError::NoRows { path }).into());
            }
            self.reader = None;
        }
    }

    /// Reports how many rows the filter kept, once all are read.
    fn check_filter(&self) -> Result<()> {
        let Some(filter) = &self.filter else { return Ok(()) };
        let report = filter.report(&self.data.train);
        let (n_kept, n_rows) = filter.take_counts();
        if n_rows == 0 {
            return Ok(());
        }
        if n_kept == 0 {
            let source_name = self.data.train.clone();
            return Err(DataError::from(TableError::FilterKeepsNone { source_name, n_rows }).into());
        }
        report.iter().for_each(|report| info!("{report}"));
        Ok(())
    }

    /// Fraction of the rows that has been read, from 0 to 1, if known.
    pub(super) fn fraction(&self) -> Option<f64> {
        let of_file = self.reader.as_ref().map_or(Some(1.0), |reader| reader.fraction())?;
        Some((self.n_opened.saturating_sub(1) as f64 + of_file) / self.files.len() as f64)
    }
}

fn place_in_folder(
    files: &[PathBuf],
    place: Place,
    column: &str,
    problem: CellProblem,
) -> crate::error::Error {
    cell(format!("data file `{}`", files[place.file].display()), column, problem)
}

fn cell(place: String, column: &str, problem: CellProblem) -> crate::error::Error {
    DataError::from(TableError::Cell { place, column: column.to_owned(), problem }).into()
}

/// The folder-name columns that are converted.
fn used(partitions: &[Partition]) -> Vec<Partition> {
    partitions.iter().filter(|partition| partition.role.purpose().is_some()).cloned().collect()
}

/// Refuses columns of a type that Parquet files cannot hold.
fn check_types(path: &Path, groups: &[Group]) -> Result<()> {
    let lacked = groups.iter().find_map(|group| Some((group, group.kind.not_in_parquet()?)));
    let Some((group, got)) = lacked else { return Ok(()) };
    Err(DataError::from(ColumnError::WrongType {
        path: path.to_owned(),
        column: group.names[0].clone(),
        expected: "a type of Parquet",
        got: got.to_owned(),
        hint: "leave the column out by --drop, or write it as numbers",
    })
    .into())
}

/// The types of text files depend on all of their cells, so text files are read twice.
fn refuse_pipes(files: &[PathBuf]) -> Result<()> {
    for path in files {
        if let Some(kind) = path.metadata().ok().and_then(|data| special_kind(data.file_type())) {
            let reason = format!("it is {kind}, and text is read twice: first for the types of its columns");
            let (path, hint) = (path.clone(), "save it as a file first");
            return Err(DataError::from(RowsError::Malformed { path, format: "table", reason, hint }).into());
        }
    }
    Ok(())
}
