//! Formats of tables, whose columns have names and roles: CSV, Parquet, Arrow IPC, JSON lines.
//!
//! A format is a folder with its reader and writer, and a row in [`FORMATS`].

mod cell;
mod cell_chunks;
mod column_texts;
mod columns;
mod csv;
mod decimal;
mod exact_rows;
mod inferred;
#[cfg(feature = "parquet")]
mod ipc;
#[cfg(not(feature = "parquet"))]
#[path = "ipc/absent.rs"]
mod ipc;
mod json_lines;
mod kept;
mod label_column;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "parquet/absent.rs"]
mod parquet;
mod partition;
mod partition_rows;
mod plain_number;
mod read;
mod reader;
mod row_texts;
mod rows;
mod stream;
#[cfg(test)]
mod tests;
mod texts;
pub(crate) mod time;
mod typed_column;

pub use cell::{Meaning, Notation};
pub use cell_chunks::{CellColumns, open_planned};
pub(crate) use column_texts::for_each_text;
pub use columns::{ColumnPlan, Partition, Role, index_note, same_columns};
pub use csv::CsvError;
pub(crate) use csv::quoted as quoted_cell;
pub use decimal::{DecimalMark, Unclear};
pub(crate) use exact_rows::ExactRows;
pub use inferred::{CellUse, Destination, Inference};
pub(crate) use kept::KeptValues;
pub use partition::{columns_of as partition_columns, is_partition};
pub(crate) use read::open;
#[cfg(test)]
pub(crate) use read::read_all;
pub use reader::{CellReader, ChunkReader, ColumnType, TableReaders};
pub(crate) use rows::TableRows;
pub(crate) use stream::TableStream;
pub use texts::Texts;
pub use time::{MomentType, format_seconds as format_moment};
pub use typed_column::TypedColumn;

use super::format::{Format, Reader};
use super::write::{WriteFormat, Writer};
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
            open_chunks: None,
        }),
        writer: Some(WriteFormat {
            writer: Writer::Text(csv::create),
            endings: &["csv", "csv.gz", "csv.zst", "tsv", "tsv.gz", "tsv.zst"],
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
            open_chunks: Some(parquet::open_chunks),
        }),
        writer: Some(WriteFormat { writer: Writer::Columns(parquet::create), endings: &["parquet"] }),
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
            open_chunks: Some(ipc::open_chunks),
        }),
        writer: Some(WriteFormat { writer: Writer::Columns(ipc::create), endings: &["arrow", "feather"] }),
    },
    Format {
        id: DataFormat::JsonLines,
        title: "JSON lines",
        has_signature: json_lines::has_signature,
        is_text: true,
        has_delimiter: false,
        reader: Reader::Table(TableReaders {
            open: json_lines::open,
            open_large: None,
            open_cells: json_lines::open_cells,
            open_chunks: None,
        }),
        writer: Some(WriteFormat {
            writer: Writer::Text(json_lines::create),
            endings: &["jsonl", "jsonl.gz", "jsonl.zst"],
        }),
    },
];
