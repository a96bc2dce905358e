//! A checkpoint that is there: what it says, whether its bytes are right, and the weights in it.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::error::{CheckpointError, Fault};
use super::manifest::Manifest;
use super::options::MODEL_FILE;
use super::state_reader::StateReader;
use super::store::{CHECKPOINTS_FOLDER, CheckpointStore, Marker, Search, step_of};
use crate::data::order::epoch_proof::Proved;
use crate::model::layout::ParamLayout;
use crate::storage::checksum::Checksum;
use crate::storage::fault::{FileEntry, FileFault};
use crate::storage::stream::Caching;
use crate::storage::tensor_file;
use crate::storage::tensor_file::TensorFile;

/// A checkpoint with a good manifest and files of the right lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

/// What a path that a user named stands for.
#[derive(Debug)]
pub enum Located {
    /// The folder of one checkpoint.
    One(PathBuf),
    /// A folder of checkpoints.
    Store(CheckpointStore),
}

impl Located {
    /// What `path` stands for: the folder of a checkpoint, a folder of checkpoints, a run's folder, or `latest` or `best`
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
        if path.join(super::manifest::MANIFEST_FILE).is_file() || (path.is_dir() && step_of(&name).is_some())
        {
            Ok(Located::One(path.to_owned()))
        } else if path.join(CHECKPOINTS_FOLDER).is_dir() {
            Ok(Located::Store(CheckpointStore::of_run(path)))
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
    /// Finds the checkpoint that `path` stands for, every byte of it right: of a folder with many the newest that is.
    ///
    /// # Errors
    /// [`CheckpointError::NotFound`] for a path with no checkpoint, [`CheckpointError::Damaged`] for one that can't be used,
    /// [`CheckpointError::NoneValid`] for several.
    pub fn find(path: &Path) -> Result<Search, CheckpointError> {
        match Located::new(path)? {
            Located::One(path) => Ok(Search { found: Some(Checkpoint::open(&path)?), skipped: Vec::new() }),
            Located::Store(store) => store.newest_valid()?.found_in(&store, path),
        }
    }

    /// The checkpoint in the folder `path`, every byte of it right.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`].
    fn open(path: &Path) -> Result<Self, CheckpointError> {
        let damaged = |fault| CheckpointError::Damaged { path: path.to_owned(), fault };
        let checkpoint = Checkpoint::read(path).map_err(damaged)?;
        // Whoever opens it reads some of it next.
        checkpoint.verify_with(Caching::Keep).map_err(damaged)?;
        Ok(checkpoint)
    }

    /// The checkpoint in the folder `path`, by its manifest and its files' lengths; their bytes are not read. For ranks that
    /// rank 0 has told of a checkpoint that it verified, and for lists.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let manifest = Manifest::read(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(step) = step_of(&name)
            && step != manifest.run.step
        {
            return Err(Fault::OtherStep { step: manifest.run.step });
        }
        let checkpoint = Checkpoint { path: path.to_owned(), manifest };
        checkpoint.check_lengths()?;
        Ok(checkpoint)
    }

    fn check_lengths(&self) -> Result<(), Fault> {
        for FileEntry { name, bytes, .. } in &self.manifest.files {
            let got = std::fs::metadata(self.path.join(name)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => FileFault::Missing { name: name.clone() },
                _ => FileFault::Unreadable { name: name.clone(), reason: error.to_string() },
            })?;
            if got.len() != *bytes {
                return Err(FileFault::Length { name: name.clone(), got: got.len(), expected: *bytes }.into());
            }
        }
        Ok(())
    }

    /// Reads all of its files, around the system's cache, and compares their checksums; then whether they hold what the manifest
    /// says: each parameter of its shape, and each element of the optimiser's state exactly once.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(&self) -> Result<(), Fault> {
        self.verify_with(Caching::Bypass)
    }

    pub(super) fn verify_with(&self, caching: Caching) -> Result<(), Fault> {
        let check = |entry: &FileEntry| {
            let read = tensor_file::checksum(&self.path.join(&entry.name), caching);
            check_checksum(entry, read)
        };
        self.manifest.files.par_iter().map(check).collect::<Result<(), Fault>>()?;
        self.check_content(&TensorFile::open(&self.model_path())?, &StateReader::open(self)?)
    }

    /// Whether the files, by their headers, hold what the manifest says.
    pub(super) fn check_content(&self, model: &TensorFile, state: &StateReader) -> Result<(), Fault> {
        if let Some(difference) = self.differences(model).first() {
            return Err(
                FileFault::Malformed { name: MODEL_FILE.to_owned(), reason: difference.clone() }.into()
            );
        }
        state.check()
    }

    /// What the model's file holds other than the manifest says.
    fn differences(&self, model: &TensorFile) -> Vec<String> {
        let parameters = self.manifest.parameters.iter();
        let difference = parameters.filter_map(|parameter| match model.dims(&parameter.name) {
            None => Some(format!("{} {:?} is missing", parameter.name, parameter.shape)),
            Some(dims) if dims != parameter.shape => {
                Some(format!("{} is {dims:?}, expected {:?}", parameter.name, parameter.shape))
            }
            Some(_) => None,
        });
        difference.collect()
    }

    /// Checks that each row was used exactly once in each finished epoch.
    ///
    /// # Errors
    /// What is wrong, a line for each epoch or run of epochs.
    pub fn verify_epochs(&self) -> Result<Proved, String> {
        let run = &self.manifest.run;
        run.proof.verify(run.n_rows, run.cursor)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its file of weights, a model's file as any run writes one at its end.
    pub fn model_path(&self) -> PathBuf {
        self.path.join(MODEL_FILE)
    }

    /// Says what is wrong with it.
    pub(crate) fn damaged(&self, fault: impl Into<Fault>) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), fault: fault.into() }
    }

    /// Compares the parameters with those of `layout`.
    ///
    /// # Errors
    /// [`CheckpointError::OtherModel`] with every difference.
    pub fn check_layout(&self, layout: &ParamLayout) -> Result<(), CheckpointError> {
        let here: HashMap<&str, &[usize]> =
            self.manifest.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
        let mut differences = Vec::new();
        for slot in layout.forward_order() {
            match here.get(slot.name.as_str()) {
                None => differences.push(format!("{} {:?} is not in the checkpoint", slot.name, slot.dims)),
                Some(&dims) if dims != slot.dims => differences.push(format!(
                    "{} is {dims:?} in the checkpoint, {:?} in the model",
                    slot.name, slot.dims
                )),
                Some(_) => {}
            }
        }
        let strangers =
            self.manifest.parameters.iter().filter(|p| !layout.slots().iter().any(|s| s.name == p.name));
        differences.extend(strangers.map(|p| format!("{} {:?} is not in the model", p.name, p.shape)));
        if differences.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::OtherModel { path: self.path.clone(), differences: differences.join("\n  ") })
    }
}

/// Whether a file's length and checksum, as they were read, are those of its entry.
pub(super) fn check_checksum(entry: &FileEntry, read: io::Result<(u64, Checksum)>) -> Result<(), Fault> {
    let FileEntry { name, bytes, xxh3_128 } = entry;
    let (got, sum) =
        read.map_err(|error| FileFault::Unreadable { name: name.clone(), reason: error.to_string() })?;
    if got != *bytes {
        return Err(FileFault::Length { name: name.clone(), got, expected: *bytes }.into());
    }
    if sum != *xxh3_128 {
        let (got, expected) = (sum.to_string(), xxh3_128.to_string());
        return Err(FileFault::Changed { name: name.clone(), got, expected }.into());
    }
    Ok(())
}
