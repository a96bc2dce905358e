//! Formats whose rows lie in files as arrays: npy, npz, safetensors, IDX. Rows are read when they are needed, not before.
//!
//! A format is a folder or file with its reader and writer, and a row in the registry `formats`.

pub(crate) mod bytes;
pub(crate) mod array;
mod fortran;
pub mod idx;
pub(crate) mod keys;
pub mod npy;
pub(crate) mod reader;
pub(crate) mod npz;
pub(crate) mod safetensors;
mod split_side;
pub(crate) mod targets;
pub(crate) mod rows;
mod known;

pub use crate::data::values::element::RawType;
pub use array::RawArray;
pub(crate) use bytes::{Bytes, MemoryBudget};
pub use known::same_columns;
pub use reader::{ArrayReader, NamedArrays};
pub use rows::RawRows;
pub(crate) use split_side::{has_test_rows, of_side};
