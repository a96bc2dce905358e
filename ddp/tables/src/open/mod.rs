//! Finds and opens the files of a source: by pattern, folder or address, as arrays or tables, or a set inside the binary.

pub mod builtin;
mod pattern;
pub mod folder;
pub mod remote;
pub mod files;
pub mod open_arrays;
pub mod list_arrays;
mod opened;

pub(crate) use opened::open;
