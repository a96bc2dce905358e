//! Files that have temporary names until all of them are on the disk.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::storage::atomic_write::WriteError;

/// How temporary names end; before it stands the process.
const ENDING: &str = ".convert";

/// The files of one command. Those that were not given their names are removed.
#[derive(Debug)]
pub(super) struct Staging {
    /// Temporary name and name.
    files: Vec<(PathBuf, PathBuf)>,
    /// Folders that were not there.
    made: Vec<PathBuf>,
}

impl Staging {
    /// For files in `folder`, where what killed commands left is removed.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        remove_left_over(folder);
        Ok(Staging { files: Vec::new(), made: Vec::new() })
    }

    /// A new file that will be `path`.
    pub(super) fn create(&mut self, path: &Path) -> Result<File> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.exists() {
            let missing =
                folder.ancestors().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
            let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
            self.made.extend(missing.into_iter().rev());
            fs::create_dir_all(folder).map_err(|source| WriteError { path: folder.to_owned(), source })?;
        }
        let beside = beside(path);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&beside);
        let file = file.map_err(|source| WriteError { path: path.to_owned(), source })?;
        self.files.push((beside, path.to_owned()));
        Ok(file)
    }

    /// A file without a name on the disk of `path`, which ends with the process.
    pub(super) fn scratch(&self, path: &Path, what: &str) -> Result<File> {
        let beside = beside(&path.with_extension(what));
        let make = || -> std::io::Result<File> {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&beside)?;
            fs::remove_file(&beside)?;
            Ok(file)
        };
        Ok(make().map_err(|source| WriteError { path: path.to_owned(), source })?)
    }

    /// Gives all files their names, which are whole and on the disk, and removes those of `old` that none of them replaces;
    /// bytes of all files.
    pub(super) fn commit(mut self, old: &[PathBuf]) -> Result<u64> {
        let mut n_bytes = 0;
        let mut named: Vec<PathBuf> = Vec::new();
        let mut folders: Vec<PathBuf> = Vec::new();
        // Labels were made after their features, and come before them.
        while let Some((beside, path)) = self.files.last().cloned() {
            let len = fs::metadata(&beside).map(|data| data.len());
            let renamed = len.and_then(|len| fs::rename(&beside, &path).map(|()| len));
            match renamed {
                Ok(len) => n_bytes += len,
                Err(source) => {
                    // What had no former content goes again.
                    for path in named.iter().filter(|path| !old.contains(path)) {
                        let _ = fs::remove_file(path);
                    }
                    return Err(WriteError { path, source }.into());
                }
            }
            self.files.pop();
            folders.extend(path.parent().map(Path::to_owned));
            named.push(path);
        }
        self.made.clear();
        for path in old.iter().filter(|path| !named.contains(path)) {
            fs::remove_file(path).map_err(|source| WriteError { path: path.clone(), source })?;
        }
        folders.sort();
        folders.dedup();
        for folder in folders {
            let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
            let synced = File::open(&folder).and_then(|open| open.sync_all());
            synced.map_err(|source| WriteError { path: folder, source })?;
        }
        Ok(n_bytes)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The error before matters more than one of these.
        for (beside, _) in &self.files {
            let _ = fs::remove_file(beside);
        }
        for folder in self.made.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}{ENDING}", std::process::id()))
}

/// Removes temporary files of processes that live no more.
fn remove_left_over(folder: &Path) {
    for folder in [folder.to_owned(), folder.join("labels"), folder.join("weights")] {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let process = name
                .strip_prefix('.')
                .and_then(|name| name.strip_suffix(ENDING)?.rsplit('.').next()?.parse().ok());
            let is_left = |process: u32| {
                process != std::process::id() && !Path::new(&format!("/proc/{process}")).exists()
            };
            if process.is_some_and(is_left) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
