//! Compressed data files: recognized by name, read as a stream.
//!
//! ```
//! use ddp_rows::compression::Compression;
//!
//! assert_eq!(Compression::of("rows.csv.GZ".as_ref()), Compression::Gzip);
//! ```

use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};
use std::path::Path;

use flate2::read::{DeflateDecoder, MultiGzDecoder};
use zip::{CompressionMethod, ZipArchive};

use crate::error::{Result, RowsError};

ddp_kernels::named_enum! {
    /// Compression of a file.
    pub enum Compression {
        /// Bytes as they are.
        None = "plain",
        /// gzip.
        Gzip = "gzip",
        /// Zstandard.
        Zstd = "zstd",
        /// A zip archive of one file, which is only read.
        Zip = "zip",
    }
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
            // Other formats are archives too, such as npz and Excel's.
            Ok([b'P', b'K', 3, 4]) if is_zip(path) && only_member(path).is_some() => Compression::Zip,
            _ => Compression::None,
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
            Compression::Zip => {
                let unreadable = |source| RowsError::Unreadable { path: path.to_owned(), source };
                let changed = || RowsError::Changed { path: path.to_owned() };
                let Member { start, n_bytes, is_deflated } = only_member(path).ok_or_else(changed)?;
                let mut file = BufReader::with_capacity(1 << 18, file);
                file.seek(SeekFrom::Start(start)).map_err(unreadable)?;
                let content = file.take(n_bytes);
                if is_deflated { Box::new(DeflateDecoder::new(content)) } else { Box::new(content) }
            }
        })
    }
}

/// The place of a file in an archive.
struct Member {
    start: u64,
    n_bytes: u64,
    is_deflated: bool,
}

fn is_zip(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("zip"))
}

/// The only file of an archive, besides those that macOS adds; `None` for several, and for arrays.
fn only_member(path: &Path) -> Option<Member> {
    let mut archive = ZipArchive::new(BufReader::new(File::open(path).ok()?)).ok()?;
    let is_file =
        |name: &str| !name.ends_with('/') && !name.starts_with("__MACOSX/") && !name.ends_with(".DS_Store");
    let mut places = (0..archive.len())
        .filter(|&at| matches!(archive.name_for_index(at), Some(Ok(name)) if is_file(&name)));
    let (only, None) = (places.next()?, places.next()) else { return None };
    let member = archive.by_index_raw(only).ok()?;
    let is_deflated = match member.compression() {
        CompressionMethod::Stored => false,
        CompressionMethod::Deflated => true,
        _ => return None,
    };
    let is_array = member.name().is_ok_and(|name| name.ends_with(".npy"));
    let member = Member { start: member.data_start()?, n_bytes: member.compressed_size(), is_deflated };
    (!is_array).then_some(member)
}
