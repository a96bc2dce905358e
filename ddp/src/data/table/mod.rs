//! Formats of tables, whose columns have names and roles: CSV and Parquet.
//!
//! A format is a folder with its reader and writer, and a row in [`FORMATS`].

mod cell;
mod columns;
mod csv;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "parquet/absent.rs"]
mod parquet;
mod read;
mod reader;
mod rows;
#[cfg(test)]
mod tests;
mod time;

pub(crate) use cell::{Meaning, Notation};
pub(crate) use columns::{ColumnPlan, index_note, same_columns};
pub use csv::CsvError;
pub(crate) use read::open;
#[cfg(test)]
pub(crate) use read::read_all;
pub(crate) use reader::{CellReader, TableReader, TableReaders};
pub(crate) use rows::{TableRows, TargetCells, huge_vocabulary};

use ddp_kernels::DType;

use super::format::{Format, Reader};
use super::write::{CategoryStorage, Storage, WriteFormat};
use crate::config::DataFormat;

/// The formats of tables.
pub(crate) const FORMATS: &[Format] = &[
    Format {
        id: DataFormat::Csv,
        title: "CSV",
        has_signature: |_| false,
        reader: Reader::Table(TableReaders {
            open: csv::open,
            open_large: None,
            open_cells: Some(csv::open_cells),
        }),
        writer: Some(WriteFormat {
            open: csv::create,
            endings: &["csv", "csv.gz", "csv.zst", "tsv", "tsv.gz", "tsv.zst"],
            storage: Storage { dtypes: &[DType::F32], categories: CategoryStorage::Text },
        }),
    },
    Format {
        id: DataFormat::Parquet,
        title: "Parquet",
        has_signature: |begin| begin.starts_with(b"PAR1"),
        reader: Reader::Table(TableReaders {
            open: parquet::open,
            open_large: Some(parquet::open_large),
            open_cells: None,
        }),
        writer: Some(WriteFormat {
            open: parquet::create,
            endings: &["parquet"],
            storage: Storage {
                dtypes: &[DType::F32, DType::F16, DType::U8],
                categories: CategoryStorage::Text,
            },
        }),
    },
];
