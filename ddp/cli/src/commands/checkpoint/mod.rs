//! `ddp-train checkpoint`: commands on existing checkpoints.

mod show;
mod weights;
mod average;
mod export;
mod list;

use std::path::Path;

use ddp::checkpoint::{Checkpoint, CheckpointError, CheckpointStore, Fault, Located, step_name};
use ddp_comm::World;
use tracing::info;

use crate::cli::CheckpointCommand;
use crate::error::Result;
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::stdout::print_result;

/// Runs the command on rank 0; the other ranks wait.
///
/// # Errors
/// Errors of reading the checkpoint, and of writing files or the report.
pub fn checkpoint(world: &World, log: &Log, command: &CheckpointCommand) -> Result<(), Stop> {
    let result = match command {
        _ if world.rank().0 > 0 => Ok(()),
        CheckpointCommand::Ls(args) => list::list(args),
        CheckpointCommand::Verify(args) => list::verify(log, args),
        CheckpointCommand::Show(args) => show::show(args),
        CheckpointCommand::Prune(args) => list::prune(args),
        CheckpointCommand::Average(args) => average::average(args),
        CheckpointCommand::Export(args) => export::export(args),
    };
    Ok(world.collective_result(result)?)
}

/// A checkpoint with its name, or the reason why it can't be used.
struct Named {
    name: String,
    checkpoint: Result<Checkpoint, Fault>,
}

/// Finds all checkpoints at `path`, in step order, and their folder.
fn all_at(path: &Path) -> Result<(Vec<Named>, CheckpointStore)> {
    match Located::new(path)? {
        Located::One(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let store = CheckpointStore::at(parent.unwrap_or(Path::new(".")));
            Ok((vec![Named { name, checkpoint: Checkpoint::read(&path) }], store))
        }
        Located::Store(store) => {
            let steps = store.steps()?;
            if steps.is_empty() {
                return Err(CheckpointError::NotFound { path: path.to_owned() }.into());
            }
            let named = |step| Named { name: step_name(step), checkpoint: store.checkpoint(step) };
            Ok((steps.into_iter().map(named).collect(), store))
        }
    }
}

impl Named {
    /// Whether the run has deleted it since it was listed, and keeps later ones.
    fn is_gone(&self, store: &CheckpointStore) -> bool {
        !store.folder().join(&self.name).exists() && store.steps().is_ok_and(|steps| !steps.is_empty())
    }
}

/// Finds the one verified checkpoint at `path`; reports skipped ones on stderr.
fn one_at(path: &Path) -> Result<Checkpoint> {
    let search = Checkpoint::find(path)?;
    search.skipped.iter().for_each(|skipped| info!("skipped {skipped}"));
    search.found.ok_or_else(|| CheckpointError::NotFound { path: path.to_owned() }.into())
}
