//! `.npz`: several `.npy` arrays in a zip archive. Uncompressed arrays (numpy.savez) are mapped in place, compressed ones
//! (numpy.savez_compressed) are unpacked into memory.

use std::io::{Cursor, Read, Seek, Write};
use std::path::Path;

use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime, ZipArchive};

use crate::formats::arrays::array::RawArray;
use crate::formats::arrays::bytes::{Bytes, MemoryBudget};
use crate::formats::arrays::npy;
use crate::formats::arrays::npy::array_header;
use crate::formats::arrays::reader::NamedArrays;
use crate::formats::compression::check_crc;
use crate::formats::error::{Result, RowsError};
use crate::formats::foreign::{Foreign, sparse_matrix};
use crate::values::element::RawType;

/// Opens an archive, whose arrays are unpacked into `budget`.
pub fn open<'a>(bytes: &'a Bytes, budget: &'a MemoryBudget) -> Result<Box<dyn NamedArrays + 'a>> {
    let archive = archive(bytes)?;
    let names = archive.file_names().filter_map(|name| Some(name.ok()?.strip_suffix(".npy")?.to_owned()));
    let names: Vec<String> = names.collect();
    if let Some(Foreign { name, hint }) = sparse_matrix(&names) {
        return Err(RowsError::Foreign { path: bytes.path().to_owned(), name, hint });
    }
    Ok(Box::new(Archive { names, archive, bytes, budget }))
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
        // One pass over bytes that are read soon anyway, except if they exceed the memory.
        if size <= budget.limit() {
            let mut crc = flate2::Crc::new();
            crc.update(
                &bytes.as_slice().expect("headers are read from mapped files")[start as usize..end as usize],
            );
            bytes.check()?;
            check_crc(crc.sum(), entry.crc32())
                .map_err(|reason| damaged(path, format!("`{name}`: {reason}")))?;
        }
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
    read.map_err(|error| damaged(path, format!("`{name}` can't be unpacked: {error}")))?;
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

/// The error of content that differs from what was written.
fn damaged(path: &Path, reason: String) -> RowsError {
    let hint = "copy or download the file again; if it stays so, write it again with numpy.savez";
    RowsError::Malformed { path: path.to_owned(), format: "npz", reason, hint }
}

fn malformed(path: &Path, reason: String) -> RowsError {
    let hint = "is the file cut off? write it with numpy.savez";
    RowsError::Malformed { path: path.to_owned(), format: "npz", reason, hint }
}

/// Writes an archive of arrays, each by name, type, shape and elements, to `out`.
pub fn write_archive<W: Write + Seek>(
    out: W,
    arrays: Vec<(&str, RawType, Vec<u64>, impl Read)>,
) -> std::io::Result<W> {
    let mut archive = ZipWriter::new(out);
    // The time of day would make equal archives differ.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .large_file(true)
        .with_alignment(64);
    for (name, raw, shape, mut content) in arrays {
        archive.start_file(format!("{name}.npy"), options)?;
        archive.write_all(&array_header(raw, &shape, 0))?;
        std::io::copy(&mut content, &mut archive)?;
    }
    Ok(archive.finish()?)
}
