//! Arrow IPC: files (Feather version 2, Polars) and streams of record batches; their columns are treated as those of Parquet.
//!
//! Source: <https://arrow.apache.org/docs/format/Columnar.html>; decoded by the crate `arrow-ipc`.

mod file;
mod reader;
mod writer;

pub(crate) use reader::{open, open_cells, open_chunks};
pub(crate) use writer::create;

/// Whether a file begins like this; a stream has no name of its format, only the mark of its first message.
pub(crate) fn has_signature(begin: &[u8]) -> bool {
    begin.starts_with(b"ARROW1") || begin.starts_with(b"\xff\xff\xff\xff") && begin.get(7) == Some(&0)
}
