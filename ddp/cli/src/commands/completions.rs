//! `ddp-train completions`: shell completions, generated from the definition of the command line.

use clap::CommandFactory as _;
use clap_complete::Shell;
use ddp_comm::World;

use crate::cli::Cli;
use crate::exit::Stop;
use crate::report::stdout::print_result;

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
