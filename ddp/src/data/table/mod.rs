//! Tables, whose columns have names and roles: CSV, Parquet, Arrow IPC, JSON lines.
//!
//! A format is a folder with its opening function and its writer, and a row in the registry `formats`. It yields records of text or
//! record batches ([`source`]) and knows no roles; [`text`] and [`batches`] make rows, cells and typed columns of them.

#[cfg(feature = "parquet")]
mod batch_source;
mod source;
mod read_options;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(feature = "parquet")]
pub(crate) mod ipc;
#[cfg(not(feature = "parquet"))]
pub(crate) mod absent;
pub(crate) mod csv;
pub(crate) mod json_lines;
mod exact_rows;
mod kept;
mod label_column;
mod partition;
mod columns;
mod rows;
mod cell;
mod partition_rows;
mod types;
mod text;
#[cfg(feature = "parquet")]
mod batches;
#[cfg(feature = "parquet")]
mod large;
mod row_reader;
mod cell_reader;
mod cell_chunks;
mod chunk_reader;
mod column_texts;
mod read;
mod stream;
#[cfg(test)]
mod tests;

pub use cell_chunks::CellColumns;
pub use cell_reader::CellReader;
pub use chunk_reader::ChunkReader;
pub(crate) use column_texts::for_each_text;
pub use columns::{ColumnPlan, Partition, Role, column_missing, index_note, repeated_note, same_columns};
pub(crate) use csv::quoted as quoted_cell;
pub(crate) use exact_rows::ExactRows;
pub(crate) use kept::KeptValues;
pub use partition::{columns_of as partition_columns, is_partition};
pub(crate) use read::open;
#[cfg(test)]
pub(crate) use read::read_all;
pub(crate) use rows::TableRows;
pub use source::{ColumnType, ReadOptions, Source, TableFormat};
pub(crate) use stream::TableStream;
pub use types::{CellUse, Destination, Inference, TypedColumn};
