//! CSV: a row of names, then rows of cells.
//!
//! Errors name file, line and column. Delimiter and decimal mark are found in the first rows ([`dialect`]); runs of blanks that
//! separate cells become tabs on the way ([`blanks`]). The text is split into records ([`input`]); a reader of plain numbers may
//! take it line by line instead.

mod blanks;
mod input;
mod dialect;
mod read_error;
mod header;
mod reader;
mod writer;

pub(in crate::data::table) use input::Input;
pub(in crate::data::table) use read_error::unreadable;
#[cfg(test)]
pub(crate) use reader::of_text;
pub(crate) use reader::open;
pub(crate) use writer::{create, quoted};
