//! `.npz`: several `.npy` arrays in a zip archive. Those stored as they are (numpy.savez) are mapped in place, those
//! compressed (numpy.savez_compressed) are unpacked into memory.

use std::io::{Cursor, Read as _};
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use super::array::RawArray;
use super::bytes::{Bytes, Room};
use super::npy;
use crate::data::DataError;
use crate::data::error::Result;

/// Names of the arrays in the archive.
pub(crate) fn names(bytes: &Bytes) -> Result<Vec<String>> {
    let archive = open(bytes)?;
    let names = archive.file_names().filter_map(|name| Some(name.ok()?.strip_suffix(".npy")?.to_owned()));
    Ok(names.collect())
}

/// The array `name`; if it is compressed, unpacked into `room`.
pub(crate) fn array(bytes: &Bytes, name: &str, room: &Room) -> Result<RawArray> {
    let path = bytes.path();
    let bad = |error: zip::result::ZipError| malformed(path, error.to_string());
    let mut archive = open(bytes)?;
    let mut entry = archive.by_name(&format!("{name}.npy")).map_err(bad)?;
    let size = entry.size();
    if entry.compression() == CompressionMethod::Stored && !entry.encrypted() {
        let start =
            entry.data_start().ok_or_else(|| malformed(path, format!("`{name}` has no place in it")))?;
        let end = start.checked_add(size).filter(|&end| end <= bytes.len());
        let end = end.ok_or_else(|| malformed(path, format!("`{name}` goes beyond the file's end")))?;
        drop(entry);
        return npy::array(bytes.clone(), start, end);
    }
    if size > room.left() {
        let hint = "save it with numpy.savez, which does not compress, or raise the limit";
        let source_name = format!("{}:{name}", path.display());
        return Err(room.too_large(source_name, size, "to be unpacked", hint));
    }
    room.take(size);
    // The archive's word for the size is not taken: no more than that is unpacked.
    let mut unpacked = Vec::new();
    let read = entry.by_ref().take(size + 1).read_to_end(&mut unpacked);
    read.map_err(|error| malformed(path, format!("`{name}` can't be unpacked: {error}")))?;
    if unpacked.len() as u64 != size {
        return Err(malformed(path, format!("`{name}` has another size than the archive says")));
    }
    drop(entry);
    let end = unpacked.len() as u64;
    npy::array(Bytes::memory(unpacked, path), 0, end)
}

fn open(bytes: &Bytes) -> Result<ZipArchive<Cursor<&[u8]>>> {
    let slice = bytes.as_slice().expect("headers are read from mapped files");
    let archive = ZipArchive::new(Cursor::new(slice)).map_err(|e| malformed(bytes.path(), e.to_string()))?;
    bytes.check()?;
    Ok(archive)
}

fn malformed(path: &Path, reason: String) -> DataError {
    let hint = "is the file cut off? write it with numpy.savez";
    DataError::Malformed { path: path.to_owned(), format: "npz", reason, hint }
}
