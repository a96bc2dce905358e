//! CSV: a row of names, then rows of cells; every cell is checked.
//!
//! Every column without another role is a feature. Errors name file, line and column. Delimiter and decimal mark are found in
//! the first rows ([`dialect`]); runs of blanks that separate cells become tabs on the way ([`blanks`]).
//!
//! Lines of plain numbers are parsed in place ([`plain`]). A row with anything else is read again cell by cell ([`input`],
//! [`cell`](super::cell)), with the same result or the error of that cell.

mod blanks;
mod input;
mod dialect;
mod plain;
mod read_error;
mod header;
mod cell_reader;
mod reader;
mod writer;

pub(crate) use cell_reader::open_cells;
pub(in crate::data::table) use input::Input;
pub(in crate::data::table) use read_error::unreadable;
pub(crate) use reader::open;
pub(crate) use writer::{create, quoted};
