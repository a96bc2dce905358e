//! `ddp-train man` and `ddp-train completions`: man pages and shell completions, generated from the definition of the command line.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;
use ddp_comm::World;

use crate::cli::Cli;
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;
use crate::report::stdout::print_result;

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

/// Prints the completion script of `shell` on rank 0.
///
/// # Errors
/// [`ReportError::Stdout`](ddp::report::ReportError::Stdout).
pub fn completions(world: &World, shell: Shell) -> Result<(), Stop> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ddp-train", &mut script);
    let is_first = world.rank().0 == 0;
    let printed = if is_first { print_result(&String::from_utf8_lossy(&script)) } else { Ok(()) };
    Ok(world.collective_result(printed)?)
}
