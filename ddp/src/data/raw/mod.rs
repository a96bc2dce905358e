//! Rows that lie in files byte by byte as arrays: npy, npz, safetensors, IDX. Nothing is read before it is needed.

mod array;
mod bytes;
mod element;
pub mod idx;
mod known;
mod listing;
mod npy;
pub mod npy_header;
mod npz;
mod open;
mod rows;
mod safetensors;

pub(crate) use array::RawArray;
pub use element::RawType;
pub(crate) use known::same_columns;
pub(crate) use listing::{Listing, list};
pub(crate) use open::{CATEGORIES_TEXT, FEATURES_TEXT, RawFormat, TARGETS_TEXT, WEIGHTS_KEY, open};
pub(crate) use rows::RawRows;
