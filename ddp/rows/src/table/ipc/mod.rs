//! Arrow IPC: files (Feather version 2, Polars) and streams of record batches.
//!
//! Source: <https://arrow.apache.org/docs/format/Columnar.html>; decoded by the crate `arrow-ipc`.

mod file;
mod writer;

pub use file::open;
pub use writer::create;
