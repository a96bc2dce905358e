//! Finds and opens the files of a source: by pattern or folder, as arrays or tables, or a set inside the binary.

pub mod builtin;
pub mod folder;
pub mod files;
pub mod open_arrays;
pub mod list_arrays;
mod opened;

pub(crate) use opened::open;
