//! An opened checkpoint: its manifest, its files and its layout checks.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::fault::Fault;
use super::manifest::Manifest;
use super::names::{CHECKPOINTS_FOLDER, MODEL_FILE, step_of};
use crate::data::order::epoch_proof::Proved;
use crate::model::layout::ParamLayout;
use crate::run_folder::run_id;
use crate::storage::fault::{FileEntry, FileFault};

/// A checkpoint with a valid manifest and files of the right lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens the checkpoint in the folder `path` and checks its manifest and its files' lengths, but not their bytes.
    ///
    /// # Errors
    /// The [`Fault`] that it finds.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let checkpoint = Self::read_manifest(path)?;
        checkpoint.check_lengths()?;
        Ok(checkpoint)
    }

    /// Opens a checkpoint that another rank has [read](Checkpoint::read): checks its manifest and does not look at its files.
    ///
    /// # Errors
    /// Same as [`Checkpoint::read`].
    pub(crate) fn read_manifest(path: &Path) -> Result<Self, Fault> {
        let manifest = Manifest::read(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(step) = step_of(&name)
            && step != manifest.run.step
        {
            return Err(Fault::OtherStep { step: manifest.run.step });
        }
        let store =
            path.parent().filter(|store| store.file_name().is_some_and(|name| name == CHECKPOINTS_FOLDER));
        if let (Some(run_id), Some(expected)) =
            (&manifest.run_id, store.and_then(Path::parent).and_then(run_id::read))
            && *run_id != expected
        {
            return Err(Fault::OtherRun { run_id: run_id.clone(), expected });
        }
        Ok(Checkpoint { path: path.to_owned(), manifest })
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

    /// Checks that each row was used exactly once in each finished epoch.
    ///
    /// # Errors
    /// The faults, one line per epoch or run of epochs.
    pub fn verify_epochs(&self) -> Result<Proved, String> {
        let run = &self.manifest.run;
        run.proof.verify(run.n_rows, run.cursor)
    }

    /// Folder of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Manifest of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its model file, in the same format as the one a run writes at its end.
    pub fn model_path(&self) -> PathBuf {
        self.path.join(MODEL_FILE)
    }

    /// Turns a fault into an error of this checkpoint.
    pub fn damaged(&self, fault: impl Into<Fault>) -> CheckpointError {
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
        for entry in layout.forward_order() {
            match here.get(entry.name.as_str()) {
                None => differences.push(format!("{} {:?} is not in the checkpoint", entry.name, entry.dims)),
                Some(&dims) if dims != entry.dims => differences.push(format!(
                    "{} is {dims:?} in the checkpoint, {:?} in the model",
                    entry.name, entry.dims
                )),
                Some(_) => {}
            }
        }
        let extra =
            self.manifest.parameters.iter().filter(|p| !layout.entries().iter().any(|s| s.name == p.name));
        differences.extend(extra.map(|p| format!("{} {:?} is not in the model", p.name, p.shape)));
        if differences.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::OtherModel { path: self.path.clone(), differences: differences.join("\n  ") })
    }
}
