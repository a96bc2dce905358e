//! File-system calls for saving a checkpoint, behind a trait so that tests can make each of them fail.
//!
//! A file that gets its name only after its content is on disk:
//!
//! ```
//! use ddp::storage::disk::{Disk as _, OsDisk};
//!
//! let folder = tempfile::tempdir()?;
//! let [temporary, path] = [".values.new", "values"].map(|name| folder.path().join(name));
//! let mut file = OsDisk.create(&temporary)?;
//! OsDisk.write(&mut file, b"1 2 3")?;
//! OsDisk.sync(&file)?;
//! OsDisk.rename(&temporary, &path)?;
//! assert_eq!(std::fs::read(&path)?, b"1 2 3");
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, CWD, RenameFlags, fadvise, renameat_with, statvfs};

use super::stream::{self, BLOCK_BYTES};
use crate::storage::user_file::{create_new, open_regular};

/// File-system calls that write checkpoints; the default methods call the operating system.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a folder and its parents; an existing folder is not an error.
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    /// Creates an empty file in place of an existing one.
    fn create(&self, path: &Path) -> io::Result<OpenFile> {
        Ok(OpenFile { path: path.to_owned(), file: create_new(path)?, is_direct: false })
    }

    /// Requests direct I/O for whole blocks. This is only an optimization: without support, writes go through the page cache.
    fn bypass_cache(&self, file: &mut OpenFile) {
        file.is_direct = stream::bypass_cache(&file.file);
    }

    /// Appends all of `bytes`.
    fn write(&self, file: &mut OpenFile, bytes: &[u8]) -> io::Result<()> {
        file.append(bytes)
    }

    /// Starts writing these bytes of the file back to disk without waiting, so that [`sync`](Self::sync) has less to do. This is
    /// only an optimization: an implementation may do nothing.
    fn begin_to_sync(&self, file: &OpenFile, bytes: Range<u64>) {
        if file.is_direct {
            return;
        }
        // If asked to drop dirty pages, Linux starts writing them back and keeps them until then.
        let _ = fadvise(&file.file, bytes.start, NonZeroU64::new(bytes.end - bytes.start), Advice::DontNeed);
    }

    /// Syncs the file to disk.
    fn sync(&self, file: &OpenFile) -> io::Result<()> {
        file.file.sync_all()
    }

    /// Syncs the directory entries of a folder to disk.
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        open_regular(path)?.sync_all()
    }

    /// Renames a file or folder; an existing file of that name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Exchanges two names atomically; fails if the file system does not support it.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Removes a folder and its content.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

/// The file system of the operating system.
#[derive(Debug, Clone, Copy)]
pub struct OsDisk;

impl Disk for OsDisk {}

/// A file that is being written.
#[derive(Debug)]
pub struct OpenFile {
    /// Current path of the file.
    pub path: PathBuf,
    /// Handle open for writing.
    pub file: File,
    /// Whether it is written with direct I/O.
    is_direct: bool,
}

impl OpenFile {
    fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let is_block = bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES) && bytes.len() >= BLOCK_BYTES;
            if self.is_direct && !is_block {
                self.use_cache()?;
            }
            let whole = if self.is_direct { bytes.len() / BLOCK_BYTES * BLOCK_BYTES } else { bytes.len() };
            match self.file.write(&bytes[..whole]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.is_direct && stream::wants_cache(&error) => self.use_cache()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn use_cache(&mut self) -> io::Result<()> {
        self.is_direct = false;
        stream::use_cache(&self.file)
    }
}

/// A failed file-system call.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} '{}': {source}", path.display())]
pub struct DiskError {
    /// The failed action, such as "write".
    pub action: &'static str,
    /// Path of the file or folder.
    pub path: PathBuf,
    /// Error of the operating system.
    pub source: io::Error,
}

/// Adds action and path to an I/O error.
pub(crate) fn at(action: &'static str, path: &Path) -> impl Fn(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError { action, path: path.clone(), source }
}

/// Replaces `path` by a small file, which is written next to it and synced; the directory entry is not yet synced.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.new"));
    let written = (|| {
        let mut file = disk.create(&temporary).map_err(at("make", &temporary))?;
        disk.write(&mut file, bytes).map_err(at("write", &temporary))?;
        disk.sync(&file).map_err(at("sync", &temporary))?;
        disk.rename(&temporary, path).map_err(at("rename a file to", path))
    })();
    if written.is_err() {
        // The temporary file may not exist; the first error is the one to report.
        let _ = disk.remove_file(&temporary);
    }
    written
}

/// Free bytes for this user on the disk of `path`; `None` if unknown.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether an error means that the disk or quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
