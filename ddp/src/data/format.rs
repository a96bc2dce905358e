//! Description of a data format: names, signature, reader and writer.
//!
//! Each format has a folder in `raw` or `table`, with a row in the registry [`formats`](super::formats), through which the rest
//! of the program finds it, and never matches on its name.

use super::raw::ArrayReader;
use super::table::TableFormat;
use super::write::WriteFormat;
use crate::config::DataFormat;

/// A data format.
#[derive(Debug)]
pub struct Format {
    /// Name in configs.
    pub id: DataFormat,
    /// Name in reports and messages.
    pub title: &'static str,
    /// Whether a file that starts with these bytes is of this format.
    pub(crate) has_signature: fn(&[u8]) -> bool,
    /// Whether files are text, so that their names say more than their first bytes.
    pub(crate) is_text: bool,
    /// Whether cells are separated by a delimiter.
    pub(crate) has_delimiter: bool,
    /// Reader of its files.
    pub reader: Reader,
    /// `None` for a format that is only read.
    pub writer: Option<WriteFormat>,
}

/// The reading half of a format.
#[derive(Debug)]
pub enum Reader {
    /// Files of arrays, mapped or read in pieces.
    Arrays(ArrayReader),
    /// Files of rows with named columns.
    Table(TableFormat),
}

impl Format {
    /// Whether a file is a single array, so that labels and weights need files of their own.
    pub fn is_single_array(&self) -> bool {
        matches!(self.reader, Reader::Arrays(ArrayReader::Single { .. }))
    }
}
