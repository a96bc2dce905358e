//! `ddp-train man`: man pages, generated from the definition of the command line.

use std::path::Path;

use clap::CommandFactory as _;
use ddp_comm::World;

use crate::cli::Cli;
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;

/// Writes a page per command into `folder`, which is created if it is missing, on rank 0.
///
/// # Errors
/// [`CommandError::ManPage`].
pub fn man(world: &World, folder: &Path) -> Result<(), Stop> {
    let is_first = world.rank().0 == 0;
    Ok(world.collective_result(if is_first { write(folder) } else { Ok(()) })?)
}

fn write(folder: &Path) -> Result<()> {
    let failed = |source| CommandError::ManPage { path: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    Ok(clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?)
}
