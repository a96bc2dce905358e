//! Compares the memory that a run will take with what its container allows, before it is allocated: a process that takes more is
//! killed and can say nothing.

use ddp::config::DataConfig;
use ddp::cost::memory_plan::{MemoryKind, MemoryPlan};
use ddp::host_memory::{container_share, size};
use ddp::report::notes::warn_of_all_ranks;
use ddp_comm::World;
use ddp_kernels::Device;

use crate::error::command::CommandError;

/// Memory for rows that is worth setting.
const MIN_ROWS: u64 = 16 << 20;

/// Warns of a configured memory for rows that the container does not allow, and which is not used therefore.
pub(super) fn warn_of_container_limit(world: &World, data: &DataConfig) {
    let (configured, allowed) = ((data.loader_memory_mib as u64) << 20, data.rows_memory_bytes());
    if let Some(share) = container_share().filter(|_| allowed < configured) {
        let warning = format!(
            "`data.loader_memory_mib` is {}, but this container allows each rank {}: rows take at most {}",
            data.loader_memory_mib,
            size(share),
            size(allowed)
        );
        warn_of_all_ranks(world.rank().0, &warning);
    }
}

/// Checks that the memory of a rank on `device` fits the bytes that its container allows it.
///
/// # Errors
/// [`CommandError::ContainerTooSmall`]
pub(super) fn check(memory: &MemoryPlan, device: Device, allowed: u64) -> Result<(), CommandError> {
    let on_device = if device == Device::Cpu { 0 } else { memory.on_device() };
    let needed = (memory.total() - on_device) as u64;
    let rows = memory.of(MemoryKind::Loader) as u64;
    if needed <= allowed {
        return Ok(());
    }
    let for_rows = allowed.saturating_sub(needed - rows);
    let hint = if for_rows >= MIN_ROWS && rows > for_rows {
        format!("set `data.loader_memory_mib = {}`, or raise the limit of the container", for_rows >> 20)
    } else {
        // On a GPU a checkpoint for which training waits takes a copy too.
        let save =
            if device == Device::Cpu { " save without a copy (`checkpoint.async = false`)," } else { "" };
        format!(
            "start fewer ranks in this container, share the optimizer state by `comm.zero = 1`, use a smaller `train.batch_size` or \
             model,{save} or raise the limit of the container"
        )
    };
    Err(CommandError::ContainerTooSmall { needed, allowed, rows, hint })
}
