//! Tables: CSV and Parquet, whose columns have names and are for different things.

mod columns;
mod csv;
#[cfg(feature = "parquet")]
mod parquet;
mod rows;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use columns::ColumnPlan;
pub use csv::CsvError;
pub(crate) use csv::{CellReader, CsvReader, is_missing};
pub(crate) use rows::{TableRows, TargetCells, huge_vocabulary};

use super::dataset::Dataset;
use super::source::SourceSpec;
use super::{DataError, resident::ResidentRows};
use crate::config::DataFormat;
use crate::data::error::Result;

/// Rows that are read at a time, and fewer of many columns: before the limit is looked at again.
const CHUNK_ROWS: usize = 4096;
/// Numbers in them.
const CHUNK_NUMBERS: usize = 1 << 20;

/// Reads the rows of one file of a table, in order.
pub(crate) enum TableReader {
    Csv(Box<CsvReader>),
    #[cfg(feature = "parquet")]
    Parquet(Box<parquet::ParquetReader>),
}

impl TableReader {
    /// Opens the file and reads what its columns are.
    pub(crate) fn open(path: &Path, format: DataFormat, spec: &SourceSpec<'_>) -> Result<Self> {
        match format {
            #[cfg(feature = "parquet")]
            DataFormat::Parquet => {
                Ok(TableReader::Parquet(Box::new(parquet::ParquetReader::open(path, spec)?)))
            }
            #[cfg(not(feature = "parquet"))]
            DataFormat::Parquet => Err(DataError::ParquetNotBuilt { path: path.to_owned() }.into()),
            _ => Ok(TableReader::Csv(Box::new(CsvReader::open(path, spec)?))),
        }
    }

    pub(crate) fn plan(&self) -> &ColumnPlan {
        match self {
            TableReader::Csv(reader) => reader.plan(),
            #[cfg(feature = "parquet")]
            TableReader::Parquet(reader) => reader.plan(),
        }
    }

    /// Appends up to `max_rows` rows to `rows`; how many, 0 only at the end.
    pub(crate) fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        match self {
            TableReader::Csv(reader) => reader.read(rows, max_rows),
            #[cfg(feature = "parquet")]
            TableReader::Parquet(reader) => reader.read(rows, max_rows),
        }
    }

    /// The part of the file that was read, from 0 to 1; None where its length is not known.
    pub(crate) fn fraction(&self) -> Option<f64> {
        match self {
            TableReader::Csv(reader) => reader.fraction(),
            #[cfg(feature = "parquet")]
            TableReader::Parquet(reader) => Some(reader.fraction()),
        }
    }
}

/// All rows of a table, in memory.
pub(crate) fn open(files: &[PathBuf], format: DataFormat, spec: &SourceSpec<'_>) -> Result<Arc<dyn Dataset>> {
    #[cfg(feature = "parquet")]
    if format == DataFormat::Parquet
        && let Some(rows) = parquet::open(files, spec)?
    {
        return Ok(rows);
    }
    Ok(Arc::new(read_all(files, format, spec)?))
}

/// The rows of all files, as many as the config's memory holds.
pub(crate) fn read_all(files: &[PathBuf], format: DataFormat, spec: &SourceSpec<'_>) -> Result<ResidentRows> {
    let mut first: Option<(ColumnPlan, TableRows)> = None;
    for path in files {
        let mut reader = TableReader::open(path, format, spec)?;
        let (plan, rows) = match &mut first {
            None => {
                let rows = TableRows::new(reader.plan(), spec);
                first.insert((reader.plan().clone(), rows))
            }
            Some(first) => first,
        };
        same_columns(&files[0], &plan.names, path, &reader.plan().names)?;
        let n_before = rows.n_rows;
        let chunk_rows = (CHUNK_NUMBERS / plan.names.len().max(1)).clamp(1, CHUNK_ROWS);
        while reader.read(rows, chunk_rows)? > 0 {
            if let Some(vocabulary) = rows.huge_vocabulary() {
                return Err(huge_vocabulary(path, vocabulary.name()));
            }
            if rows.size_bytes() > spec.memory_bytes {
                return Err(too_large(spec, rows.size_bytes()));
            }
        }
        if rows.n_rows == n_before {
            return Err(CsvError::NoRows { path: path.clone() }.into());
        }
    }
    let (plan, rows) = first.expect("there is a file");
    rows.finish(&plan, &files[0], spec)
}

fn too_large(spec: &SourceSpec<'_>, at_least: u64) -> DataError {
    DataError::TooLarge {
        source_name: spec.source.to_owned(),
        what: "or more as rows of f32",
        needed_mib: (at_least >> 20) + 1,
        limit_mib: spec.memory_bytes >> 20,
        hint: format!(
            "convert it once to a format that need not be in memory: `ddp-train data convert {} rows.safetensors`, or raise the limit",
            spec.source
        ),
    }
}

/// Shards have the same columns, in the same order.
pub(crate) fn same_columns(first: &Path, expected: &[String], path: &Path, got: &[String]) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    let at = expected.iter().zip(got).position(|(expected, got)| expected != got);
    let difference = match at {
        Some(i) => format!("column {} is \"{}\" in one and \"{}\" in the other", i + 1, expected[i], got[i]),
        None => format!("{} columns against {}", expected.len(), got.len()),
    };
    Err(DataError::ShardsDiffer { first: first.to_owned(), other: path.to_owned(), difference })
}
