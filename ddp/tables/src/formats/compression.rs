//! Compressed data files: recognized by name, read as a stream.
//!
//! ```
//! use ddp_tables::formats::compression::Compression;
//!
//! assert_eq!(Compression::of("rows.csv.GZ".as_ref()), Compression::Gzip);
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ddp::data::parallel::n_threads;
use ddp::storage::user_file::open_regular;
use flate2::Crc;
use flate2::read::{DeflateDecoder, MultiGzDecoder};
use zip::{CompressionMethod, ZipArchive};

use crate::formats::error::{Result, RowsError};
use crate::formats::read_ahead::ReadAhead;

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
    pub fn from_file(path: &Path) -> Self {
        let named = Self::of(path);
        // Opening a named pipe would wait for a writer.
        if named != Compression::None || !std::fs::metadata(path).is_ok_and(|data| data.is_file()) {
            return named;
        }
        open_regular(path).map_or(Compression::None, |file| Self::from_opened(&file, path))
    }

    /// [`Compression::from_file`] of a file that was opened and is still at its beginning, where it stays.
    pub fn from_opened(file: &File, path: &Path) -> Self {
        let named = Self::of(path);
        // A pipe can be read only once.
        if named != Compression::None || !file.metadata().is_ok_and(|data| data.is_file()) {
            return named;
        }
        let mut begin = [0; 4];
        match file.read_exact_at(&mut begin, 0).map(|()| begin) {
            Ok([0x1f, 0x8b, ..]) => Compression::Gzip,
            Ok([0x28, 0xb5, 0x2f, 0xfd]) => Compression::Zstd,
            // Other formats are archives too, such as npz and Excel's.
            Ok([b'P', b'K', 3, 4]) if is_zip(path) && only_member(path).is_some() => Compression::Zip,
            _ => Compression::None,
        }
    }

    /// Reads the decompressed content of `file`; that of a long file ahead, where this rank has several threads.
    pub fn reader(self, file: File, path: &Path) -> Result<Box<dyn Read + Send>> {
        // Of a pipe, a block would be waited for that its writer does not fill.
        let is_file = file.metadata().is_ok_and(|data| data.is_file());
        let content = self.content(file, path)?;
        Ok(if is_file && n_threads() > 1 { Box::new(ReadAhead::new(content)) } else { content })
    }

    fn content(self, file: File, path: &Path) -> Result<Box<dyn Read + Send>> {
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
                let Member { start, n_bytes, crc, is_deflated } = only_member(path).ok_or_else(changed)?;
                let mut file = BufReader::with_capacity(1 << 18, file);
                file.seek(SeekFrom::Start(start)).map_err(unreadable)?;
                let content = file.take(n_bytes);
                if is_deflated {
                    Box::new(Checked::new(DeflateDecoder::new(content), crc))
                } else {
                    Box::new(Checked::new(content, crc))
                }
            }
        })
    }
}

/// Content of an archive, whose checksum is compared at its end.
struct Checked<R> {
    content: R,
    crc: Crc,
    expected: u32,
}

impl<R> Checked<R> {
    fn new(content: R, expected: u32) -> Self {
        Checked { content, crc: Crc::new(), expected }
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.content.read(out)?;
        self.crc.update(&out[..n]);
        if n == 0 && !out.is_empty() {
            check_crc(self.crc.sum(), self.expected)
                .map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))?;
        }
        Ok(n)
    }
}

/// Compares a checksum with the one in an archive.
///
/// # Errors
/// The difference.
pub(crate) fn check_crc(got: u32, expected: u32) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    Err(format!(
        "its content has the CRC-32 {got:08x}, but the archive states {expected:08x}, so some bytes are wrong"
    ))
}

/// The place of a file in an archive.
struct Member {
    start: u64,
    n_bytes: u64,
    /// CRC-32 of the unpacked content.
    crc: u32,
    is_deflated: bool,
}

fn is_zip(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("zip"))
}

/// The only file of an archive, besides those that macOS adds; `None` for several, and for arrays.
fn only_member(path: &Path) -> Option<Member> {
    let mut archive = ZipArchive::new(BufReader::new(open_regular(path).ok()?)).ok()?;
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
    let (start, n_bytes, crc) = (member.data_start()?, member.compressed_size(), member.crc32());
    let member = Member { start, n_bytes, crc, is_deflated };
    (!is_array).then_some(member)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    #[test]
    fn the_checksum_of_a_zipped_file_is_compared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.zip");
        let rows = "a,b\n".to_owned() + &"1,2\n".repeat(999);
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let mut archive = ZipWriter::new(File::create(&path).unwrap());
            archive.start_file("rows.csv", SimpleFileOptions::default().compression_method(method)).unwrap();
            archive.write_all(rows.as_bytes()).unwrap();
            archive.finish().unwrap();
            let read = || {
                let mut text = String::new();
                let content = Compression::Zip.reader(File::open(&path).unwrap(), &path).unwrap();
                { content }.read_to_string(&mut text).map(|_| text)
            };
            assert_eq!(read().unwrap(), rows, "{method}");
            let mut bytes = std::fs::read(&path).unwrap();
            // The checksum in the list of members, 16 bytes after its signature.
            let list = bytes.windows(4).rposition(|bytes| bytes == b"PK\x01\x02").unwrap();
            bytes[list + 16] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            assert!(read().unwrap_err().to_string().contains("CRC-32"), "{method}");
        }
    }
}
