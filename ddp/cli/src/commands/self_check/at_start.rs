//! The check before the first start of a run on a GPU, which depends on GPU, driver, libraries and program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use clap::ValueEnum as _;
use ddp::config::Config;
use ddp::config::gpu_features::CUDA_GRAPH;
use ddp::report::notes::warn_of_all_ranks;
use ddp::train::self_check::operations;
use ddp::train::trainer::GraphMode;
use ddp_comm::World;
use ddp_kernels::Device;
use ddp_kernels::cuda::{self, Gpu, GpuFeature, GpuInfo, Versions, record};
use tracing::{debug, info};

use super::process::{Request, closest};
use crate::cli::{CheckMode, StartCheckArgs};
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;

/// Environment variable with the mode where no flag gives it.
const VARIABLE: &str = "DDP_TRAIN_CHECK";

/// Begins the line of a record with the features that the GPU computes wrongly.
const WITHOUT: &str = "without ";

/// Checks the model of `config` on this rank's GPU, unless its operations were checked there before: with this GPU model, driver, libraries
/// and program. One rank per host and GPU model does. Returns the features that the run must do without, because the GPU of a rank
/// agrees with the CPU only without them: names of docs/gpus.md, the same on all ranks. Collective.
///
/// # Errors
/// [`CommandError::SelfCheck`] on all ranks if the GPU of one differs from the CPU without these features too.
pub(in super::super) fn at_first_start(
    world: &World,
    check: &StartCheck,
    config: &Config,
    device: Device,
) -> Result<Vec<String>, Stop> {
    let StartCheck { mode, graph, limit } = *check;
    if mode == CheckMode::Off {
        return Ok(Vec::new());
    }
    let due = world.collective_result(Due::new(mode, config, device, graph))?;
    let own = match &due {
        Due::Check(wanted) => format!("{}\n{}", world.hostname(), wanted.parts.join("\n")),
        Due::Nothing | Due::Known(_) => String::new(),
    };
    let all = world.group().all_gather_bytes(own.as_bytes()).map_err(crate::Error::from)?;
    let is_first = all.iter().position(|of| of == own.as_bytes()) == Some(world.rank().0);
    let record = match due {
        Due::Check(wanted) if is_first => {
            let check = Request { gpu: wanted.gpu.index, graph, config: None, limit };
            wanted.check(world, mode, check, config)
        }
        Due::Known(record) => Ok(record),
        Due::Check(_) | Due::Nothing => Ok(String::new()),
    };
    let record = world.collective_result(record)?;
    let own = record.lines().find_map(|line| line.strip_prefix(WITHOUT)).unwrap_or_default();
    let all = world.group().all_gather_bytes(own.as_bytes()).map_err(crate::Error::from)?;
    let all: Vec<_> = all.iter().map(|names| String::from_utf8_lossy(names)).collect();
    let names: BTreeSet<&str> =
        all.iter().flat_map(|names| names.split(' ')).filter(|name| !name.is_empty()).collect();
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// Settings of the check before a command computes on a GPU.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct StartCheck {
    mode: CheckMode,
    /// Whether its steps are captured.
    graph: GraphMode,
    /// Longest time without a result.
    limit: Duration,
}

impl StartCheck {
    /// The settings of the flags; without a flag, the environment sets the mode.
    ///
    /// # Errors
    /// [`CommandError::CheckVariable`].
    pub(in super::super) fn new(args: &StartCheckArgs, graph: GraphMode) -> Result<Self> {
        let given = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
        let mode = match (args.check, given) {
            (Some(mode), _) => mode,
            (None, None) => CheckMode::Auto,
            (None, Some(value)) => {
                CheckMode::from_str(&value, false).map_err(|_| CommandError::CheckVariable { value })?
            }
        };
        Ok(StartCheck { mode, graph, limit: args.limit.limit() })
    }

    /// Whether its steps are captured.
    pub(in super::super) fn graph(&self) -> GraphMode {
        self.graph
    }

    /// The setting on which the ranks agree.
    pub(in super::super) fn entry(&self) -> (String, String) {
        ("--check".to_owned(), format!("{:?}", self.mode).to_lowercase())
    }
}

/// The check of a rank's GPU.
enum Due {
    /// It has none.
    Nothing,
    /// An earlier start has left this record.
    Known(String),
    Check(Wanted),
}

/// A GPU whose check is due.
struct Wanted {
    gpu: GpuInfo,
    parts: Vec<String>,
}

impl Due {
    fn new(mode: CheckMode, config: &Config, device: Device, graph: GraphMode) -> Result<Self> {
        let Device::Cuda(index) = device else { return Ok(Due::Nothing) };
        let gpu = Gpu::get(index)?.info().clone();
        if gpu.is_exclusive && mode == CheckMode::Auto {
            info!(
                "{device} is for one process alone (compute mode EXCLUSIVE_PROCESS): it is not checked against the CPU at the first start"
            );
            info!("hint: `ddp-train devices --check` checks it while no run uses it");
            return Ok(Due::Nothing);
        }
        let without = &config.train.gpu_without;
        let operations = format!("{}; graph {graph:?}; without {without:?}", operations(config)?);
        let parts = record_parts(&gpu, &operations);
        let known = if mode == CheckMode::Always { None } else { record::read(&parts) };
        Ok(match known {
            Some(known) => {
                debug!("{known}");
                Due::Known(known)
            }
            None => Due::Check(Wanted { gpu, parts }),
        })
    }
}

impl Wanted {
    /// Runs the check, and where it fails, finds the feature to do without; returns the record for later starts.
    fn check(self, world: &World, mode: CheckMode, check: Request<'_>, config: &Config) -> Result<String> {
        let Wanted { gpu, parts } = self;
        let versions = cuda::versions();
        let gpu_words = gpu_words(&gpu, &versions);
        let failed = |what: String| CommandError::SelfCheck {
            gpu: format!("{gpu_words}, {}", library_words(&versions)),
            what,
        };
        let found = Request { config: Some(&config.to_toml()), ..check }.run();
        if let Some(difference) = found.checks.iter().find_map(|check| check.difference()) {
            let Some(names) = guilty(check, config) else { return Err(failed(difference).into()) };
            let names = names.join(" ");
            warn_of_all_ranks(
                world.rank().0,
                &format!(
                    "{gpu_words} differs from the CPU: {difference}; it agrees without {names}, and the run does without (docs/gpus.md)\n\
                     hint: `ddp-train devices --check --json` prints what to report"
                ),
            );
            let record = format!("checked on {gpu_words}: results agree with the CPU\n{WITHOUT}{names}");
            record::write(&parts, &record);
            return Ok(record);
        }
        if let Some(reason) = found.impossible {
            if mode == CheckMode::Always {
                return Err(failed(reason).into());
            }
            warn_of_all_ranks(
                world.rank().0,
                &format!("{gpu_words} could not be checked against the CPU: {reason}"),
            );
            return Ok(String::new());
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
        Ok(line)
    }
}

/// Names of features without which a failed check succeeds: a single one, or else all of them; None if it fails without all.
fn guilty(check: Request<'_>, config: &Config) -> Option<Vec<String>> {
    let mut candidates: Vec<Option<GpuFeature>> = GpuFeature::ALL.iter().copied().map(Some).collect();
    candidates.retain(|feature| feature.is_some_and(|feature| !config.train.gpu_without.contains(&feature)));
    // A graph that was requested is not left out.
    candidates.extend((check.graph == GraphMode::Auto).then_some(None));
    let agrees_without = |off: &[Option<GpuFeature>]| {
        let mut config = config.clone();
        config.train.gpu_without.extend(off.iter().flatten());
        let graph = if off.contains(&None) { GraphMode::Off } else { check.graph };
        Request { graph, config: Some(&config.to_toml()), ..check }.run().agrees()
    };
    // First of all, so that a GPU that fails anyway is not tried again and again.
    if !agrees_without(&candidates) {
        return None;
    }
    let single = candidates.iter().find(|feature| agrees_without(std::slice::from_ref(feature)));
    let guilty = single.map_or(&candidates[..], std::slice::from_ref);
    let name = |feature: &Option<GpuFeature>| feature.map_or(CUDA_GRAPH, GpuFeature::name).to_owned();
    Some(guilty.iter().map(name).collect())
}

/// The GPU in words: `NVIDIA H100, driver 580.65.06`.
pub(super) fn gpu_words(gpu: &GpuInfo, versions: &Versions) -> String {
    let driver = versions.driver.clone();
    let cuda = || versions.driver_cuda.as_ref().map(|cuda| format!("of CUDA {cuda}"));
    format!("{}, driver {}", gpu.name, driver.or_else(cuda).unwrap_or_else(|| "unknown".to_owned()))
}

/// The libraries in words: `NVRTC 13.0, cuBLASLt 13.1.0`.
pub(in super::super) fn library_words(versions: &Versions) -> String {
    let known =
        [("NVRTC", &versions.nvrtc), ("cuBLASLt", &versions.cublas_lt), ("NCCL", &ddp_comm::nccl_version())];
    let words = known.iter().filter_map(|(name, version)| Some(format!("{name} {}", version.as_ref()?)));
    words.collect::<Vec<_>>().join(", ")
}

/// The parts of the record of a check of these operations.
pub(super) fn record_parts(gpu: &GpuInfo, operations: &str) -> Vec<String> {
    let versions = cuda::versions();
    let mut parts = vec![
        "self-check 1".to_owned(),
        operations.to_owned(),
        gpu_words(gpu, &versions),
        format!("{:?}", gpu.compute_capability),
        library_words(&versions),
        std::env::current_exe().map_or_else(|_| String::new(), |path| file_words(&path)),
    ];
    // Versions name no builds.
    let paths = versions.found.iter().filter_map(|(_, path)| path.as_ref().ok());
    parts.extend(paths.map(|path| file_words(Path::new(path))));
    parts
}

/// Size and time of a file.
fn file_words(path: &Path) -> String {
    let Ok(meta) = fs::metadata(path) else { return String::new() };
    let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{} {:?}", meta.len(), modified)
}
