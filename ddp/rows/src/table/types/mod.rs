//! Kinds and types of the columns of text files, found in all of their cells, and values of those types.

mod inferred;
mod typed_column;

pub use inferred::{CellUse, Destination, Found, Inference, Place};
pub use typed_column::Form;
pub use typed_column::TypedColumn;
