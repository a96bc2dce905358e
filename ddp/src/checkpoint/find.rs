//! Resolves a user's path to a checkpoint.

use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::names::{CHECKPOINTS_FOLDER, MANIFEST_FILE, Marker, step_of};
use super::opened::Checkpoint;
use super::store::{CheckpointStore, Search};
use crate::storage::stream::Caching;

/// Meaning of a user's path.
#[derive(Debug)]
pub enum Located {
    /// The folder of one checkpoint.
    One(PathBuf),
    /// A folder of checkpoints.
    Store(CheckpointStore),
}

impl Located {
    /// Resolves `path`: the folder of a checkpoint, a folder of checkpoints, a run's folder, or `latest` or `best`
    /// in a folder of checkpoints.
    ///
    /// # Errors
    /// [`CheckpointError::NotFound`] if it is none of these.
    pub fn new(path: &Path) -> Result<Self, CheckpointError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let not_found = || CheckpointError::NotFound { path: path.to_owned() };
        if path.is_file() {
            let marker = [Marker::Latest, Marker::Best].into_iter().find(|marker| marker.name() == name);
            let store = CheckpointStore::at(path.parent().ok_or_else(not_found)?);
            let step = marker.and_then(|marker| store.marked_step(marker)).ok_or_else(not_found)?;
            return Ok(Located::One(store.step_folder(step)));
        }
        let store = CheckpointStore::at(path);
        if path.join(MANIFEST_FILE).is_file() || (path.is_dir() && step_of(&name).is_some()) {
            Ok(Located::One(path.to_owned()))
        } else if path.join(CHECKPOINTS_FOLDER).is_dir() {
            Ok(Located::Store(CheckpointStore::for_run(path)))
        } else if store.steps().is_ok_and(|steps| !steps.is_empty())
            || (path.is_dir() && name == CHECKPOINTS_FOLDER)
        {
            Ok(Located::Store(store))
        } else {
            Err(not_found())
        }
    }
}

impl Checkpoint {
    /// Finds and verifies the checkpoint that `path` stands for; in a folder of checkpoints the newest intact one.
    ///
    /// # Errors
    /// [`CheckpointError::NotFound`] for a path with no checkpoint, [`CheckpointError::Damaged`] for one that can't be used,
    /// [`CheckpointError::NoneValid`] if none of several can be used.
    pub fn find(path: &Path) -> Result<Search, CheckpointError> {
        match Located::new(path)? {
            Located::One(path) => Ok(Search { found: Some(Checkpoint::open(&path)?), skipped: Vec::new() }),
            Located::Store(store) => store.newest_valid()?.found_in(&store, path),
        }
    }

    /// Opens and verifies the checkpoint in the folder `path`.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`].
    fn open(path: &Path) -> Result<Self, CheckpointError> {
        let damaged = |fault| CheckpointError::Damaged { path: path.to_owned(), fault };
        let checkpoint = Checkpoint::read(path).map_err(damaged)?;
        // The caller reads some of it next.
        checkpoint.verify_with(Caching::Keep).map_err(damaged)?;
        Ok(checkpoint)
    }
}
