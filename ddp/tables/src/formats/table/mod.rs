//! Formats of tables, whose columns have names: CSV, JSON lines, Parquet, Arrow IPC.
//!
//! A format is a folder or file with its opening function and its writer, and a row in the registry `formats`. An open file yields records of
//! text or record batches ([`source`]); what the columns are used for is decided elsewhere.

#[cfg(feature = "parquet")]
pub mod batch_source;
pub mod source;
#[cfg(feature = "parquet")]
mod patched;
#[cfg(feature = "parquet")]
mod plain;
#[cfg(feature = "parquet")]
pub mod ipc;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(not(feature = "parquet"))]
pub mod absent;
pub mod csv;
pub mod json_lines;
pub mod types;
