//! `ddp-train checkpoint export`: the weights alone.

use super::weights::Weights;
use super::{one_at, put};
use crate::cli::CheckpointExportArgs;
use crate::error::Result;

/// Exports as `args` say.
pub(super) fn export(args: &CheckpointExportArgs) -> Result<()> {
    let weights = Weights::load(&one_at(&args.path)?, args.weights)?;
    weights.write(&args.out, args.overwrite)?;
    put(&format!("wrote the {} to {}\n", weights.origin, args.out.display()))
}
