//! `ddp-train config`: reference of the config keys, and their JSON schema.

use ddp::config::{keys_with_prefix, reference, schema};
use ddp_comm::World;

use crate::cli::{ConfigCommand, ConfigKeysArgs};
use crate::error::Result;
use crate::exit::Stop;
use crate::report::stdout::print_result;

/// Prints the keys or the schema, on rank 0.
///
/// # Errors
/// [`ConfigError::NoSuchPrefix`](ddp::config::ConfigError::NoSuchPrefix), [`ReportError::Stdout`](ddp::report::ReportError::Stdout).
pub fn config(world: &World, command: &ConfigCommand) -> Result<(), Stop> {
    let text = match command {
        ConfigCommand::Keys(args) => world.collective_result(keys(args))?,
        ConfigCommand::Schema => format!("{:#}\n", schema::schema()),
    };
    let printed = if world.rank().0 == 0 { print_result(&text) } else { Ok(()) };
    Ok(world.collective_result(printed)?)
}

fn keys(args: &ConfigKeysArgs) -> Result<String> {
    let keys = keys_with_prefix(&args.prefix)?;
    Ok(match (args.markdown, args.json) {
        (true, _) => reference::markdown(&keys),
        (_, true) => reference::json_lines(&keys),
        _ => reference::text(&keys),
    })
}
