//! JSON lines: one object per line, whose keys are the names of columns, or one array of such objects. A key that a line lacks is a
//! missing value; a list of numbers is a column per element.

mod array;
mod lines;
mod reader;
mod writer;

/// Whether a text begins with an object, or with an array of objects.
pub(crate) fn has_signature(begin: &[u8]) -> bool {
    let text = begin.trim_ascii_start();
    let objects = text.strip_prefix(b"[").map_or(text, <[u8]>::trim_ascii_start);
    let is_array = objects.len() < text.len();
    objects.strip_prefix(b"{").is_some_and(|rest| is_array || rest.trim_ascii_start().starts_with(b"\""))
}

pub use reader::open;
pub use writer::create;
