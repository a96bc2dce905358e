//! What saving a checkpoint asks of a file system, in one place, so that a test can have each of it fail.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, CWD, RenameFlags, fadvise, renameat_with, statvfs};

use super::stream::{self, BLOCK_BYTES};

/// The calls by which checkpoints are written; as they stand here those of the operating system.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a folder and those above it; one that is there is right.
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    /// Makes an empty file, in place of what is there.
    fn create(&self, path: &Path) -> io::Result<OpenFile> {
        Ok(OpenFile { path: path.to_owned(), file: File::create(path)?, is_direct: false })
    }

    /// Has what is written go around the system's cache, as long as it comes in whole blocks. Only for speed: a file system that
    /// can't do so goes on as it was.
    fn bypass_cache(&self, file: &mut OpenFile) {
        file.is_direct = stream::bypass_cache(&file.file);
    }

    /// Appends all of `bytes`.
    fn write(&self, file: &mut OpenFile, bytes: &[u8]) -> io::Result<()> {
        file.append(bytes)
    }

    /// Has the disk begin with these bytes of the file, and returns at once: later [`sync`](Self::sync) has less to wait for.
    /// Only for speed: whoever can't do so leaves it.
    fn begin_to_sync(&self, file: &OpenFile, bytes: Range<u64>) {
        if file.is_direct {
            return;
        }
        // Linux writes what it is told to forget; what is not on the disk yet it keeps.
        let _ = fadvise(&file.file, bytes.start, NonZeroU64::new(bytes.end - bytes.start), Advice::DontNeed);
    }

    /// Returns when the file's bytes are on the disk.
    fn sync(&self, file: &OpenFile) -> io::Result<()> {
        file.file.sync_all()
    }

    /// Returns when the names in the folder are on the disk.
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    /// Gives a file or folder another name; a file of that name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Exchanges two names at once.
    ///
    /// # Errors
    /// Also that the file system can't.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Removes a folder with all in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

/// The operating system's.
#[derive(Debug, Clone, Copy)]
pub struct OsDisk;

impl Disk for OsDisk {}

/// A file that is being written.
#[derive(Debug)]
pub struct OpenFile {
    /// Its path.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// Whether it is written around the system's cache.
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

/// A call that failed, and on what.
#[derive(Debug)]
pub struct DiskError {
    /// Such as "write".
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// The system's answer.
    pub source: io::Error,
}

/// Says on what a call failed.
pub(crate) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError { action, path, source }
}

/// Writes a small file beside, syncs it, and puts it in the place of `path`; the name is not synced yet.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.new"));
    let written = (|| {
        let mut file = disk.create(&beside).map_err(at("make", &beside))?;
        disk.write(&mut file, bytes).map_err(at("write", &beside))?;
        disk.sync(&file).map_err(at("sync", &beside))?;
        disk.rename(&beside, path).map_err(at("rename a file to", path))
    })();
    if written.is_err() {
        // It may never have been made; what matters is the error before.
        let _ = disk.remove_file(&beside);
    }
    written
}

/// Bytes that this user may still write to the disk of `path`; None where the system can't tell.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether an error is about room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the disk of `path` has bytes left, and can hold hardly any more files. It asks now: what could not be written may
/// have been removed since, so that a few more fit than when it failed.
pub(crate) fn is_out_of_inodes(path: &Path) -> bool {
    const FEW: u64 = 64;
    const AMPLE_BYTES: u64 = 1 << 20;
    // The file itself, and the folder it was in, may be gone.
    let stat = path.ancestors().find_map(|path| {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        statvfs(path).ok()
    });
    // File systems that make inodes as they need them say 0 of 0.
    stat.is_some_and(|stat| {
        let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        stat.f_files > 0 && stat.f_favail < FEW && free_bytes >= AMPLE_BYTES
    })
}
