//! Formats whose rows lie in files as arrays: npy, npz, safetensors, IDX. Rows are read when they are needed, not before.
//!
//! A format is a folder or file with its reader and writer, and a row in the registry `formats`.

#[doc(hidden)]
pub mod bytes;
mod windows;
#[doc(hidden)]
pub mod array;
mod fortran;
#[doc(hidden)]
pub mod reader;
pub mod idx;
pub mod npy;
#[doc(hidden)]
pub mod npz;
#[doc(hidden)]
pub mod safetensors;

pub use array::RawArray;
