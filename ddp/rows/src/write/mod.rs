//! Writing rows to files: shared by the writers of all formats.
//!
//! Rows come as a [`Chunk`] of typed blocks, one per group of the [`Schema`]. Files of arrays get them encoded by an
//! [`ArrayEncoder`]. Files keep temporary names in a [`Staging`] until all of them are complete.

mod chunk;
mod encode;
mod arrays;
mod staging;
mod writer;
#[cfg(feature = "parquet")]
mod record_batches;

pub use arrays::{ArrayEncoder, ArrayFiles, ArrayLayout, ArrayRows, ArrayStorage, Codes, cast_features};
pub use chunk::{Block, Chunk, Group, Kind, Nulls, Numbers, Purpose, Schema};
pub use encode::{common as common_type, first_not_finite};
#[cfg(feature = "parquet")]
pub use record_batches::RecordBatches;
pub use staging::{Staging, TextFile};
pub use writer::{
    ArrayWriter, CellKind, ColumnWriter, OpenArrays, OpenColumns, OpenText, OutFiles, TextColumn, TextWriter,
    WriteFormat, Writer,
};
