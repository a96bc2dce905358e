//! The lock file of a run folder: it is opened without following links and only as a regular file, and then locked.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::io::Errno;

use crate::run_folder::error::FolderError;
use crate::storage::user_file::open_unlinked;

/// Name of the lock file.
pub(super) const LOCK_FILE: &str = ".lock";

/// Time for which a process that is ending may still hold the lock: the system first frees its memory.
const ENDING_WAIT: Duration = Duration::from_secs(3);
/// Time for which a process that has not written its name may hold the lock: one that only looks whether the folder is free, or that
/// was started by an owner at that moment and has not closed its copy of the file.
const NAMELESS_WAIT: Duration = Duration::from_secs(1);
/// Such a process.
const NAMELESS: &str = "another process";
const POLL: Duration = Duration::from_millis(20);

/// Open lock file of a run folder.
pub(super) struct Lock {
    pub(super) file: File,
    pub(super) is_writable: bool,
}

/// Opens the lock file of the folder `run`, if it has one.
pub(super) fn open_lock(run: &Path) -> io::Result<Option<Lock>> {
    let path = run.join(LOCK_FILE);
    let mut read = OpenOptions::new();
    read.read(true);
    let opened = match open_unlinked(read.clone().write(true), &path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            open_unlinked(&mut read, &path).map(|file| Lock { file, is_writable: false })
        }
        opened => opened.map(|file| Lock { file, is_writable: true }),
    };
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Acquires the lock, after the end of a process that is ending or only looks; returns `false` if the file system has no locks.
pub(super) fn try_lock(lock: &Lock, folder: &Path) -> Result<bool, FolderError> {
    let began = Instant::now();
    loop {
        let outcome = try_once(lock, folder);
        let limit = match &outcome {
            Err(FolderError::Busy { holder, .. }) if holder == NAMELESS => NAMELESS_WAIT,
            Err(FolderError::Busy { holder, .. }) if is_ending(holder) => ENDING_WAIT,
            _ => return outcome,
        };
        if began.elapsed() >= limit {
            return outcome;
        }
        thread::sleep(POLL);
    }
}

/// Whether `holder`, such as "process 1234 on HOST", is a process of this host that is ending or has ended.
fn is_ending(holder: &str) -> bool {
    let own_host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let words: Vec<&str> = holder.split(' ').collect();
    let ["process", pid, "on", host] = words[..] else { return false };
    // The system has killed it, but has not freed all of its memory, or has: its program is unknown then.
    let exe = fs::read_link(format!("/proc/{pid}/exe"));
    host == own_host.trim() && exe.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn try_once(lock: &Lock, folder: &Path) -> Result<bool, FolderError> {
    // An exclusive lock over NFS requires a file opened for writing. A shared lock also keeps an owner out.
    let locked = if lock.is_writable { lock.file.try_lock() } else { lock.file.try_lock_shared() };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => {
            let mut text = [0; 200];
            // The owner may not have written it yet.
            let len = lock.file.read_at(&mut text, 0).unwrap_or(0);
            let text = String::from_utf8_lossy(&text[..len]);
            let holder = text.lines().next().unwrap_or_default().to_owned();
            let holder = if holder.is_empty() { NAMELESS.to_owned() } else { holder };
            Err(FolderError::Busy { path: folder.to_owned(), holder })
        }
        Err(TryLockError::Error(source)) if is_without_locks(&source) => Ok(false),
        Err(TryLockError::Error(source)) => Err(FolderError::Unwritable { path: folder.to_owned(), source }),
    }
}

/// Whether the file system has no locks, like NFS without its lock daemon or the mount of an object store; the lease then shows the
/// owner.
fn is_without_locks(error: &io::Error) -> bool {
    let none = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS, Errno::PERM];
    none.contains(&Errno::from_io_error(error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_only_looks_keeps_no_owner_out() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(LOCK_FILE), "").unwrap();
        let (looks, claims) =
            (open_lock(folder.path()).unwrap().unwrap(), open_lock(folder.path()).unwrap().unwrap());
        assert!(try_lock(&looks, folder.path()).unwrap());
        // As a child has it that was forked at that moment.
        let copy = looks.file.try_clone().unwrap();
        drop(looks);
        let closes = thread::spawn(move || {
            thread::sleep(POLL * 5);
            drop(copy);
        });
        assert!(try_lock(&claims, folder.path()).unwrap());
        closes.join().unwrap();
    }

    #[test]
    fn a_file_system_without_locks_is_no_reason_to_refuse() {
        for errno in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS, Errno::PERM] {
            assert!(is_without_locks(&errno.into()));
        }
        for errno in [Errno::IO, Errno::INTR, Errno::BADF] {
            assert!(!is_without_locks(&errno.into()));
        }
    }
}
