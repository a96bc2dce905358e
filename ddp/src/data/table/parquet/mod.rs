//! Parquet: columns in row groups. Files that fit in memory are read like any table; of larger files row groups are decoded
//! on demand ([`large`], [`blocks`]).
//!
//! Source: <https://parquet.apache.org/docs/file-format/>; decoded by the crate `parquet`.

mod batches;
mod cache;
mod cells;
mod file;
mod lists;
mod columns;
mod text;
mod cell_reader;
mod marks;
mod reader;
mod blocks;
mod chunks;
mod large;
mod writer;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod type_tests;

pub(in crate::data::table) use batches::Batches;
pub(in crate::data::table) use cell_reader::ArrowCells;
pub(crate) use cell_reader::open_cells;
pub(in crate::data::table) use chunks::BatchChunks;
pub(crate) use chunks::open_chunks;
pub(in crate::data::table) use columns::{Columns, list_len_in};
pub(crate) use large::open_large;
pub(in crate::data::table) use lists::ListColumn;
pub(in crate::data::table) use reader::BatchRows;
pub(crate) use reader::open;
pub(crate) use writer::create;
