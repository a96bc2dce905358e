//! `ddp-train checkpoint export`: the weights as a safetensors file.

use super::weights::{Weights, check_out};
use super::{one_at, print_result};
use crate::cli::CheckpointExportArgs;
use crate::error::Result;

/// Exports the weights.
pub(super) fn export(args: &CheckpointExportArgs) -> Result<()> {
    check_out(&args.out, args.overwrite)?;
    let weights = Weights::load(&one_at(&args.path)?, args.weights)?;
    weights.write(&args.out)?;
    Ok(print_result(&format!("wrote the {} to {}\n", weights.origin, args.out.display()))?)
}
