//! The folder of a new or continued run, claimed by this process.

use std::path::Path;

use crate::checkpoint::CheckpointStore;
use crate::run_folder::{Existing, RunDir};
use crate::train::error::Result;

/// Claims the run folder and, unless its run continues, removes that run.
///
/// # Errors
/// [`TrainError::Folder`](crate::train::TrainError::Folder), [`TrainError::Checkpoint`](crate::train::TrainError::Checkpoint)
pub fn claim_folder(out: Option<&Path>, name: &str, existing: Existing) -> Result<RunDir> {
    let folder = RunDir::open(out, name, existing)?;
    if existing != Existing::Continue {
        // First, so that a process killed in between leaves no checkpoints that a later run would resume by mistake.
        CheckpointStore::of_run(folder.path()).delete_all()?;
        folder.clear()?;
    }
    Ok(folder)
}
