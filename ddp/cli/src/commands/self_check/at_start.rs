//! The check before the first start of a run on a GPU.

use std::time::Duration;

use clap::ValueEnum as _;
use ddp::config::Config;
use ddp::report::notes::warn_of_all_ranks;
use ddp::train::self_check::operations;
use ddp::train::trainer::GraphMode;
use ddp_comm::World;
use ddp_kernels::Device;
use ddp_kernels::cuda::{self, Gpu, GpuInfo, record};
use tracing::{debug, info};

use super::check::closest;
use super::identity::{gpu_words, library_words, record_parts};
use super::process::Request;
use crate::cli::{CheckMode, TrainArgs};
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;

/// Environment variable with the mode where no flag gives it.
const VARIABLE: &str = "DDP_TRAIN_CHECK";

/// Checks the model of `config` on this rank's GPU, unless its operations were checked there before: with this GPU model, driver, libraries
/// and program. One rank per host and GPU model does; all ranks fail if the GPU of one is wrong. Collective.
///
/// # Errors
/// [`CommandError::SelfCheck`].
pub(in super::super) fn at_first_start(
    world: &World,
    args: &TrainArgs,
    config: &Config,
    device: Device,
    mode: CheckMode,
) -> Result<(), Stop> {
    let graph = args.cuda_graph;
    if mode == CheckMode::Off {
        return Ok(());
    }
    let wanted = world.collective_result(Wanted::new(mode, config, device, graph))?;
    let own = wanted
        .as_ref()
        .map_or_else(String::new, |wanted| format!("{}\n{}", world.hostname(), wanted.parts.join("\n")));
    let all = world.group().all_gather_bytes(own.as_bytes()).map_err(crate::Error::from)?;
    let is_first = all.iter().position(|of| of == own.as_bytes()) == Some(world.rank().0);
    let checked = match wanted {
        Some(wanted) if is_first => wanted.check(world, mode, args.check_args.limit(), config, graph),
        _ => Ok(()),
    };
    Ok(world.collective_result(checked)?)
}

/// The mode of the flag, else that of the environment.
///
/// # Errors
/// [`CommandError::CheckVariable`].
pub(in super::super) fn check_mode(args: &TrainArgs) -> Result<CheckMode> {
    let given = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    match (args.check, given) {
        (Some(mode), _) => Ok(mode),
        (None, None) => Ok(CheckMode::Auto),
        (None, Some(value)) => {
            CheckMode::from_str(&value, false).map_err(|_| CommandError::CheckVariable { value }.into())
        }
    }
}

/// A GPU whose check is due.
struct Wanted {
    gpu: GpuInfo,
    parts: Vec<String>,
}

impl Wanted {
    fn new(mode: CheckMode, config: &Config, device: Device, graph: GraphMode) -> Result<Option<Self>> {
        let Device::Cuda(index) = device else { return Ok(None) };
        let gpu = Gpu::get(index)?.info().clone();
        let operations = format!("{}; graph {graph:?}", operations(config)?);
        let parts = record_parts(&gpu, &operations);
        let known = if mode == CheckMode::Always { None } else { record::read(&parts) };
        if let Some(known) = &known {
            debug!("{known}");
        }
        Ok(known.is_none().then_some(Wanted { gpu, parts }))
    }

    fn check(
        self,
        world: &World,
        mode: CheckMode,
        limit: Duration,
        config: &Config,
        graph: GraphMode,
    ) -> Result<()> {
        let Wanted { gpu, parts } = self;
        let versions = cuda::versions();
        let gpu_words = gpu_words(&gpu, &versions);
        let toml = config.to_toml();
        let found = Request { gpu: gpu.index, graph, config: Some(&toml), limit }.run();
        let failed = |what: String| CommandError::SelfCheck {
            gpu: format!("{gpu_words}, {}", library_words(&versions)),
            what,
        };
        if let Some(difference) = found.checks.iter().find_map(|check| check.difference()) {
            return Err(failed(difference).into());
        }
        if let Some(reason) = found.impossible {
            if mode == CheckMode::Always {
                return Err(failed(reason).into());
            }
            warn_of_all_ranks(
                world.rank().0,
                &format!("{gpu_words} could not be checked against the CPU: {reason}"),
            );
            return Ok(());
        }
        let n_results: usize = found.checks.iter().map(|check| check.results.len()).sum();
        let most = closest(&found.checks).map_or_else(String::new, |most| {
            format!(
                ", largest relative difference {:.0e} (tolerance {:.0e})",
                most.relative_difference, most.tolerance
            )
        });
        let line = format!("checked on {gpu_words}: {n_results} results agree with the CPU{most}");
        info!("{line}");
        record::write(&parts, &line);
        Ok(())
    }
}
