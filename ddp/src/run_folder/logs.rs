//! `logs/` in a run folder: `rank-<r>.log` of each rank that sees the folder, and `rank-<r>.log.1` with the older lines.
//!
//! ```
//! use ddp::run_folder::logs::{Probe, file};
//!
//! let [run, other] = [tempfile::tempdir()?, tempfile::tempdir()?];
//! let probe = Probe::leave(run.path())?;
//! assert!(Probe::is_seen(run.path(), &probe.name()) && !Probe::is_seen(other.path(), &probe.name()));
//! assert!(file(run.path(), 3).ends_with("logs/rank-3.log"));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use crate::run_folder::error::FolderError;
use crate::storage::user_file::create_new;

/// Folder of the log files.
pub const LOGS: &str = "logs";
/// The log file of rank 0, which shows that a folder holds a run.
pub const RANK_0: &str = "logs/rank-0.log";

/// Path of a rank's log file in the folder `run`.
pub fn file(run: &Path, rank: usize) -> PathBuf {
    run.join(LOGS).join(format!("rank-{rank}.log"))
}

/// A file that rank 0 creates so that other ranks can tell whether they see the same folder, or a different one with the same
/// path.
#[derive(Debug)]
pub struct Probe(PathBuf);

impl Probe {
    /// Creates `logs/` in the folder `run`, and the file in it.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn leave(run: &Path) -> io::Result<Self> {
        fs::create_dir_all(run.join(LOGS))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let path = run.join(LOGS).join(format!(".seen-{}-{}", std::process::id(), since.as_nanos()));
        create_new(&path)?;
        Ok(Probe(path))
    }

    /// Name of the file.
    pub fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether this rank sees the file `name` in the folder `run`.
    pub fn is_seen(run: &Path, name: &str) -> bool {
        !name.is_empty() && run.join(LOGS).join(name).exists()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes probes that ended processes left behind in the folder `run`, which this process owns; returns their names.
pub(super) fn remove_leftovers(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join(LOGS)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_removed = |name: &String| is_probe(name) && fs::remove_file(run.join(LOGS).join(name)).is_ok();
    names.filter(is_removed).map(|name| format!("{LOGS}/{name}")).collect()
}

/// Deletes the log files in the folder `run`, and `logs/` if it is then empty.
///
/// # Errors
/// [`FolderError::Unwritable`].
pub(super) fn delete(run: &Path) -> Result<(), FolderError> {
    let folder = run.join(LOGS);
    // No folder, or a folder of the user's: problems with log files in it are reported when they are opened.
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
    for entry in entries.flatten().filter(|entry| is_log(&entry.file_name().to_string_lossy())) {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let unwritable = |source| FolderError::Unwritable { path: run.to_owned(), source };
            fs::remove_file(entry.path()).map_err(unwritable)?;
        }
    }
    // Fails if the folder contains other files.
    let _ = fs::remove_dir(&folder);
    Ok(())
}

/// `rank-<r>.log`, `rank-<r>.log.1`, or the probe of a run that was killed.
fn is_log(name: &str) -> bool {
    let name = name.strip_suffix(".1").unwrap_or(name);
    let rank = name.strip_prefix("rank-").and_then(|rest| rest.strip_suffix(".log"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    rank.is_some_and(is_number) || is_probe(name)
}

/// The probe of a run.
fn is_probe(name: &str) -> bool {
    name.starts_with(".seen-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_runs_own_logs_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join(LOGS);
        delete(folder.path()).unwrap();
        fs::create_dir(&logs).unwrap();
        for name in ["rank-0.log", "rank-12.log.1", ".seen-1-2"] {
            fs::write(logs.join(name), "old").unwrap();
        }
        for name in ["rank-.log", "rank-1.txt", "ours.log"] {
            fs::write(logs.join(name), "mine").unwrap();
        }
        delete(folder.path()).unwrap();
        let mut names: Vec<_> = fs::read_dir(&logs).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["ours.log", "rank-.log", "rank-1.txt"]);
        names.iter().for_each(|name| fs::remove_file(logs.join(name)).unwrap());
        fs::write(file(folder.path(), 3), "old").unwrap();
        delete(folder.path()).unwrap();
        assert!(!logs.exists());
    }

    #[test]
    fn probes_of_killed_runs_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(remove_leftovers(folder.path()).is_empty());
        fs::create_dir(folder.path().join(LOGS)).unwrap();
        for name in [".seen-1-2", "rank-0.log"] {
            fs::write(folder.path().join(LOGS).join(name), "").unwrap();
        }
        assert_eq!(remove_leftovers(folder.path()), ["logs/.seen-1-2"]);
        assert!(file(folder.path(), 0).exists());
    }

    #[test]
    fn another_folder_of_that_name_is_not_the_same() {
        let (run, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let probe = Probe::leave(run.path()).unwrap();
        let name = probe.name();
        assert!(Probe::is_seen(run.path(), &name) && !Probe::is_seen(other.path(), &name));
        assert!(!Probe::is_seen(run.path(), ""));
        drop(probe);
        assert!(!Probe::is_seen(run.path(), &name));
        fs::write(other.path().join(LOGS), "a file").unwrap();
        Probe::leave(other.path()).unwrap_err();
    }
}
