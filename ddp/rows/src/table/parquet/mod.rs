//! Parquet: columns in row groups.
//!
//! Source: <https://parquet.apache.org/docs/file-format/>; decoded by the crate `parquet`.

mod file;
mod lists;
mod reader;
mod writer;

pub use file::{ParquetFile, malformed};
pub use reader::open;
pub use writer::create;
