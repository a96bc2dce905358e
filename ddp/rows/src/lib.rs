//! Files of rows: tables and arrays of all formats, read and written.
//!
//! The crate knows no model, no rank and no config. A format is a row of the registry [`formats`]. A table is opened once, as records of
//! text or as record batches ([`table::source`]); an array is mapped ([`arrays`]). What the columns are used for is decided by the
//! caller. Text becomes a value in [`values`], and `write` holds what the writers share. An error names file and place, what was
//! expected and found, and a remedy ([`error`]).

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod user_file;
#[doc(hidden)]
pub mod fingerprint;
pub mod options;
pub mod values;
pub mod error;
#[doc(hidden)]
pub mod foreign;
pub mod compression;
#[doc(hidden)]
pub mod write;
pub mod arrays;
pub mod table;
pub mod formats;
