//! Readies the device of a command that computes with a saved model, as the first start of a run does for its model.

use ddp::config::Config;
use ddp::train::trainer::GraphMode;
use ddp_comm::World;
use ddp_kernels::Device;
use ddp_kernels::cuda::GpuFeature;

use crate::cli::StartCheckArgs;
use crate::commands::self_check::{self, StartCheck};
use crate::commands::train::{try_launches, turn_off, turn_off_named};
use crate::exit::Stop;

/// Turns off the features of the GPU that the model's run did without, all with `--safe`, and any with which the GPU differs from the
/// CPU: the first command on a GPU checks the model. Collective.
///
/// # Errors
/// [`CommandError::SelfCheck`](crate::error::command::CommandError::SelfCheck).
pub(super) fn ready(
    world: &World,
    device: Device,
    config: &mut Config,
    args: &StartCheckArgs,
    safe: bool,
) -> Result<(), Stop> {
    if safe {
        config.train.gpu_without = GpuFeature::ALL.to_vec();
    }
    // Nothing is captured here, but a run of the model on this GPU has left its record under the mode of training.
    let check = StartCheck::new(args, GraphMode::default())
        .and_then(|check| turn_off(device, &config.train.gpu_without).map(|()| check));
    let check = world.agreed_result(check, |check| vec![check.entry()])?;
    let without = self_check::at_first_start(world, &check, config, device)?;
    world.collective_result(turn_off_named(device, &without, check.graph()))?;
    try_launches(world, device)?;
    Ok(())
}
