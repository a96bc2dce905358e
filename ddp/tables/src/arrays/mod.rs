//! Rows of files of arrays (npy, npz, safetensors, IDX), which are mapped: they are read when they are needed, not before.

pub(crate) mod targets;
pub(crate) mod rows;
mod known;

pub use known::same_columns;
pub use rows::RawRows;
