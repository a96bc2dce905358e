//! Files under temporary names, which must be removed if a signal ends the process.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, mem};

use crate::storage::user_file::{check_place, create_new, open_unlinked};

/// Age after which a file counts as left over on file systems without locks.
const LEFT_OVER_AGE: Duration = Duration::from_secs(600);

/// Files that this process writes under temporary names. Clones share the list.
///
/// Each file is locked while it is written, so that other processes can tell whether its writer is alive.
#[derive(Debug, Clone, Default)]
pub struct Unfinished(Arc<Mutex<BTreeSet<PathBuf>>>);

impl Unfinished {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an empty file to read and write, in place of what has that name.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn create(&self, path: &Path) -> io::Result<File> {
        let mut paths = self.lock();
        loop {
            let file = create_new(path)?;
            // Not every file system has locks.
            let is_locked = file.lock().is_ok();
            paths.insert(path.to_owned());
            // Another process may have removed the file as left over before it was locked.
            if !is_locked || file.metadata()?.nlink() > 0 {
                return Ok(file);
            }
        }
    }

    /// Renames a complete file to its final name.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn complete(&self, path: &Path, name: &Path) -> io::Result<()> {
        let mut paths = self.lock();
        check_place(name)?;
        fs::rename(path, name)?;
        paths.remove(path);
        Ok(())
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, path: &Path) {
        let mut paths = self.lock();
        let _ = fs::remove_file(path);
        paths.remove(path);
    }

    /// Removes all files before the process ends. Other threads that then create or complete a file block forever.
    pub fn end(&self) {
        let paths = self.lock();
        for path in &*paths {
            let _ = fs::remove_file(path);
        }
        mem::forget(paths);
    }
}

/// Whether a process with this id runs on this host. A zombie has ended: nobody may ever ask for its status, as in a container whose
/// first process waits for none.
pub fn is_running(process: u32) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        // After the name, which may contain any character.
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X'])),
        // Of another user, it may be hidden, but not be missing.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// Removes a temporary file if the process that wrote it has ended, that is, if its lock is free. On file systems without locks,
/// `is_alive` returns whether the writer runs, and the file must be old.
pub fn remove_left_over(path: &Path, is_alive: impl FnOnce() -> bool) {
    let Ok(file) = open_unlinked(OpenOptions::new().write(true), path) else { return };
    let is_old = || {
        let modified = file.metadata().and_then(|data| data.modified());
        modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > LEFT_OVER_AGE))
    };
    let is_left_over = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => !is_alive() && is_old(),
    };
    if is_left_over {
        // The next command tries again.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_does_not_run() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // Its status is not asked for.
        while is_running(child.id()) {
            std::thread::yield_now();
        }
        assert!(Path::new(&format!("/proc/{}", child.id())).exists() && is_running(std::process::id()));
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }

    #[test]
    fn files_are_removed_unless_they_are_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let unfinished = Unfinished::default();
        let _files = [".a", ".b", ".c"].map(|name| unfinished.create(&path(name)).unwrap());
        unfinished.complete(&path(".a"), &path("a")).unwrap();
        unfinished.remove(&path(".b"));
        assert!(path("a").exists() && !path(".b").exists() && path(".c").exists());
        unfinished.end();
        assert!(path("a").exists() && !path(".c").exists());
    }

    #[test]
    fn only_files_without_a_writer_are_left_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".a");
        let file = Unfinished::default().create(&path).unwrap();
        remove_left_over(&path, || false);
        assert!(path.exists());
        drop(file);
        remove_left_over(&path, || true);
        assert!(!path.exists());
    }
}
