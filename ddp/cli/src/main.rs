//! `ddp-train`: joins the world, parses the arguments, runs the command, and maps its result to an exit status.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use ddp::exit_code;
use ddp::storage::unfinished::Unfinished;
use ddp::train::stop_handlers::stop_with_parent;
use ddp::train::stop_signals::StopSignals;
use ddp_comm::{Launcher, World, WorldOptions, failure};
use ddp_kernels::cpu::threads::join_on_request_only;
use ddp_tables::open::remote;
use ddp_train::cli::{self, Cli, Command, with_implied_command};
use ddp_train::commands::{
    bench, checkpoint, config, data, describe, devices, doctor, eval, find, launch, live, man, plan, predict,
    report, runs, sweep, train,
};
use ddp_train::exit::{conclude, conclude_usage};
use ddp_train::report::log::{Log, error_line};
use ddp_train::report::stdout::say;
use ddp_train::{Error, bucket};
use tracing::info;

/// The commit given by `launch/build`. It is read only in this file, so that a new commit recompiles the program but not the
/// library.
const COMMIT: Option<&str> = option_env!("DDP_COMMIT");

fn main() -> ExitCode {
    // Called first, because threads are started later.
    World::before_threads();
    // Commands know their ranks, and a setting for the number.
    join_on_request_only();
    // A signal that arrives while MPI starts must not kill a run.
    let signals = match StopSignals::listen(Launcher::detect()) {
        Ok(signals) => signals,
        Err(error) => {
            say(&error_line(&format!("can't listen for signals: {error}")));
            return ExitCode::from(exit_code::FAILED);
        }
    };
    // A run outlives a parent that has no thread to spare for it.
    let _ = stop_with_parent();
    let args = with_implied_command(std::env::args_os(), Launcher::detect().is_some());
    // Those of `launch` and `sweep` go to ranks, which hide them.
    let passes_on = args.get(1).is_some_and(|word| word == "launch" || word == "sweep");
    let args = if passes_on { args } else { remote::hide_signatures(args) };
    let cli = Cli::parse_arguments(args, COMMIT);
    let unfinished = Unfinished::default();
    match &cli {
        Ok(cli) if cli.is_run() => signals.meet(Launcher::detect()),
        Ok(Cli { command: Command::Predict(_) | Command::Eval(_), .. }) => signals.end_without(&unfinished),
        Ok(Cli { command: Command::Launch(_), .. }) => signals.only_record(),
        // It asks for signals itself; a second SIGINT ends it at once, and its runs still save and end.
        Ok(Cli { command: Command::Sweep(_), .. }) => {}
        _ => signals.end_at_once(),
    }
    let of_doctor = match &cli {
        // Before MPI starts, which may hang.
        Ok(Cli { command: Command::Doctor(args), .. }) => {
            Some(doctor::Report::start(args.json, cli::program(COMMIT)))
        }
        _ => None,
    };
    // Called before errors in the arguments are reported, so that only one of many ranks reports them.
    let options = WorldOptions {
        program: cli::program(COMMIT),
        joins_by_environment: cli.as_ref().is_ok_and(Cli::uses_ranks),
        lost_exit_code: exit_code::RESTARTABLE.into(),
        ..WorldOptions::default()
    }
    .for_job(&cli.as_ref().map_or_else(|_| String::new(), Cli::job));
    let world = match World::init_with(options) {
        Ok(world) => world,
        Err(error) => {
            let message = Error::from(error.clone());
            match of_doctor {
                Some(report) => report.not_joined(&message),
                None => {
                    let code = match message.exit_code() {
                        exit_code::RESTARTABLE => exit_code::RESTARTABLE,
                        _ => exit_code::ENVIRONMENT,
                    };
                    failure::abort_init(&error, code.into(), error_line(&message.to_string()))
                }
            }
        }
    };
    failure::install_panic_hook(&world);
    signals.joined(&world);
    if let (0, Ok(line)) = (world.local_rank().0, std::env::var(ddp_launch::JOINED)) {
        // To the supervisor of this host, which removes it.
        say(&line);
    }
    let cli = match cli {
        Err(usage) => return conclude_usage(world, &usage),
        Ok(cli) => cli,
    };
    let log = Log::install(&world, &cli.log_options(std::env::var("RUST_LOG").ok()), cli.is_run());
    if !cli.taken.is_empty() {
        info!("{}", cli.taken.join(", "));
    }
    let mut cli = cli;
    let fetched = bucket::fetch_runs(&world, &mut cli.command);
    let result = match &cli.command {
        _ if fetched.is_err() => fetched,
        Command::Train(args) => train::train(&world, &log, &signals, args),
        Command::Launch(args) => launch::launch(&world, &signals, args),
        Command::FindLr(args) => find::find_lr(&world, &log, args),
        Command::FindBatchSize(args) => find::find_batch_size(&world, &log, args),
        Command::Sweep(args) => sweep::sweep(&world, &log, &signals, args),
        Command::Runs(command) => runs::runs(&world, command),
        Command::Eval(args) => eval::eval(&world, &log, args),
        Command::Predict(args) => predict::predict(&world, &log, args, unfinished),
        Command::Describe(args) => describe::describe(&world, args),
        Command::Plan(args) => plan::plan(&world, args),
        Command::Config(command) => config::config(&world, command),
        Command::Data(command) => data::data(&world, &log, command),
        Command::Checkpoint(command) => checkpoint::checkpoint(&world, &log, command),
        Command::Report(args) => report::report(&world, args),
        Command::Trace(args) => live::trace(&world, args),
        Command::Stacks(args) => live::stacks(&world, args),
        Command::Bench(command) => bench::bench(&world, command),
        Command::Devices(args) => devices::devices(&world, args, cli::program(COMMIT)),
        Command::Doctor(args) => {
            of_doctor.map_or(Ok(()), |report| doctor::doctor(&world, &log, args, &report))
        }
        Command::Completions { shell } => man::completions(&world, *shell),
        Command::Man { folder } => man::man(&world, folder),
    };
    // Here, because a failure ends the process at once.
    remote::release();
    conclude(world, &log, result)
}
