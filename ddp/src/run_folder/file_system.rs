//! Checks before data is read that the file system of a run's folder has the calls that a run needs: mounts of object stores often
//! have no rename.
//!
//! ```
//! use ddp::run_folder::file_system::check_file_system;
//!
//! let folder = tempfile::tempdir()?;
//! check_file_system(&folder.path().join("run"))?;
//! assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::run_folder::error::FolderError;
use crate::run_folder::run_id;
use crate::storage::disk::{Disk as _, OsDisk, free_bytes};
use crate::storage::probe::probe;

/// Tries the calls of a run in `out`, or, while that is missing, in the folder where it will be made. Nothing is left there. A call
/// that fails for another reason, such as a full disk, is reported where the run needs it.
///
/// # Errors
/// [`FolderError::Unsuited`]
pub fn check_file_system(out: &Path) -> Result<(), FolderError> {
    match try_file_system(out) {
        Err(unsuited @ FolderError::Unsuited { .. }) => Err(unsuited),
        _ => Ok(()),
    }
}

/// Result of [`measure_file_system`].
#[derive(Debug)]
pub struct FileSystem {
    /// The folder that was tried: the output folder, or the one where it will be made.
    pub folder: PathBuf,
    /// Whether files can be locked, so that no two processes write one run.
    pub has_locks: bool,
    /// Bytes per second of a file of [`MEASURED_BYTES`] that is written and synced.
    pub bytes_per_s: f64,
    /// Bytes that are free for this user, if known.
    pub free_bytes: Option<u64>,
}

/// Bytes of the file that [`measure_file_system`] writes.
pub const MEASURED_BYTES: usize = 8 << 20;

/// Tries the calls of a run as [`check_file_system`] does, and locks and the speed of writing too. Nothing is left there.
///
/// # Errors
/// [`FolderError::Unsuited`]; [`FolderError::IsFile`]; [`FolderError::Unwritable`] if a call fails for another reason.
pub fn measure_file_system(out: &Path) -> Result<FileSystem, FolderError> {
    let unwritable = |source| FolderError::Unwritable { path: out.to_owned(), source };
    let folder = try_file_system(out)?;
    let path = folder.join(probe_name());
    let mut opened = OsDisk.create(&path).map_err(unwritable)?;
    let has_locks = opened.file.try_lock().is_ok();
    let started = Instant::now();
    let written = OsDisk.write(&mut opened, &vec![0x5a; MEASURED_BYTES]).and_then(|()| OsDisk.sync(&opened));
    let bytes_per_s = MEASURED_BYTES as f64 / started.elapsed().as_secs_f64();
    drop(opened);
    let removed = OsDisk.remove_file(&path);
    written.and(removed).map_err(unwritable)?;
    Ok(FileSystem { has_locks, bytes_per_s, free_bytes: free_bytes(&folder), folder })
}

/// Tries the calls of a run; returns the folder in which it did.
fn try_file_system(out: &Path) -> Result<PathBuf, FolderError> {
    let path = || out.to_owned();
    let here = Path::new(".");
    let mut folders = out.ancestors().map(|folder| if folder.as_os_str().is_empty() { here } else { folder });
    let Some(folder) = folders.find(|folder| folder.exists()) else { return Ok(here.to_owned()) };
    if !folder.is_dir() {
        return Err(if folder == out {
            FolderError::IsFile { path: path() }
        } else {
            FolderError::Unwritable { path: path(), source: io::ErrorKind::NotADirectory.into() }
        });
    }
    match probe(folder, &probe_name()) {
        Ok(()) => Ok(folder.to_owned()),
        Err(failed) if failed.is_unsupported() => {
            Err(FolderError::Unsuited { path: path(), call: failed.call, source: failed.source })
        }
        Err(failed) => Err(FolderError::Unwritable { path: path(), source: failed.source }),
    }
}

fn probe_name() -> String {
    let id = run_id::random().unwrap_or_else(|_| std::process::id().to_string());
    format!(".ddp-train-probe-{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_where_the_folder_will_be() {
        let folder = tempfile::tempdir().unwrap();
        check_file_system(&folder.path().join("a/b")).unwrap();
        check_file_system(folder.path()).unwrap();
        let measured = measure_file_system(&folder.path().join("a/b")).unwrap();
        assert!(measured.folder == folder.path() && measured.has_locks && measured.bytes_per_s > 0.0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_in_the_way_is_an_error_of_the_measurement() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(measure_file_system(&file), Err(FolderError::IsFile { .. })));
        let below = measure_file_system(&file.join("run")).unwrap_err();
        assert!(matches!(below, FolderError::Unwritable { .. }), "{below}");
        check_file_system(&file.join("run")).unwrap();
    }
}
