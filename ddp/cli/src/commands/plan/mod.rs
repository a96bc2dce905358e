//! `ddp-train plan`: memory, time and scaling of a run on ranks and GPUs that need not exist.

mod subject;
mod memory;
mod outlook;
mod text;

use std::path::Path;

use ddp::config::Config;
use ddp::cost::calibration::BadLine;
use ddp::cost::hardware::Hardware;
use ddp::cost::machine::Machine;
use ddp::data;
use ddp::report::metrics::json_line;
use ddp::storage::user_file;
use ddp_comm::World;
use ddp_kernels::cuda::Gpu;

use self::outlook::Outlook;
use self::subject::Subject;
use crate::cli::PlanArgs;
use crate::commands::bare_table::load_config;
use crate::commands::train::join_share;
use crate::error::command::CommandError;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::stdout::print_result;

/// Prints the plan of the run for each number of ranks, on rank 0.
///
/// # Errors
/// [`ddp::Error::Config`], [`ddp::Error::Data`]; [`CommandError`] for data that is not here and for files without measurements.
pub fn plan(world: &World, args: &PlanArgs) -> Result<(), Stop> {
    // As training does: the plan is for these cores.
    join_share(world, None)?;
    let config = load_config(world, &args.run, &args.run.overrides(), None)?;
    let machine = world.collective_result(machine(args))?;
    let (config, data) = match (args.rows, args.features) {
        (Some(n_rows), Some(n_features)) => {
            let data = data::absent_rows(&config, n_rows, n_features).ok_or(CommandError::UnknownClasses);
            (config, world.collective_result(data.map_err(Error::from))?)
        }
        (n_rows, _) => {
            world.collective_result(check_is_here(&config))?;
            let data = ddp_tables::load(&config, world)?;
            let config = world.collective_result(data.resolve(config).map_err(Error::from))?;
            (
                config,
                match n_rows {
                    Some(n_rows) => data.with_n_rows(n_rows),
                    None => data,
                },
            )
        }
    };
    let memory_mib = (machine.hardware.memory_mib > 0).then_some(machine.hardware.memory_mib << 20);
    let capacity = args.memory_gib.map(|gib| (gib * f64::from(1 << 30)) as usize).or(memory_mib);
    let subject = Subject { config, data, machine, capacity };
    let outlooks: Vec<_> = args.world.iter().map(|&n_ranks| Outlook::new(&subject, n_ranks)).collect();
    let printed = match world.rank().0 {
        0 if args.json => print_result(&outlooks.iter().map(json_line).collect::<String>()),
        0 => print_result(&text::to_text(&subject, &outlooks, !args.calibrate.is_empty())),
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}

/// The hosts, with the measurements of `--calibrate`.
fn machine(args: &PlanArgs) -> Result<Machine> {
    let hardware = match &args.gpu {
        Some(name) => Hardware::named(name).expect("clap knows the names"),
        None if Gpu::count() > 0 => {
            let device = &Gpu::get(0)?.info().name;
            let known = || Hardware::names().join(", ");
            Hardware::find(device)
                .ok_or_else(|| CommandError::UnknownGpu { device: device.clone(), known: known() })?
        }
        None => Hardware::cpu(),
    };
    let mut machine = Machine::new(hardware, args.per_host);
    machine.network_gb_per_s = args.network_gbit.map(|gbit| gbit / 8.0);
    for path in &args.calibrate {
        let text = String::from_utf8_lossy(&user_file::read("results of benchmarks", path)?).into_owned();
        machine.calibration.add_lines(&text, hardware.is_gpu()).map_err(|BadLine { line, reason }| {
            CommandError::BadMeasurement { path: path.clone(), line, reason }
        })?;
    }
    if !args.calibrate.is_empty() && machine.calibration.is_empty() {
        let kind = if hardware.is_gpu() { "a GPU" } else { "the CPU" };
        return Err(CommandError::NothingMeasured { kind }.into());
    }
    machine.n_cores = machine.n_cores.max(machine.calibration.n_cores);
    machine.compare_steps()?;
    Ok(machine)
}

/// Checks that a data file that is named by its path exists, before it is read.
fn check_is_here(config: &Config) -> Result<()> {
    let source = &config.data.train;
    let is_path = !source.contains(['*', '?', '[', ':']);
    if is_path && !Path::new(source).exists() {
        return Err(CommandError::NoDataToPlan { source_name: source.clone() }.into());
    }
    Ok(())
}
