//! Rows that lie in files byte by byte as arrays: npy, npz, safetensors, IDX. Nothing is read before it is needed.

mod array;
mod bytes;
mod element;
pub mod idx;
mod npy;
pub mod npy_header;
mod npz;
mod open;
mod rows;
mod safetensors;

pub use element::RawType;
pub(crate) use open::{RawFormat, open};
pub(crate) use rows::RawRows;
