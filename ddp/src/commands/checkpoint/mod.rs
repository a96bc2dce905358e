//! `ddp-train checkpoint`: what can be done with checkpoints without training.

mod average;
mod export;
mod list;
mod prune;
mod show;
mod verify;
mod weights;

use std::path::Path;

use ddp_comm::World;

use crate::checkpoint::{Checkpoint, CheckpointError, CheckpointStore, Fault, Located, step_name};
use crate::cli::CheckpointCommand;
use crate::error::Result;
use crate::exit::Stop;
use crate::report::stdout::print_result;
use crate::report::stdout::say;

/// Runs the command on rank 0; the other ranks wait for its end.
///
/// # Errors
/// [`crate::Error::Checkpoint`] and those of writing a file.
pub fn checkpoint(world: &World, command: &CheckpointCommand) -> Result<(), Stop> {
    let result = match command {
        _ if world.rank().0 > 0 => Ok(()),
        CheckpointCommand::Ls(args) => list::list(args),
        CheckpointCommand::Verify(args) => verify::verify(args),
        CheckpointCommand::Show(args) => show::show(args),
        CheckpointCommand::Prune(args) => prune::prune(args),
        CheckpointCommand::Average(args) => average::average(args),
        CheckpointCommand::Export(args) => export::export(args),
    };
    Ok(world.collective_result(result)?)
}

/// A checkpoint by its name, and what it says or what is wrong with it.
struct Named {
    name: String,
    checkpoint: std::result::Result<Checkpoint, Fault>,
}

/// All checkpoints that `path` stands for, in the order of their steps, and the folder they are in.
fn all_at(path: &Path) -> Result<(Vec<Named>, CheckpointStore)> {
    match Located::new(path)? {
        Located::One(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let store = CheckpointStore::at(path.parent().unwrap_or(Path::new(".")));
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

/// The one checkpoint that `path` stands for, every byte of it right; what was passed over is told on stderr.
fn one_at(path: &Path) -> Result<Checkpoint> {
    let search = Checkpoint::find(path)?;
    search.skipped.iter().for_each(|skipped| say(&format!("passed over {skipped}")));
    search.found.ok_or_else(|| CheckpointError::NotFound { path: path.to_owned() }.into())
}
