//! The folder of a run's checkpoints: lists them, finds the newest usable one, and prunes old ones.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::error::CheckpointError;
use super::fault::Fault;
use super::names::{CHECKPOINTS_FOLDER, MANIFEST_FILE, Marker, step_name, step_of};
use super::opened::Checkpoint;
use crate::storage::disk::{Disk, DiskError, OsDisk, at, replace};
use crate::storage::stream::Caching;
use crate::storage::user_file::read_regular;

/// Prefix of a checkpoint that is being written.
const TEMP_PREFIX: &str = ".step-";
const TEMP_SUFFIX: &str = ".tmp";
/// Prefix of a checkpoint that is being deleted.
const OLD_PREFIX: &str = ".old-";
/// Prefix of a checkpoint that is replaced by another of the same step, where the file system can't exchange names.
const ASIDE_PREFIX: &str = ".aside-";

/// Largest marker that is read: the name of a folder.
const MAX_MARKER_BYTES: u64 = 4096;

/// The checkpoints of a run.
#[derive(Debug, Clone)]
pub struct CheckpointStore {
    folder: PathBuf,
    disk: Arc<dyn Disk>,
}

/// Result of a search for the newest checkpoint.
#[derive(Debug)]
pub struct Search {
    /// Newest usable checkpoint.
    pub found: Option<Checkpoint>,
    /// Newer checkpoints that can't be used, newest first.
    pub skipped: Vec<Skipped>,
}

impl Search {
    /// Returns the search if it found a checkpoint in `store`, which the user named `named`.
    ///
    /// # Errors
    /// [`CheckpointError::NotFound`] if there was nothing, [`CheckpointError::NoneValid`] if nothing could be used.
    pub fn found_in(self, store: &CheckpointStore, named: &Path) -> Result<Self, CheckpointError> {
        match (&self.found, self.skipped.is_empty()) {
            (None, true) => Err(CheckpointError::NotFound { path: named.to_owned() }),
            (None, false) => {
                let path = store.folder().to_owned();
                let skipped: Vec<_> = self.skipped.iter().map(ToString::to_string).collect();
                Err(CheckpointError::NoneValid { path, skipped: skipped.join("\n  ") })
            }
            (Some(_), _) => Ok(self),
        }
    }
}

/// A checkpoint that can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Name of its folder, or of the marker.
    pub name: String,
    /// Reason why it can't be used.
    pub fault: Fault,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.fault)
    }
}

impl CheckpointStore {
    /// Store in this folder, which need not exist; creates nothing.
    pub fn at(folder: &Path) -> Self {
        CheckpointStore { folder: folder.to_owned(), disk: Arc::new(OsDisk) }
    }

    /// Store of the run in the folder `out`; creates nothing.
    pub fn for_run(out: &Path) -> Self {
        CheckpointStore::at(&out.join(CHECKPOINTS_FOLDER))
    }

    /// The same store through another file system.
    #[must_use]
    pub fn with_disk(self, disk: Arc<dyn Disk>) -> Self {
        CheckpointStore { disk, ..self }
    }

    /// Prepares the folder for writing: creates it if it is missing, and removes what an ended process left half-written or
    /// half-deleted. Called by rank 0 of the run that owns the folder, before any rank writes. Returns the removed names.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`].
    pub fn prepare(&self) -> Result<Vec<String>, CheckpointError> {
        self.restore_names()?;
        let make = || {
            self.disk.create_dir_all(&self.folder).map_err(at("make", &self.folder))?;
            let parent = parent_of(&self.folder);
            self.disk.sync_dir(parent).map_err(at("sync", parent))
        };
        make().map_err(folder_error)?;
        let mut removed = Vec::new();
        for name in self.names()? {
            if is_leftover(&name) {
                self.remove(&self.folder.join(&name)).map_err(folder_error)?;
                removed.push(name);
            }
        }
        Ok(removed)
    }

    /// Gives a checkpoint its name back that was moved away by a process that ended before the newer one of the same step had that name.
    /// No other process may be saving.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`].
    pub fn restore_names(&self) -> Result<(), CheckpointError> {
        for name in self.names()? {
            let aside = name.strip_prefix(ASIDE_PREFIX).filter(|name| step_of(name).is_some());
            if let Some(home) = aside.map(|name| self.folder.join(name)).filter(|home| !home.exists()) {
                let path = self.folder.join(&name);
                self.disk.rename(&path, &home).map_err(at("rename", &path)).map_err(folder_error)?;
            }
        }
        Ok(())
    }

    /// Whether the folder is there and holds nothing at all, not even a marker, as the mount point of a disk that is not mounted does.
    pub fn is_bare(&self) -> bool {
        std::fs::read_dir(&self.folder).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Folder of a step's checkpoint.
    pub fn step_folder(&self, step: u64) -> PathBuf {
        self.folder.join(step_name(step))
    }

    /// Temporary folder that all ranks write a step's checkpoint to; `attempt` counts the saves of the process.
    pub(super) fn temp_folder(&self, step: u64, attempt: u64) -> PathBuf {
        self.folder.join(format!("{TEMP_PREFIX}{step}-{attempt}{TEMP_SUFFIX}"))
    }

    /// Steps of all checkpoints, valid or not, in order; empty if there is no folder.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`] if the folder can't be read.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut steps: Vec<u64> = self.names()?.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let failed = |source| folder_error(at("read", &self.folder)(source));
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            // Such as to a disk that is not mounted, whose checkpoints are all there.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.folder.is_symlink() => {
                return Err(folder_error(at("follow the link", &self.folder)(error)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let names: io::Result<Vec<_>> =
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect();
        names.map_err(failed)
    }

    /// Opens the checkpoint of a step and checks its manifest and its files' lengths, but not their bytes.
    ///
    /// # Errors
    /// The [`Fault`] that it finds.
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint, Fault> {
        Checkpoint::read(&self.step_folder(step))
    }

    /// The highest step below `end` whose checkpoint looks intact, by its manifest and its files' lengths.
    pub(super) fn newest_step_below(&self, end: u64) -> Option<u64> {
        let steps = self.steps().unwrap_or_default().into_iter();
        steps.rev().filter(|&step| step < end).find(|&step| self.checkpoint(step).is_ok())
    }

    /// Finds the newest checkpoint that passes full verification, and the newer ones skipped.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`] if the folder can't be read.
    pub fn newest_valid(&self) -> Result<Search, CheckpointError> {
        // The caller reads some of it next.
        self.newest(u64::MAX, |checkpoint| checkpoint.verify_with(Caching::Keep))
    }

    /// Finds the newest checkpoint below step `end` that looks intact, by its manifest and its files' lengths, and passes `check`; and
    /// the newer ones skipped.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`] if the folder can't be read.
    pub fn newest(
        &self,
        end: u64,
        check: impl Fn(&Checkpoint) -> Result<(), Fault>,
    ) -> Result<Search, CheckpointError> {
        let mut skipped = Vec::new();
        let steps = self.steps()?;
        if end == u64::MAX
            && let Some(name) = self.marked(Marker::Latest)
            && step_of(&name).is_none_or(|step| !steps.contains(&step))
        {
            let fault = Fault::NamesNothing { name };
            skipped.push(Skipped { name: Marker::Latest.name().to_owned(), fault });
        }
        for step in steps.into_iter().rev().filter(|&step| step < end) {
            let checked = self.checkpoint(step).and_then(|checkpoint| {
                check(&checkpoint)?;
                Ok(checkpoint)
            });
            match checked {
                Ok(checkpoint) => return Ok(Search { found: Some(checkpoint), skipped }),
                Err(fault) => skipped.push(Skipped { name: step_name(step), fault }),
            }
        }
        Ok(Search { found: None, skipped })
    }

    /// Content of a marker's file, if it exists.
    pub fn marked(&self, marker: Marker) -> Option<String> {
        let text = read_regular(&self.folder.join(marker.name()), MAX_MARKER_BYTES).ok()?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// The step that a marker names.
    pub fn marked_step(&self, marker: Marker) -> Option<u64> {
        step_of(&self.marked(marker)?)
    }

    /// Points a marker at this step's checkpoint; on disk when it returns.
    pub(super) fn mark(&self, marker: Marker, step: u64) -> Result<(), DiskError> {
        let path = self.folder.join(marker.name());
        replace(&*self.disk, &path, format!("{}\n", step_name(step)).as_bytes())?;
        self.disk.sync_dir(&self.folder).map_err(at("sync", &self.folder))
    }

    /// Steps to delete: all older than the `keep` newest valid ones up to step `newest`, except those in `spared` and folders that have no
    /// manifest. Returns none while fewer than `keep` are valid.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`] if the folder can't be read.
    pub fn superfluous(
        &self,
        newest: u64,
        keep: usize,
        spared: &[u64],
        is_valid: impl Fn(u64) -> bool,
    ) -> Result<Vec<u64>, CheckpointError> {
        let steps = self.steps()?;
        let valid = steps.iter().rev().filter(|&&step| step <= newest && is_valid(step));
        let Some(&oldest_kept) = valid.take(keep).nth(keep.wrapping_sub(1)) else { return Ok(Vec::new()) };
        let is_old = |step: &u64| *step < oldest_kept && !spared.contains(step) && self.is_saved(*step);
        Ok(steps.into_iter().filter(is_old).collect())
    }

    /// Deletes a step's checkpoint. It is renamed first, so that a crash never leaves a partial checkpoint under its name.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`].
    pub fn delete(&self, step: u64) -> Result<(), CheckpointError> {
        let renamed = self.take_name(step);
        let synced = renamed.and_then(|to| {
            self.disk.sync_dir(&self.folder).map_err(at("sync", &self.folder))?;
            self.remove(&to)
        });
        synced.map_err(folder_error)
    }

    /// Renames a step's checkpoint to the name of one that is being deleted, and returns that.
    fn take_name(&self, step: u64) -> Result<PathBuf, DiskError> {
        let (from, to) =
            (self.step_folder(step), self.folder.join(format!("{OLD_PREFIX}{}", step_name(step))));
        if to.exists() {
            self.remove(&to)?;
        }
        self.disk.rename(&from, &to).map_err(at("rename", &from))?;
        Ok(to)
    }

    /// Whether the folder of a step is one that a run saved, or a copy of it, and not the user's or a link.
    fn is_saved(&self, step: u64) -> bool {
        let folder = self.step_folder(step);
        !folder.is_symlink() && folder.join(MANIFEST_FILE).symlink_metadata().is_ok_and(|file| file.is_file())
    }

    /// Deletes all checkpoints, for a run that replaces an earlier one, and the folder if it is empty and not a link.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`].
    pub fn delete_all(&self) -> Result<(), CheckpointError> {
        if !self.folder.is_dir() && !self.folder.is_symlink() {
            return Ok(());
        }
        // The newest first, so that none is resumed by mistake if this process ends in between.
        for step in self.steps()?.into_iter().rev().filter(|step| self.is_saved(*step)) {
            self.take_name(step).map_err(folder_error)?;
        }
        self.disk.sync_dir(&self.folder).map_err(at("sync", &self.folder)).map_err(folder_error)?;
        let names = self.names()?;
        let is_marker =
            |name: &str| [Marker::Latest, Marker::Best].iter().any(|marker| name == marker.name());
        let is_own = |name: &str| is_leftover(name) || is_marker(name);
        let (own, foreign): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| is_own(name));
        for name in own {
            self.remove(&self.folder.join(name)).map_err(folder_error)?;
        }
        if foreign.is_empty() && !self.folder.is_symlink() {
            self.remove(&self.folder).map_err(folder_error)?;
        }
        Ok(())
    }

    /// Renames the complete checkpoint in `temp` to its final name; on disk when it returns. An older one of the same step is
    /// replaced, so that one of the two exists at any time. What has the name and is no checkpoint is the user's: it gets another one.
    pub(super) fn commit(&self, temp: &Path, step: u64) -> Result<(), DiskError> {
        let home = self.step_folder(step);
        if home.symlink_metadata().is_ok() && !self.is_saved(step) {
            let names = (1..).map(|n| self.folder.join(format!("{}.other-{n}", step_name(step))));
            let other = names.into_iter().find(|name| name.symlink_metadata().is_err()).expect("a free name");
            self.disk.rename(&home, &other).map_err(at("rename", &home))?;
            warn!("`{}` is no checkpoint of a run: it is `{}` now", home.display(), other.display());
        }
        if !home.exists() {
            self.disk.rename(temp, &home).map_err(at("rename a folder to", &home))?;
            return self.disk.sync_dir(&self.folder).map_err(at("sync", &self.folder));
        }
        if self.disk.exchange(temp, &home).is_err() {
            // `prepare` restores the name if this process ends in between.
            let aside = self.folder.join(format!("{ASIDE_PREFIX}{}", step_name(step)));
            self.disk.rename(&home, &aside).map_err(at("rename a folder to", &aside))?;
            if let Err(error) = self.disk.rename(temp, &home) {
                // Restore the old one; report the error of the new one.
                let _ = self.disk.rename(&aside, &home);
                return Err(at("rename a folder to", &home)(error));
            }
        }
        self.disk.sync_dir(&self.folder).map_err(at("sync", &self.folder))?;
        // The old one is a leftover: the next start removes it if this fails.
        let aside = self.folder.join(format!("{ASIDE_PREFIX}{}", step_name(step)));
        for path in [temp, &aside].into_iter().filter(|path| path.exists()) {
            let _ = self.remove(path);
        }
        Ok(())
    }

    /// Removes half-written checkpoints of earlier saves of this process.
    pub(super) fn remove_temps_before(&self, attempt: u64) {
        for name in self.names().unwrap_or_default() {
            let of = name.strip_prefix(TEMP_PREFIX).and_then(|name| name.strip_suffix(TEMP_SUFFIX));
            let of = of.and_then(|name| name.split_once('-')?.1.parse::<u64>().ok());
            if of.is_some_and(|of| of < attempt) {
                // The next start removes it if this fails.
                let _ = self.remove(&self.folder.join(name));
            }
        }
    }

    /// Removes a file or a folder with its contents.
    pub(super) fn remove(&self, path: &Path) -> Result<(), DiskError> {
        // Of a link, the link alone is removed.
        let is_folder = path.is_dir() && !path.is_symlink();
        let removed = if is_folder { self.disk.remove_dir_all(path) } else { self.disk.remove_file(path) };
        removed.map_err(at("remove", path))
    }
}

fn is_leftover(name: &str) -> bool {
    let is_temp = name
        .strip_prefix(TEMP_PREFIX)
        .and_then(|name| name.strip_suffix(TEMP_SUFFIX))
        .is_some_and(|name| name.split('-').all(|number| number.parse::<u64>().is_ok()));
    let is_aside =
        [OLD_PREFIX, ASIDE_PREFIX].iter().any(|prefix| name.strip_prefix(prefix).and_then(step_of).is_some());
    let is_marker =
        [Marker::Latest, Marker::Best].iter().any(|marker| name == format!(".{}.new", marker.name()));
    is_temp || is_marker || is_aside
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn folder_error(error: DiskError) -> CheckpointError {
    let DiskError { action, path, source } = error;
    CheckpointError::Folder { action, path, source }
}
