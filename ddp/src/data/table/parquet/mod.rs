//! Parquet: columns in row groups. Files that fit in memory are read like any table; of larger files row groups are decoded
//! on demand ([`large`], [`blocks`]).
//!
//! Source: <https://parquet.apache.org/docs/file-format/>; decoded by the crate `parquet`.

mod blocks;
mod cache;
mod cells;
mod columns;
mod file;
mod large;
mod reader;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod type_tests;
mod writer;

pub(crate) use large::open_large;
pub(crate) use reader::open;
pub(crate) use writer::create;
