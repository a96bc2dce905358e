//! `.npz`: several `.npy` arrays in a zip archive. Uncompressed arrays (numpy.savez) are mapped in place, compressed ones
//! (numpy.savez_compressed) are unpacked into memory.

mod writer;

use std::io::{Cursor, Read as _};
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use super::array::RawArray;
use super::bytes::{Bytes, MemoryBudget};
use super::npy;
use super::reader::NamedArrays;
use crate::error::{Result, RowsError};
pub use writer::{create, write_archive};

/// Opens an archive, whose arrays are unpacked into `budget`.
pub fn open<'a>(bytes: &'a Bytes, budget: &'a MemoryBudget) -> Result<Box<dyn NamedArrays + 'a>> {
    let archive = archive(bytes)?;
    let names = archive.file_names().filter_map(|name| Some(name.ok()?.strip_suffix(".npy")?.to_owned()));
    Ok(Box::new(Archive { names: names.collect(), archive, bytes, budget }))
}

/// Whether a file that begins like this is an archive whose first entry is an array.
pub(crate) fn has_signature(begin: &[u8]) -> bool {
    let name = || {
        let len = u16::from_le_bytes([*begin.get(26)?, *begin.get(27)?]);
        begin.get(30..30 + usize::from(len))
    };
    begin.starts_with(b"PK\x03\x04") && name().is_some_and(|name| name.ends_with(b".npy"))
}

/// The arrays of an archive.
struct Archive<'a> {
    names: Vec<String>,
    /// Its copies share the list of entries.
    archive: ZipArchive<Cursor<&'a [u8]>>,
    bytes: &'a Bytes,
    budget: &'a MemoryBudget,
}

impl NamedArrays for Archive<'_> {
    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn array(&self, name: &str) -> Result<RawArray> {
        array(self.archive.clone(), self.bytes, name, self.budget)
    }
}

/// The array `name`; a compressed one is unpacked into `budget`.
fn array(
    mut archive: ZipArchive<Cursor<&[u8]>>,
    bytes: &Bytes,
    name: &str,
    budget: &MemoryBudget,
) -> Result<RawArray> {
    let path = bytes.path();
    let bad = |error: zip::result::ZipError| malformed(path, error.to_string());
    bytes.check()?;
    let mut entry = archive.by_name(&format!("{name}.npy")).map_err(bad)?;
    let size = entry.size();
    if entry.compression() == CompressionMethod::Stored && !entry.encrypted() {
        let start = entry
            .data_start()
            .ok_or_else(|| malformed(path, format!("`{name}` has no offset in the archive")))?;
        let end = start.checked_add(size).filter(|&end| end <= bytes.len());
        let end = end.ok_or_else(|| malformed(path, format!("`{name}` extends past the end of the file")))?;
        drop(entry);
        return npy::array(bytes.clone(), start, end, budget);
    }
    if size > budget.left() {
        let hint = "save it uncompressed with numpy.savez, or raise the limit";
        let source_name = format!("{}:{name}", path.display());
        return Err(budget.too_large(source_name, size, "to be unpacked", hint));
    }
    budget.take(size);
    // The declared size may be wrong: never unpack more than that.
    let mut unpacked = Vec::new();
    let read = entry.by_ref().take(size + 1).read_to_end(&mut unpacked);
    read.map_err(|error| malformed(path, format!("`{name}` can't be unpacked: {error}")))?;
    if unpacked.len() as u64 != size {
        return Err(malformed(path, format!("the size of `{name}` differs from the one in the archive")));
    }
    drop(entry);
    let end = unpacked.len() as u64;
    npy::array(Bytes::memory(unpacked, path), 0, end, budget)
}

fn archive(bytes: &Bytes) -> Result<ZipArchive<Cursor<&[u8]>>> {
    let slice = bytes.as_slice().expect("headers are read from mapped files");
    let archive = ZipArchive::new(Cursor::new(slice)).map_err(|e| malformed(bytes.path(), e.to_string()))?;
    bytes.check()?;
    Ok(archive)
}

fn malformed(path: &Path, reason: String) -> RowsError {
    let hint = "is the file cut off? write it with numpy.savez";
    RowsError::Malformed { path: path.to_owned(), format: "npz", reason, hint }
}
