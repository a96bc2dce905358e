//! JSON lines: one object per line, whose keys are the names of columns. A key that a line lacks is a missing value; a list of
//! numbers is a column per element.

mod lines;
mod reader;
mod writer;

pub(crate) use reader::{open, open_cells};
pub(crate) use writer::create;
