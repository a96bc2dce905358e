//! Formats of tables, whose columns have names and roles: CSV, Parquet, Arrow IPC, JSON lines.
//!
//! A format is a folder with its reader and writer, and a row in the registry `formats`.

mod exact_rows;
mod kept;
mod label_column;
mod partition;
mod columns;
mod rows;
mod cell;
mod inferred;
mod partition_rows;
mod reader;
mod column_texts;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "parquet/absent.rs"]
pub(crate) mod parquet;
#[cfg(feature = "parquet")]
pub(crate) mod ipc;
#[cfg(not(feature = "parquet"))]
#[path = "ipc/absent.rs"]
pub(crate) mod ipc;
mod read;
mod row_texts;
pub(crate) mod csv;
pub(crate) mod json_lines;
mod stream;
mod typed_column;
mod cell_chunks;
#[cfg(test)]
mod tests;

pub use cell_chunks::{CellColumns, open_planned};
pub(crate) use column_texts::for_each_text;
pub use columns::{ColumnPlan, Partition, Role, column_missing, index_note, repeated_note, same_columns};
pub(crate) use csv::quoted as quoted_cell;
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
pub use typed_column::TypedColumn;
