//! Formats of tables, whose columns have names and roles: CSV, Parquet, Arrow IPC, JSON lines.
//!
//! A format is a folder with its reader and writer, and a row in [`FORMATS`].

mod cell;
mod column_texts;
mod columns;
mod csv;
mod exact_rows;
#[cfg(feature = "parquet")]
mod ipc;
#[cfg(not(feature = "parquet"))]
#[path = "ipc/absent.rs"]
mod ipc;
mod json_lines;
mod label_column;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "parquet/absent.rs"]
mod parquet;
mod partition;
mod partition_rows;
mod read;
mod reader;
mod rows;
mod stream;
#[cfg(test)]
mod tests;
mod texts;
pub(crate) mod time;

pub(crate) use cell::{Meaning, Notation, put as put_cell, with_point};
pub(crate) use column_texts::for_each_text;
pub(crate) use columns::{ColumnPlan, FileColumns, Role, index_note, same_columns};
pub use csv::CsvError;
pub(crate) use csv::quoted as quoted_cell;
pub(crate) use exact_rows::ExactRows;
pub(crate) use label_column::LabelColumn;
pub(crate) use partition::{columns_of as partition_columns, is_partition};
pub(crate) use read::open;
#[cfg(test)]
pub(crate) use read::read_all;
pub(crate) use reader::{CellReader, ColumnType, TableReader, TableReaders};
pub(crate) use rows::{TableRows, TargetCells, huge_vocabulary};
pub(crate) use stream::TableStream;
pub(crate) use texts::Texts;
pub(crate) use time::format_seconds as format_moment;

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
        is_text: true,
        has_delimiter: true,
        reader: Reader::Table(TableReaders {
            open: csv::open,
            open_large: None,
            open_cells: csv::open_cells,
        }),
        writer: Some(WriteFormat {
            open: csv::create,
            open_text: Some(csv::create_text),
            endings: &["csv", "csv.gz", "csv.zst", "tsv", "tsv.gz", "tsv.zst"],
            storage: Storage { dtypes: &[DType::F32], categories: CategoryStorage::Text },
        }),
    },
    Format {
        id: DataFormat::Parquet,
        title: "Parquet",
        has_signature: |begin| begin.starts_with(b"PAR1"),
        is_text: false,
        has_delimiter: false,
        reader: Reader::Table(TableReaders {
            open: parquet::open,
            open_large: Some(parquet::open_large),
            open_cells: parquet::open_cells,
        }),
        writer: Some(WriteFormat {
            open: parquet::create,
            open_text: None,
            endings: &["parquet"],
            storage: Storage {
                dtypes: &[DType::F32, DType::F16, DType::U8],
                categories: CategoryStorage::Text,
            },
        }),
    },
    Format {
        id: DataFormat::Arrow,
        title: "Arrow IPC",
        has_signature: ipc::has_signature,
        is_text: false,
        has_delimiter: false,
        reader: Reader::Table(TableReaders {
            open: ipc::open,
            open_large: None,
            open_cells: ipc::open_cells,
        }),
        writer: Some(WriteFormat {
            open: ipc::create,
            open_text: None,
            endings: &["arrow", "feather"],
            storage: Storage {
                dtypes: &[DType::F32, DType::F16, DType::U8],
                categories: CategoryStorage::Text,
            },
        }),
    },
    Format {
        id: DataFormat::JsonLines,
        title: "JSON lines",
        has_signature: |begin| begin.trim_ascii_start().starts_with(b"{\""),
        is_text: true,
        has_delimiter: false,
        reader: Reader::Table(TableReaders {
            open: json_lines::open,
            open_large: None,
            open_cells: json_lines::open_cells,
        }),
        writer: Some(WriteFormat {
            open: json_lines::create,
            open_text: None,
            endings: &["jsonl", "jsonl.gz", "jsonl.zst"],
            storage: Storage { dtypes: &[DType::F32], categories: CategoryStorage::Text },
        }),
    },
];
