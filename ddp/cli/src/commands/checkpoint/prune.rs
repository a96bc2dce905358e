//! `ddp-train checkpoint prune`: deletes old checkpoints.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;

use ddp::checkpoint::{CheckpointError, CheckpointStore, Located, Marker, step_name};
use ddp::report::units::mib;
use ddp::run_folder::error::FolderError;
use ddp::run_folder::folder::{self, Held};

use super::print_result;
use crate::cli::CheckpointPruneArgs;
use crate::error::Result;

/// Deletes old checkpoints.
pub(super) fn prune(args: &CheckpointPruneArgs) -> Result<()> {
    let Located::Store(store) = Located::new(&args.path)? else {
        return Err(CheckpointError::OneOnly { path: args.path.clone() }.into());
    };
    // Held until everything is deleted.
    let held = if args.dry_run { Vec::new() } else { hold(&store)? };
    if held.iter().any(|held| matches!(held, Held::Unknown)) {
        print_result("this file system has no locks: cannot tell whether a run is active here\n")?;
    }
    let best = store.marked_step(Marker::Best).filter(|_| !args.also_best);
    // Verified only once, because verifying reads every byte.
    let known = RefCell::new(HashMap::new());
    let is_valid = |step| {
        let verify = || store.checkpoint(step).is_ok_and(|checkpoint| checkpoint.verify().is_ok());
        *known.borrow_mut().entry(step).or_insert_with(verify)
    };
    let superfluous = store.superfluous(u64::MAX, args.keep, best.as_slice(), is_valid)?;
    for &step in &superfluous {
        let size = store.checkpoint(step).map_or_else(
            |fault| format!("broken: {fault}"),
            |checkpoint| mib(checkpoint.manifest().n_bytes()),
        );
        if !args.dry_run {
            store.delete(step)?;
        }
        let what = if args.dry_run { "would delete" } else { "deleted" };
        print_result(&format!("{what} {} ({size})\n", step_name(step)))?;
    }
    if superfluous.is_empty() {
        // A user who lowers the number expects deletions, so explain why there are none.
        let broken: Vec<_> =
            store.steps()?.into_iter().filter(|&step| !is_valid(step)).map(step_name).collect();
        print_result(&match broken.as_slice() {
            [] => "nothing to delete\n".to_owned(),
            names => format!("nothing to delete; broken checkpoints do not count: {}\n", names.join(", ")),
        })?;
    }
    Ok(())
}

/// Locks the run folder of the checkpoints so that no run can claim it, if none is active.
fn hold(store: &CheckpointStore) -> Result<Vec<Held>> {
    let folder = store.folder();
    // For a symbolic link, the parent of the link counts; for a name such as `.`, the parent of the folder that it resolves to.
    let by_name = folder.file_name().and(folder.parent()).and_then(|run| {
        if run.as_os_str().is_empty() { std::env::current_dir().ok() } else { Some(run.to_owned()) }
    });
    let by_place = folder.canonicalize().ok().and_then(|folder| Some(folder.parent()?.to_owned()));
    // This process can't take the same lock twice.
    let is_named =
        |place: &PathBuf| by_name.as_ref().and_then(|run| run.canonicalize().ok()).as_ref() == Some(place);
    let by_place = by_place.filter(|place| !is_named(place));
    let runs: Vec<PathBuf> = by_name.into_iter().chain(by_place).collect();
    let hold_one = |run: &PathBuf| match folder::hold(run) {
        Err(FolderError::Busy { path, holder }) => {
            Err(CheckpointError::RunInProgress { path, holder }.into())
        }
        lock => Ok(lock?),
    };
    runs.iter().map(hold_one).collect()
}
