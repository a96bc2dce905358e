//! `ddp-train data`: inspects, shows and converts data files, and lists the tables that are kept.

mod cache;
mod convert;
mod inspect;
mod show;

use ddp::config::DataConfig;
use ddp_comm::World;

use crate::cli::DataCommand;
use crate::error::Result;
use crate::exit::Stop;
use crate::report::log::Log;

/// The section `[data]` that `data inspect` writes for the rows of `data`, if they are a table that can train a model.
pub(super) fn suggested_data(data: &DataConfig) -> Result<Option<String>> {
    inspect::suggested(data)
}

/// Runs the command on rank 0; the other ranks wait for it.
///
/// # Errors
/// [`DataError`](ddp::data::DataError) if a file cannot be read or written, on every rank.
pub fn data(world: &World, log: &Log, command: &DataCommand) -> Result<(), Stop> {
    let result = match command {
        _ if world.rank().0 > 0 => Ok(()),
        DataCommand::Inspect(args) => {
            inspect::inspect(args, log.terminal().show_busy(format!("reading {}", args.path)))
        }
        DataCommand::Cache(command) => cache::cache(command),
        DataCommand::Show(args) => show::show(args),
        DataCommand::Convert(args) => convert::convert(log, args),
    };
    Ok(world.collective_result(result)?)
}
