//! Puts a rank on its device, without the features of the GPU that its run does without, and its compute threads on their CPUs.

use std::num::NonZero;
use std::time::Duration;

use ddp::config::Config;
use ddp::config::gpu_features::{CUDA_GRAPH, FEATURES};
use ddp::report::notes::warn_of_all_ranks;
use ddp::train::trainer::{GraphMode, Trainer};
use ddp_comm::{DeviceChoice, DeviceOptions, RegisterBuffers, World, cores};
use ddp_kernels::cpu::cpu_set::CpuSet;
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::{Gpu, GpuFeature};
use ddp_kernels::hint::with_hint;
use ddp_kernels::{Device, DeviceRequest, KernelError, ops};
use tracing::{debug, info, warn};

use super::banner;
use crate::cli::{Bind, TrainArgs};
use crate::error::command::{CommandError, MAX_THREADS_PER_CORE};
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::stdout::count;

/// Settings under which a rank uses its device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pinning {
    /// Whether several ranks may use one GPU.
    pub(crate) share_gpu: bool,
    /// Whether matmuls and reductions on GPUs use only deterministic algorithms.
    pub(crate) deterministic: bool,
    /// Whether collectives run next to backward.
    pub(crate) overlap: bool,
    /// Compute threads per rank; `None` for its share of the cores that it may run on.
    pub(crate) n_threads: Option<usize>,
    /// Whether the rank is bound to the CPUs near its GPU.
    pub(crate) bind: Bind,
    /// Whether NCCL reads and writes the buffers of collectives in place.
    pub(crate) register_buffers: RegisterBuffers,
    /// Features of the GPU to do without.
    pub(crate) without: Vec<GpuFeature>,
    /// Time limit of the trial of collectives; `None` for the default.
    pub(crate) trial_timeout: Option<Duration>,
}

impl Pinning {
    /// The same without features of GPUs, as `--safe` asks.
    pub(crate) fn without_features(self) -> Self {
        let without = GpuFeature::ALL.to_vec();
        Pinning { bind: Bind::None, register_buffers: RegisterBuffers::Off, without, ..self }
    }
}

/// Chooses the rank's device, connects it to the other ranks' devices, and starts the rank's compute threads.
pub(crate) fn pin_device(world: &World, device: &str, pinning: Pinning) -> Result<DeviceChoice, Stop> {
    let Pinning {
        share_gpu,
        deterministic,
        overlap,
        n_threads,
        bind,
        register_buffers,
        without,
        trial_timeout,
    } = pinning;
    let choose = || -> Result<DeviceChoice> {
        let request: DeviceRequest = device.parse()?;
        let choice = world.choose_device(request, share_gpu)?;
        if let (true, Device::Cuda(index)) = (deterministic, choice.device) {
            Gpu::get(index)?.set_deterministic(true);
        }
        turn_off(choice.device, &without)?;
        check_threads(n_threads)?;
        Ok(choice)
    };
    let choice = world.collective_result(choose())?;
    banner::unused_gpu(&choice).iter().for_each(|line| warn_of_all_ranks(world.rank().0, line));
    let near = if bind == Bind::Auto { cores::bind_near(choice.device) } else { None };
    let n_threads = join_share(world, n_threads)?;
    debug!("{}", cpu_words(n_threads, near, choice.device));
    let mut options =
        DeviceOptions { share_gpu, deterministic, overlap, register_buffers, ..DeviceOptions::default() };
    options.trial_timeout = trial_timeout.unwrap_or(options.trial_timeout);
    world.connect_device(choice.device, options).map_err(Error::from)?;
    turn_off_refused(world, choice.device)?;
    Ok(choice)
}

/// Starts the rank's compute threads, its share of the cores unless `n_threads` says how many, and returns their number. Collective.
pub(crate) fn join_share(world: &World, n_threads: Option<usize>) -> Result<usize, Stop> {
    let share = world.cores_per_rank().map_err(Error::from)?;
    let n_threads = n_threads.unwrap_or(share);
    world.collective_result(threads::join_pool(n_threads).map_err(Error::from))?;
    Ok(n_threads)
}

/// The rank's threads and CPUs, and why it runs on these.
fn cpu_words(n_threads: usize, near: Option<CpuSet>, device: Device) -> String {
    let why =
        near.map_or_else(String::new, |_| format!(", those near {device}; --bind none leaves them all"));
    format!("{} on CPUs {}{why}", count(n_threads, "thread"), CpuSet::for_thread())
}

/// Checks that a CUDA graph that was requested can be captured.
pub(crate) fn check_graph(mode: GraphMode, device: Device) -> Result<()> {
    match (mode, device) {
        (GraphMode::On, Device::Cpu) => Err(CommandError::NoGraphOnCpu.into()),
        _ => Ok(()),
    }
}

fn check_threads(n_threads: Option<usize>) -> Result<()> {
    let n_cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let max = MAX_THREADS_PER_CORE * n_cores;
    match n_threads {
        Some(n_threads) if n_threads > max => Err(CommandError::TooManyThreads { n_threads, max }.into()),
        _ => Ok(()),
    }
}

/// Turns off the features of the GPU that the run does without.
pub(crate) fn turn_off(device: Device, without: &[GpuFeature]) -> Result<()> {
    let Device::Cuda(index) = device else { return Ok(()) };
    let gpu = Gpu::get(index)?;
    without.iter().for_each(|feature| gpu.turn_off(*feature));
    Ok(())
}

/// Turns off the features of these names, and returns the mode of graphs without them: the result of the self-check.
pub(crate) fn turn_off_named(device: Device, names: &[String], graph: GraphMode) -> Result<GraphMode> {
    let named: Vec<_> = GpuFeature::ALL
        .iter()
        .copied()
        .filter(|feature| names.iter().any(|name| name == feature.name()))
        .collect();
    turn_off(device, &named)?;
    Ok(if names.iter().any(|name| name == CUDA_GRAPH) { GraphMode::Off } else { graph })
}

/// Turns features off on all ranks that the driver refuses to one, with a warning for each. All ranks have a GPU, or none has. Collective.
pub(super) fn turn_off_refused(world: &World, device: Device) -> Result<()> {
    let Device::Cuda(index) = device else { return Ok(()) };
    let gpu = Gpu::get(index)?;
    turn_off_on_all(world, gpu, &gpu.refused_features())
}

/// The same for what is tried with kernels and memory, by commands that compute with a model. Collective.
pub(crate) fn try_launches(world: &World, device: Device) -> Result<()> {
    let Device::Cuda(index) = device else { return Ok(()) };
    let gpu = Gpu::get(index)?;
    let refused = ops::try_dependent_launches(gpu).err().map(|error| (GpuFeature::DependentLaunches, error));
    turn_off_on_all(world, gpu, refused.as_slice())
}

/// Turns these features off on all ranks, where one has them in its list. Collective.
fn turn_off_on_all(world: &World, gpu: &Gpu, refused: &[(GpuFeature, KernelError)]) -> Result<()> {
    let line = |(feature, error): &(GpuFeature, KernelError)| {
        format!("{}\t{}\n", feature.name(), with_hint(error).replace('\n', "; "))
    };
    let own: String = refused.iter().map(line).collect();
    let all = world.group().all_gather_bytes(own.as_bytes()).map_err(Error::from)?;
    for feature in GpuFeature::ALL {
        let of_rank = |(rank, record): (usize, &Vec<u8>)| {
            let text = String::from_utf8_lossy(record).into_owned();
            let mut lines = text.lines().filter_map(|line| line.split_once('\t'));
            let (_, reason) = lines.find(|(name, _)| *name == feature.name())?;
            Some(format!("rank {rank}: {reason}"))
        };
        let Some(reason) = all.iter().enumerate().find_map(of_rank) else { continue };
        gpu.turn_off(feature);
        if world.rank().0 == 0 {
            warn!(
                "the driver refuses {} (docs/gpus.md), which this run does without: {reason}",
                feature.name()
            );
        }
    }
    Ok(())
}

/// Logs the features of the GPU that a run does without, and at level debug those that it uses.
pub(super) fn log_features(
    config: &Config,
    args: &TrainArgs,
    trainer: &Trainer<'_>,
    world: &World,
    device: Device,
) {
    let Device::Cuda(index) = device else { return };
    let Ok(gpu) = Gpu::get(index) else { return };
    let has_peers = world.world_size() > 1;
    let (mut used, mut off) = (Vec::new(), Vec::new());
    for row in FEATURES {
        let is_used = match (row.feature, row.name) {
            (Some(feature), _) if !gpu.has(feature) => continue,
            (Some(feature), _) => gpu.uses(feature),
            (None, CUDA_GRAPH) => trainer.uses_graphs(),
            (None, "cpu-binding") => !args.safe && args.bind == Bind::Auto,
            (None, _) if !has_peers => continue,
            (None, "overlap") => config.comm.overlap,
            (None, _) => world.registers_buffers(),
        };
        if is_used { &mut used } else { &mut off }.push(row.name);
    }
    if !off.is_empty() {
        info!("GPU features that are off (docs/gpus.md): {}", off.join(", "));
    }
    debug!("GPU features in use: {}", used.join(", "));
}
