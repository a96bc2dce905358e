//! `ddp-train`: joins the world, parses the arguments, runs the command, and maps its result to an exit status.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ddp::cli::{Cli, Command, with_implied_command};
use ddp::commands::{
    bench, checkpoint, completions, config, data, describe, devices, eval, man, torchrun, train,
};
use ddp::exit::{conclude, conclude_usage};
use ddp::exit_code;
use ddp::report::stdout::say;
use ddp_comm::{World, failure};

fn main() -> ExitCode {
    // Before the arguments are parsed, so that only one of many ranks reports what is wrong with them.
    let world = match World::init() {
        Ok(world) => world,
        Err(error) => {
            say(&format!("error: {error}"));
            return ExitCode::from(exit_code::ENVIRONMENT);
        }
    };
    failure::install_panic_hook(&world);
    let args = with_implied_command(std::env::args_os(), world.launcher().is_some());
    let result = match Cli::try_parse_from(args) {
        Err(usage) => return conclude_usage(world, &usage),
        Ok(cli) => torchrun::refuse_torchrun(&world, &cli.command).and_then(|()| match &cli.command {
            Command::Train(args) => train::train(&world, args),
            Command::Eval(args) => eval::eval(&world, args),
            Command::Describe(args) => describe::describe(&world, args),
            Command::Config(command) => config::config(&world, command),
            Command::Data(command) => data::data(&world, command),
            Command::Checkpoint(command) => checkpoint::checkpoint(&world, command),
            Command::Bench(command) => bench::bench(&world, command),
            Command::Devices(args) => devices::devices(&world, args),
            Command::Completions { shell } => completions::completions(&world, *shell),
            Command::Man { folder } => man::man(&world, folder),
        }),
    };
    conclude(world, result)
}
