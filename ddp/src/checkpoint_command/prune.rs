//! `ddp-train checkpoint prune`: deletes old checkpoints.

use super::put;
use crate::checkpoint::error::mib;
use crate::checkpoint::{CheckpointError, Located, Marker, step_name};
use crate::cli::CheckpointPruneArgs;
use crate::error::Result;

/// Deletes as `args` say.
pub(super) fn prune(args: &CheckpointPruneArgs) -> Result<()> {
    let Located::Store(store) = Located::new(&args.path)? else {
        return Err(CheckpointError::OneOnly { path: args.path.clone() }.into());
    };
    let best = store.marked_step(Marker::Best).filter(|_| !args.also_best);
    let is_valid = |step| store.checkpoint(step).is_ok_and(|checkpoint| checkpoint.verify().is_ok());
    let superfluous = store.superfluous(args.keep, best.as_slice(), is_valid)?;
    for &step in &superfluous {
        let size = store.checkpoint(step).map_or_else(
            |fault| format!("broken: {fault}"),
            |checkpoint| mib(checkpoint.manifest().n_bytes()),
        );
        if !args.dry_run {
            store.delete(step)?;
        }
        let what = if args.dry_run { "would delete" } else { "deleted" };
        put(&format!("{what} {} ({size})\n", step_name(step)))?;
    }
    if superfluous.is_empty() {
        put("nothing to delete\n")?;
    }
    Ok(())
}
