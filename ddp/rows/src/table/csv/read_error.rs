//! Errors of reading text: the disk, a damaged compressed file, or a row without an end.

use std::io;
use std::path::Path;

use super::input::{QuoteUnclosed, RecordTooLarge};
use crate::compression::Compression;
use crate::error::CsvError;
use crate::error::RowsError;
use crate::user_file::FileError;

/// The error of a file whose text can't be read.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> RowsError {
    use io::ErrorKind as K;
    if let Some(&RecordTooLarge { line, max_bytes }) = error.get_ref().and_then(|error| error.downcast_ref())
    {
        return RowsError::RecordTooLarge { path: path.to_owned(), line, max_mib: max_bytes >> 20 };
    }
    if let Some(&QuoteUnclosed { line }) = error.get_ref().and_then(|error| error.downcast_ref()) {
        return CsvError::QuoteUnclosed { path: path.to_owned(), line }.into();
    }
    let compression = Compression::of_file(path);
    let is_content = matches!(error.kind(), K::UnexpectedEof | K::InvalidData | K::InvalidInput | K::Other);
    if compression != Compression::None && is_content {
        return RowsError::Malformed {
            path: path.to_owned(),
            format: compression.name(),
            reason: error.to_string(),
            hint: "is the file cut off, or still being written?",
        };
    }
    FileError::Unreadable { what: "data file", path: path.to_owned(), source: error }.into()
}
