//! Columns with types, of any format: as rows to train on, as cells of text, and as chunks to convert.

mod arrays;
mod text;
pub(super) mod elements;
mod columns;
pub(super) mod filtered_columns;
mod common_type;
mod marks;
mod widened;
mod rows;
mod cells;
mod chunks;
#[cfg(test)]
mod element_tests;
#[cfg(test)]
mod shard_tests;
#[cfg(test)]
mod type_tests;

pub(super) use cells::BatchCells;
pub(super) use chunks::BatchChunks;
pub(super) use columns::Columns;
pub(super) use rows::{BatchRows, batch_rows};
pub(super) use widened::{Casts, share_types, widened};
