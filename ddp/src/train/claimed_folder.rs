//! The folder of a new or continued run, claimed by this process.

use std::path::Path;

use crate::checkpoint::CheckpointStore;
use crate::run_folder::folder::MODEL_FILE;
use crate::run_folder::{Existing, FolderError, RunDir};
use crate::train::error::Result;

/// Claims the run folder and, unless its run continues, removes that run.
///
/// # Errors
/// [`TrainError::Folder`](crate::train::TrainError::Folder), [`TrainError::Checkpoint`](crate::train::TrainError::Checkpoint)
pub fn claim_folder(out: Option<&Path>, name: &str, existing: Existing) -> Result<RunDir> {
    let folder = RunDir::open(out, name, existing)?;
    if existing != Existing::Continue {
        remove_run(&folder)?;
    }
    Ok(folder)
}

/// Claims the folder of a run that has found no checkpoint in it and starts over. What the owner before has saved since then is kept:
/// it may have ended between that search and this claim.
///
/// # Errors
/// Same as [`claim_folder`], and [`FolderError::Continued`] if there is a checkpoint or a model now.
pub fn claim_folder_again(out: Option<&Path>, name: &str) -> Result<RunDir> {
    let folder = RunDir::open(out, name, Existing::Continue)?;
    let store = CheckpointStore::for_run(folder.path());
    store.restore_names()?;
    if !store.steps()?.is_empty() || folder.file(MODEL_FILE).exists() {
        return Err(FolderError::Continued { path: folder.path().to_owned() }.into());
    }
    remove_run(&folder)?;
    Ok(folder)
}

fn remove_run(folder: &RunDir) -> Result<()> {
    // First, so that a process killed in between leaves no checkpoints that a later run would resume by mistake.
    CheckpointStore::for_run(folder.path()).delete_all()?;
    Ok(folder.clear()?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::exit_code;
    use crate::run_folder::folder::CONFIG_FILE;

    /// The owner before is asked to end while the new run loads its data, and saves.
    #[test]
    fn what_was_saved_since_the_search_is_kept() {
        let run = tempfile::tempdir().unwrap();
        let again = || claim_folder_again(Some(run.path()), "x");
        fs::write(run.path().join(CONFIG_FILE), "").unwrap();
        drop(again().unwrap());
        assert!(!run.path().join(CONFIG_FILE).exists(), "a run that was killed before its first checkpoint");
        let step = CheckpointStore::for_run(run.path()).step_folder(7);
        for saved in [step.join("manifest.json"), run.path().join(MODEL_FILE)] {
            fs::create_dir_all(saved.parent().unwrap()).unwrap();
            fs::write(&saved, "{}").unwrap();
            let error = crate::Error::from(again().unwrap_err());
            assert_eq!(error.exit_code(), exit_code::RESTARTABLE, "{error}");
            assert!(saved.exists(), "{error}");
            let _ = fs::remove_dir_all(&step);
        }
    }
}
