//! Files that keep temporary names until all of them are on disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ddp::storage::unfinished::is_running;
use ddp::storage::user_file::{check_place, create_new, open_regular};
use ddp::storage::write_error::WriteError;

/// Ending of temporary names; the process id precedes it.
const ENDING: &str = ".convert";

/// The files of one command. Dropping it removes the files that were not committed.
#[derive(Debug)]
pub struct Staging {
    /// Temporary name and name.
    files: Vec<(PathBuf, PathBuf)>,
    /// Folders that this command created.
    created: Vec<PathBuf>,
}

impl Staging {
    /// Prepares for files in `folder` and removes temporary files that killed processes left there.
    pub fn new(folder: &Path) -> Self {
        remove_left_over(folder);
        Staging { files: Vec::new(), created: Vec::new() }
    }

    /// Creates a file that [`Staging::commit`] renames to `path`.
    pub fn create(&mut self, path: &Path) -> Result<File, WriteError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.exists() {
            let missing =
                folder.ancestors().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
            let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
            self.created.extend(missing.into_iter().rev());
            fs::create_dir_all(folder).map_err(|source| WriteError { path: folder.to_owned(), source })?;
        }
        let temporary = temporary_path(path);
        let file = check_place(path).and_then(|()| create_new(&temporary));
        let file = file.map_err(|source| WriteError { path: path.to_owned(), source })?;
        self.files.push((temporary, path.to_owned()));
        Ok(file)
    }

    /// Renames all files, which must be complete and synced, removes those of `old` that none of them replaced, and returns the
    /// total size in bytes.
    ///
    /// # Errors
    /// [`WriteError`]; new files without a predecessor are removed again.
    pub fn commit(mut self, old: &[PathBuf]) -> Result<u64, WriteError> {
        let mut n_bytes = 0;
        let mut named: Vec<PathBuf> = Vec::new();
        let mut folders: Vec<PathBuf> = Vec::new();
        while let Some((temporary, path)) = self.files.last().cloned() {
            let len = fs::metadata(&temporary).map(|data| data.len());
            let renamed = len.and_then(|len| fs::rename(&temporary, &path).map(|()| len));
            match renamed {
                Ok(len) => n_bytes += len,
                Err(source) => {
                    // Remove the new files that replaced nothing.
                    for path in named.iter().filter(|path| !old.contains(path)) {
                        let _ = fs::remove_file(path);
                    }
                    return Err(WriteError { path, source });
                }
            }
            self.files.pop();
            folders.extend(path.parent().map(Path::to_owned));
            named.push(path);
        }
        self.created.clear();
        for path in old.iter().filter(|path| !named.contains(path)) {
            fs::remove_file(path).map_err(|source| WriteError { path: path.clone(), source })?;
        }
        folders.sort();
        folders.dedup();
        for folder in folders {
            let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
            let synced = open_regular(&folder).and_then(|open| open.sync_all());
            synced.map_err(|source| WriteError { path: folder, source })?;
        }
        Ok(n_bytes)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // An error that led here matters more than a failed clean-up.
        for (temporary, _) in &self.files {
            let _ = fs::remove_file(temporary);
        }
        for folder in self.created.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}{ENDING}", std::process::id()))
}

/// Removes temporary files of processes that have ended.
fn remove_left_over(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name
            .strip_prefix('.')
            .and_then(|name| name.strip_suffix(ENDING)?.rsplit('.').next()?.parse().ok());
        let has_ended = |process: u32| process != std::process::id() && !is_running(process);
        if process.is_some_and(has_ended) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
