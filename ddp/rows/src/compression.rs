//! Compressed data files: recognized by name, read as a stream.
//!
//! ```
//! use ddp_rows::compression::Compression;
//!
//! assert_eq!(Compression::of("rows.csv.GZ".as_ref()), Compression::Gzip);
//! ```

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::error::{Result, RowsError};

/// Compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Bytes as they are.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// The compression by the ending of a file name, in any case.
    pub fn of(path: &Path) -> Self {
        let is = |ending: &str| path.extension().is_some_and(|other| other.eq_ignore_ascii_case(ending));
        match () {
            () if is("gz") => Compression::Gzip,
            () if is("zst") => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// The compression of the existing file at `path`: by the ending of its name, or else by its first bytes.
    pub fn of_file(path: &Path) -> Self {
        let named = Self::of(path);
        // Opening a named pipe would wait for a writer.
        if named != Compression::None || !std::fs::metadata(path).is_ok_and(|data| data.is_file()) {
            return named;
        }
        let mut begin = [0; 4];
        match File::open(path).and_then(|mut file| file.read_exact(&mut begin)).map(|()| begin) {
            Ok([0x1f, 0x8b, ..]) => Compression::Gzip,
            Ok([0x28, 0xb5, 0x2f, 0xfd]) => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// Reads the decompressed content of `file`.
    pub fn reader(self, file: File, path: &Path) -> Result<Box<dyn Read + Send>> {
        Ok(match self {
            Compression::None => Box::new(file),
            Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(1 << 18, file))),
            Compression::Zstd => {
                Box::new(zstd::Decoder::new(file).map_err(|error| RowsError::Malformed {
                    path: path.to_owned(),
                    format: "zstd",
                    reason: error.to_string(),
                    hint: "is the file cut off?",
                })?)
            }
        })
    }
}
