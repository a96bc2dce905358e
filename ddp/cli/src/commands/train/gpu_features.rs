//! Features of GPUs that a run does without: those that its settings turn off, and those that a driver refuses.

use ddp::config::Config;
use ddp::config::gpu_features::{CUDA_GRAPH, FEATURES};
use ddp::train::trainer::{GraphMode, Trainer};
use ddp_comm::World;
use ddp_kernels::cuda::{Gpu, GpuFeature};
use ddp_kernels::hint::with_hint;
use ddp_kernels::{Device, KernelError};
use tracing::{debug, info, warn};

use crate::cli::{Bind, TrainArgs};
use crate::error::{Error, Result};

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
    let refused = gpu.refused_features();
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
        gpu.turn_off(*feature);
        if world.rank().0 == 0 {
            warn!(
                "the driver refuses {} (docs/gpus.md), and training does without: {reason}",
                feature.name()
            );
        }
    }
    Ok(())
}

/// Logs the features of the GPU that a run does without, and at level debug those that it uses.
pub(super) fn log(config: &Config, args: &TrainArgs, trainer: &Trainer<'_>, world: &World, device: Device) {
    let Device::Cuda(index) = device else { return };
    let Ok(gpu) = Gpu::get(index) else { return };
    let has_peers = world.world_size() > 1;
    let (mut used, mut off) = (Vec::new(), Vec::new());
    for row in FEATURES {
        let is_used = match (row.feature, row.name) {
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
