//! Run folder: owned by one process, never overwritten by accident.
//!
//! Holds `config.toml`, `metrics.jsonl`, `checkpoints/`, [`logs/`](super::logs) and, at the end, `model.safetensors`. A file lock on `.lock` inside it
//! shows that a live process owns it; the operating system releases the lock of a killed process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::run_folder::error::FolderError;
use crate::run_folder::logs;
use crate::storage::user_file::check_regular;

type Result<T, E = FolderError> = std::result::Result<T, E>;

/// The resolved config.
pub const CONFIG_FILE: &str = "config.toml";
/// Events, one JSON object per line.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// The trained model.
pub const MODEL_FILE: &str = "model.safetensors";
/// Weights after the last step, where the model file holds those of the best evaluation.
pub const LAST_FILE: &str = "last.safetensors";

/// Folder of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";

/// Entries that show that a folder holds a run.
const RUN_FILES: [&str; 6] = [CONFIG_FILE, METRICS_FILE, MODEL_FILE, LAST_FILE, CHECKPOINTS, logs::RANK_0];
const LOCK_FILE: &str = ".lock";

/// Treatment of a run that the folder already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Keep it and refuse the folder.
    Refuse,
    /// Delete its files.
    Overwrite,
    /// Resume it.
    Continue,
}

/// A folder that this process owns until the value is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Open for as long as this process owns the folder: closing it releases the lock.
    lock: File,
}

impl RunDir {
    /// Claims the folder `out`, or a new `runs/<name>-<time>`, and creates it if it is missing. [`Existing::Refuse`] refuses a folder
    /// that holds a run; nothing is deleted before [`RunDir::clear`].
    ///
    /// Call it on one rank only, after config and data are checked.
    ///
    /// # Errors
    /// [`FolderError::IsFile`], [`FolderError::HoldsRun`], [`FolderError::Busy`], [`FolderError::Unwritable`];
    /// an existing folder is unchanged.
    pub fn open(out: Option<&Path>, name: &str, existing: Existing) -> Result<Self> {
        let path = match out {
            Some(path) => path.to_owned(),
            None => make_default(Path::new("runs"), name, SystemTime::now())?,
        };
        Self::claim(path, existing)
    }

    fn claim(path: PathBuf, existing: Existing) -> Result<Self> {
        let unwritable = |source| FolderError::Unwritable { path: path.clone(), source };
        if path.exists() && !path.is_dir() {
            return Err(FolderError::IsFile { path });
        }
        if path.is_dir() {
            // A live owner matters more than the run that it writes.
            check_free(&path)?;
            refuse_run(&path, existing)?;
        }
        fs::create_dir_all(&path).map_err(unwritable)?;
        let of_lock = |source| FolderError::Unwritable { path: path.join(LOCK_FILE), source };
        let mut create = OpenOptions::new();
        create.read(true).write(true).create(true).truncate(false);
        let lock = Lock {
            file: open_unlinked(&mut create, &path.join(LOCK_FILE)).map_err(of_lock)?,
            is_writable: true,
        };
        try_lock(&lock, &path)?;
        let lock = lock.file;
        // Again, now that no other process can write here.
        refuse_run(&path, existing)?;
        lock.set_len(0).and_then(|()| (&lock).write_all(holder().as_bytes())).map_err(unwritable)?;
        Ok(Self { path, lock })
    }

    /// Deletes the files of an earlier run that this run replaces, except its checkpoints, which the caller deletes first.
    ///
    /// # Errors
    /// [`FolderError::Unwritable`].
    pub fn clear(&self) -> Result<()> {
        let is_file = |name: &&str| *name != CHECKPOINTS || self.file(name).is_file();
        // Log files are deleted with those of the other ranks.
        let of_run = RUN_FILES.into_iter().filter(|name| is_file(name) && *name != logs::RANK_0);
        of_run.into_iter().try_for_each(|name| self.remove(name))?;
        logs::delete(&self.path)
    }

    /// Deletes a file of the run, if it exists.
    ///
    /// # Errors
    /// [`FolderError::Unwritable`].
    pub fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(FolderError::Unwritable { path: self.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    /// Whether the folder is no longer the one that was claimed: deleted, moved, or replaced.
    pub fn is_gone(&self) -> bool {
        let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let now = fs::metadata(self.path.join(LOCK_FILE)).map(id).ok();
        let claimed = self.lock.metadata().map(id).ok();
        now != claimed
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a file inside.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Checks whether [`RunDir::open`] would refuse the folder `out`, without changing anything.
///
/// # Errors
/// As [`RunDir::open`], except that it does not try to write.
pub fn check(out: &Path, existing: Existing) -> Result<()> {
    if out.exists() && !out.is_dir() {
        return Err(FolderError::IsFile { path: out.to_owned() });
    }
    check_free(out)?;
    refuse_run(out, existing)
}

/// Checks that no run is active in the folder `run`.
///
/// # Errors
/// As [`hold`].
pub(crate) fn check_free(run: &Path) -> Result<(), FolderError> {
    // A lock file that can't be opened counts as free.
    let Ok(Some(lock)) = open_lock(run) else { return Ok(()) };
    try_lock(&lock, run).map(|_| ())
}

fn refuse_run(path: &Path, existing: Existing) -> Result<()> {
    match RUN_FILES.iter().find(|file| path.join(file).exists()) {
        Some(found) if existing == Existing::Refuse => {
            Err(FolderError::HoldsRun { path: path.to_owned(), found })
        }
        _ => Ok(()),
    }
}

/// Open lock file of a run folder.
struct Lock {
    file: File,
    is_writable: bool,
}

/// Result of [`hold`].
#[derive(Debug)]
pub(crate) enum Held {
    /// The folder is locked while this value lives.
    Yes { _lock: File },
    /// No run has used the folder, as in a copy of checkpoints.
    NoRun,
    /// The file system has no locks, so an active run can't be detected.
    Unknown,
}

/// Locks the folder `run` against runs, if none is active there.
///
/// # Errors
/// [`FolderError::Busy`]; [`FolderError::Unwritable`] if the lock file can't be opened.
pub(crate) fn hold(run: &Path) -> Result<Held, FolderError> {
    let unwritable = |source| FolderError::Unwritable { path: run.join(LOCK_FILE), source };
    let Some(lock) = open_lock(run).map_err(unwritable)? else { return Ok(Held::NoRun) };
    if !try_lock(&lock, run)? {
        return Ok(Held::Unknown);
    }
    if lock.is_writable {
        // Only for the error message of a run that starts meanwhile.
        let _ = lock.file.set_len(0).and_then(|()| (&lock.file).write_all(holder().as_bytes()));
    }
    Ok(Held::Yes { _lock: lock.file })
}

fn open_lock(run: &Path) -> io::Result<Option<Lock>> {
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

/// Opens a regular file. A link in its place is refused: it would let a lock overwrite any file of the user.
fn open_unlinked(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path).map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::LOOP) => io::Error::other("it is a link, expected a regular file"),
            _ => error,
        }
    })?;
    check_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Takes the lock; `false` if the file system has no locks.
fn try_lock(lock: &Lock, folder: &Path) -> Result<bool, FolderError> {
    // An exclusive lock over NFS needs a file that is open for writing. A shared lock keeps an owner out as well.
    let locked = if lock.is_writable { lock.file.try_lock() } else { lock.file.try_lock_shared() };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Only for the message; the owner may not have written it yet.
            let _ = (&lock.file).take(200).read_to_string(&mut holder);
            let holder = if holder.is_empty() { "another process".to_owned() } else { holder };
            Err(FolderError::Busy { path: folder.to_owned(), holder })
        }
        Err(TryLockError::Error(source)) if is_without_locks(&source) => Ok(false),
        Err(TryLockError::Error(source)) => Err(FolderError::Unwritable { path: folder.to_owned(), source }),
    }
}

/// Whether the file system has no locks, as NFS without its lock daemon: then two runs in one folder are not detected.
fn is_without_locks(error: &io::Error) -> bool {
    [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS].contains(&Errno::from_io_error(error).unwrap_or(Errno::IO))
}

fn holder() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => format!("process {}", std::process::id()),
        host => format!("process {} on {host}", std::process::id()),
    }
}

/// Creates `runs/<name>-<time>`; a run of the same second gets a number appended.
fn make_default(runs: &Path, name: &str, now: SystemTime) -> Result<PathBuf> {
    let unwritable = |path: &Path, source| FolderError::Unwritable { path: path.to_owned(), source };
    fs::create_dir_all(runs).map_err(|source| unwritable(runs, source))?;
    let base = format!("{name}-{}", utc(now));
    for number in 1.. {
        let path = runs.join(if number == 1 { base.clone() } else { format!("{base}-{number}") });
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(unwritable(&path, source)),
        }
    }
    unreachable!("a free number exists")
}

/// Formats a time as `YYYYMMDD-HHMMSS` in UTC.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date_of_days(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// Converts days since 1970-01-01 to year, month and day.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
pub(crate) fn date_of_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
