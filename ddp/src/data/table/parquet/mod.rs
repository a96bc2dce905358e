//! Parquet: columns in row groups.
//!
//! Source: <https://parquet.apache.org/docs/file-format/>; decoded by the crate `parquet`.

mod file;
mod lists;
mod reader;
mod writer;

pub(in crate::data::table) use file::{ParquetFile, malformed};
pub(crate) use reader::open;
pub(crate) use writer::create;
