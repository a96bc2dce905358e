//! Rows between a reader and the writer of Parquet files.
//!
//! Rows come as a [`Chunk`] of typed blocks, one per group of the [`Schema`]. Files keep temporary names in a [`Staging`] until all of
//! them are complete.

mod chunk;
mod staging;
#[cfg(feature = "parquet")]
mod record_batches;

pub use chunk::{Block, Chunk, Group, Kind, Nulls, Numbers, Purpose, Schema, first_not_finite};
#[cfg(feature = "parquet")]
pub(crate) use record_batches::RecordBatches;
pub use staging::Staging;

/// Meaning of the cells of a column, for formats that distinguish numbers from texts. An empty cell is a missing value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellKind {
    /// Numbers.
    Number,
    /// Truth values.
    Truth,
    /// Strings.
    Text,
}
