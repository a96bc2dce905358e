//! Puts a rank on its device, and its compute threads on their CPUs.

use std::num::NonZero;
use std::time::Duration;

use ddp::report::notes::warn_of_all_ranks;
use ddp::train::trainer::GraphMode;
use ddp_comm::{DeviceChoice, DeviceOptions, RegisterBuffers, World, cores};
use ddp_kernels::cpu::cpu_set::CpuSet;
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::{Gpu, GpuFeature};
use ddp_kernels::{Device, DeviceRequest};
use tracing::debug;

use super::{banner, gpu_features};
use crate::cli::Bind;
use crate::error::command::{CommandError, MAX_THREADS_PER_CORE};
use crate::error::{Error, Result};
use crate::exit::Stop;

/// Settings under which a rank uses its device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pinning {
    /// Whether several ranks may use one GPU.
    pub(crate) share_gpu: bool,
    /// Whether matmuls and reductions on GPUs use only deterministic algorithms.
    pub(crate) deterministic: bool,
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
    let Pinning { share_gpu, deterministic, n_threads, bind, register_buffers, without, trial_timeout } =
        pinning;
    let choose = || -> Result<DeviceChoice> {
        let request: DeviceRequest = device.parse()?;
        let choice = world.choose_device(request, share_gpu)?;
        if let (true, Device::Cuda(index)) = (deterministic, choice.device) {
            Gpu::get(index)?.set_deterministic(true);
        }
        gpu_features::turn_off(choice.device, &without)?;
        check_threads(n_threads)?;
        Ok(choice)
    };
    let choice = world.collective_result(choose())?;
    banner::unused_gpu(&choice).iter().for_each(|line| warn_of_all_ranks(world.rank().0, line));
    let near = if bind == Bind::Auto { cores::bind_near(choice.device) } else { None };
    let share = world.cores_per_rank().map_err(Error::from)?;
    let n_threads = n_threads.unwrap_or(share);
    world.collective_result(threads::join_pool(n_threads).map_err(Error::from))?;
    debug!("{}", cpu_words(n_threads, near, choice.device));
    let mut options =
        DeviceOptions { share_gpu, deterministic, register_buffers, ..DeviceOptions::default() };
    options.trial_timeout = trial_timeout.unwrap_or(options.trial_timeout);
    world.connect_device(choice.device, options).map_err(Error::from)?;
    gpu_features::turn_off_refused(world, choice.device)?;
    Ok(choice)
}

/// The rank's threads and CPUs, and why it runs on these.
fn cpu_words(n_threads: usize, near: Option<CpuSet>, device: Device) -> String {
    let why =
        near.map_or_else(String::new, |_| format!(", those near {device}; --bind none leaves them all"));
    format!("{} on CPUs {}{why}", banner::count(n_threads, "thread"), CpuSet::of_thread())
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
