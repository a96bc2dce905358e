//! Tables: the roles of their columns, and rows, cells and typed columns of them.
//!
//! The formats are in `formats`, which yields records of text or record batches; `text` and `batches` make rows of
//! them.

mod cell_values;
pub(crate) mod exact_columns;
mod exact_rows;
mod mapped_arrays;
mod shared_rows;
mod kept;
mod label_column;
mod partition;
mod columns;
mod feature_kinds;
mod rows;
mod cell;
mod partition_rows;
mod text;
#[cfg(feature = "parquet")]
mod batches;
#[cfg(feature = "parquet")]
mod large;
mod shards;
mod filtered;
mod row_reader;
mod cell_reader;
mod cell_chunks;
mod chunk_reader;
#[cfg(feature = "parquet")]
mod spilled;
mod column_texts;
mod read;
mod stream;
#[cfg(test)]
mod tests;

pub use cell_chunks::CellColumns;
pub use cell_reader::CellReader;
pub use cell_values::CellValues;
pub use chunk_reader::ChunkReader;
pub(crate) use column_texts::for_each_text;
pub use columns::{
    ColumnPlan, Partition, Role, column_missing, index_note, repeated_note, same_columns, same_names,
};
pub(crate) use exact_rows::ExactRows;
pub use filtered::filter_of;
pub(crate) use kept::KeptValues;
pub use partition::{columns_of as partition_columns, is_partition};
#[cfg(test)]
pub(crate) use read::read_all;
pub(crate) use read::{open, open_fetched};
pub(crate) use rows::TableRows;
pub use shards::{Shards, shards};
pub(crate) use shared_rows::{Fetched, SharedRows, fetch, publish_elsewhere};
pub(crate) use stream::TableStream;
