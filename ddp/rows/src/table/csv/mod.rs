//! CSV: a row of names, then rows of cells.
//!
//! Errors name file, line and column. Delimiter and decimal mark are found in the first rows (`dialect`); runs of blanks that
//! separate cells become tabs on the way (`blanks`). The text is split into records (`input`); a reader of plain numbers may
//! take it line by line instead.

mod blanks;
mod input;
mod dialect;
mod read_error;
mod header;
mod reader;
mod writer;

pub(crate) use input::Input;
pub(crate) use read_error::unreadable;
pub use reader::{of_text, open};
pub use writer::{create, quoted};
