//! Bytes of an array: in a mapped file, in a file that is read in pieces, or in memory.

use std::cell::Cell;
use std::fs::File;
use std::io::{IoSliceMut, Read as _};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp_kernels::cpu::mapped_file::MappedFile;
use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;

use crate::formats::compression::Compression;
use crate::formats::error::{Result, RowsError};
use crate::formats::foreign::{Foreign, pointer};

/// Bytes of a file that are read into the system's cache by one call.
const READ_AHEAD_BYTES: usize = 16 << 20;

/// Memory for decompressed data: as much for all files together as the config grants.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    used: Cell<u64>,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        MemoryBudget { limit, used: Cell::new(0) }
    }

    /// The whole budget.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are still free.
    pub fn left(&self) -> u64 {
        self.limit - self.used.get()
    }

    /// Uses `n_bytes` of the free bytes.
    pub fn take(&self, n_bytes: u64) {
        self.used.set((self.used.get() + n_bytes).min(self.limit));
    }

    /// The error for `n_bytes`, which are more than are free.
    pub fn too_large(
        &self,
        source_name: String,
        n_bytes: u64,
        purpose: &'static str,
        hint: &str,
    ) -> RowsError {
        RowsError::TooLarge {
            source_name,
            what: purpose,
            needed_mib: self.used.get().saturating_add(n_bytes).div_ceil(1 << 20),
            limit_mib: self.limit >> 20,
            hint: hint.to_owned(),
        }
    }
}

/// Bytes that several threads can read at any offset.
///
/// A file that fits in the memory that the config grants is mapped: rows are copied from the system's cache. A larger file is
/// read on demand, so that the process never holds more of it than its buffers.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // Fields say what they are.
pub enum Bytes {
    /// A mapped file.
    Mapped { file: Arc<MappedFile>, path: PathBuf },
    /// A file that is read in pieces.
    Read { file: Arc<File>, len: u64, path: PathBuf },
    /// Bytes in memory, of an unpacked file.
    Memory { bytes: Arc<Vec<u8>>, path: PathBuf },
}

impl Bytes {
    /// The file at `path`, mapped.
    pub fn map(path: &Path) -> Result<Self> {
        Self::map_opened(&ddp::storage::user_file::open("data file", path)?, path)
    }

    /// The open file `path`, mapped.
    fn map_opened(file: &File, path: &Path) -> Result<Self> {
        let unreadable = |source| RowsError::Unreadable { path: path.to_owned(), source };
        let file = MappedFile::from_opened(file, path).map_err(unreadable)?;
        Ok(Bytes::Mapped { file: Arc::new(file), path: path.to_owned() })
    }

    /// Bytes in memory, of the file `path`.
    pub fn memory(bytes: Vec<u8>, path: &Path) -> Self {
        Bytes::Memory { bytes: Arc::new(bytes), path: path.to_owned() }
    }

    /// The same bytes, read in pieces if they are in a file.
    pub fn unmapped(self) -> Result<Self> {
        let Bytes::Mapped { file, path } = self else { return Ok(self) };
        let opened = ddp::storage::user_file::open("data file", &path)?;
        Ok(Bytes::Read { file: Arc::new(opened), len: file.len() as u64, path })
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Bytes::Mapped { file, .. } => file.len() as u64,
            Bytes::Read { len, .. } => *len,
            Bytes::Memory { bytes, .. } => bytes.len() as u64,
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Bytes::Mapped { path, .. } | Bytes::Read { path, .. } | Bytes::Memory { path, .. } => path,
        }
    }

    /// All bytes if they are in memory or mapped; call [`Bytes::check`] after reading them.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Bytes::Mapped { file, .. } => Some(file.bytes()),
            Bytes::Memory { bytes, .. } => Some(bytes),
            Bytes::Read { .. } => None,
        }
    }

    /// Fails if bytes read through [`Bytes::as_slice`] were not in the file: missing pages of a truncated file read as zeros.
    pub fn check(&self) -> Result<()> {
        match self {
            Bytes::Mapped { file, path } if !file.is_intact() => {
                Err(RowsError::Changed { path: path.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Like [`Bytes::check`], and compares the file's length: a missing part of a page reads as zeros too, which only the length
    /// shows.
    pub fn check_length(&self) -> Result<()> {
        let (has_shrunk, path) = match self {
            Bytes::Mapped { file, path } => (file.has_shrunk(), path),
            Bytes::Read { file, len, path } => (file.metadata().is_ok_and(|now| now.len() < *len), path),
            Bytes::Memory { .. } => return Ok(()),
        };
        if has_shrunk { Err(RowsError::Changed { path: path.clone() }) } else { self.check() }
    }

    /// Copies `out.len()` bytes that start at `offset`.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Bytes::Read { file, path, .. } => file.read_exact_at(out, offset).map_err(|source| {
                let path = path.clone();
                if source.kind() == std::io::ErrorKind::UnexpectedEof {
                    RowsError::Changed { path }
                } else {
                    RowsError::Unreadable { path, source }
                }
            }),
            _ => {
                let bytes = self.as_slice().expect("mapped or in memory");
                let start = offset as usize;
                out.copy_from_slice(&bytes[start..start + out.len()]);
                Ok(())
            }
        }
    }

    /// Copies `out.len()` bytes that start at `offset` of a file that is read in pieces, unless a disk would have to be waited
    /// for; returns whether it did. The system starts to read them if they are not in its cache.
    pub(super) fn read_cached(&self, offset: u64, out: &mut [u8]) -> bool {
        let Bytes::Read { file, .. } = self else { return false };
        let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(out)], offset, ReadWriteFlags::NOWAIT);
        if read == Ok(out.len()) {
            return true;
        }
        // Not every file system reads without waiting, and not every version of Linux reads ahead then.
        self.read_ahead(offset, out.len() as u64);
        false
    }

    /// A range of a file that is read in pieces as mapped memory; `None` for other bytes, and where it cannot be mapped.
    pub(super) fn map_range(&self, offset: u64, len: u64) -> Option<MappedFile> {
        let Bytes::Read { file, path, .. } = self else { return None };
        MappedFile::map(file, path, offset, len).ok()
    }

    /// Starts reading these bytes into the system's cache if they are read in pieces; returns at once.
    pub fn read_ahead(&self, offset: u64, len: u64) {
        if let (Bytes::Read { file, .. }, Some(len)) = (self, NonZeroU64::new(len)) {
            // Failed advice costs time only.
            let _ = rustix::fs::fadvise(&**file, offset, Some(len), Advice::WillNeed);
        }
    }

    /// Starts reading a mapped file into the system's cache from its beginning to its end, on a thread of its own; returns at
    /// once. Rows that are read in a random order would wait for the disk one by one.
    pub fn read_into_cache(&self) {
        let Bytes::Mapped { file, .. } = self else { return };
        if file.len() < READ_AHEAD_BYTES {
            return;
        }
        // The thread ends with the last reader of the file.
        let file = Arc::downgrade(file);
        let read = move || {
            let mut start = 0;
            while let Some(file) = file.upgrade().filter(|file| start < file.len()) {
                file.read_ahead(start..(start + READ_AHEAD_BYTES).min(file.len()));
                start += READ_AHEAD_BYTES;
            }
        };
        // Without the thread, training starts slower.
        let _ = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(read);
    }

    /// Bytes of memory that are held until the array is dropped.
    pub fn resident_bytes(&self) -> usize {
        match self {
            Bytes::Memory { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

/// The bytes of a file; a compressed one is unpacked into `budget`.
pub fn bytes_of(path: &Path, budget: &MemoryBudget) -> Result<Bytes> {
    let file = ddp::storage::user_file::open("data file", path)?;
    let compression = Compression::from_opened(&file, path);
    if compression == Compression::None {
        let bytes = Bytes::map_opened(&file, path)?;
        if let Some(Foreign { name, hint }) = bytes.as_slice().and_then(pointer) {
            return Err(RowsError::Foreign { path: path.to_owned(), name, hint });
        }
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    let read = compression.reader(file, path)?.take(budget.left() + 1).read_to_end(&mut unpacked);
    read.map_err(|error| RowsError::Malformed {
        path: path.to_owned(),
        format: compression.name(),
        reason: error.to_string(),
        hint: "is the file cut off?",
    })?;
    let n_bytes = unpacked.len() as u64;
    if n_bytes > budget.left() {
        let hint = "unpack the file on disk, or raise the limit";
        return Err(budget.too_large(path.display().to_string(), n_bytes, "or more to be unpacked", hint));
    }
    budget.take(n_bytes);
    Ok(Bytes::memory(unpacked, path))
}
