//! The run and the machine of a plan.

use ddp::config::precision::Precision;
use ddp::config::{Config, Placement};
use ddp::cost::machine::Machine;
use ddp::cost::memory_plan::{MemoryPlan, RankPlan};
use ddp::data::Loaded;
use ddp::data::loader::DeviceTable;
use ddp::train::setup;
use ddp_kernels::KernelError;

use crate::error::Result;

/// The run and the machine of a plan.
pub(super) struct Subject {
    pub(super) config: Config,
    pub(super) data: Loaded,
    pub(super) machine: Machine,
    /// Bytes of a device; `None` if unknown.
    pub(super) capacity: Option<usize>,
}

impl Subject {
    /// Calls `with` with the plan of rank 0 of `n_ranks` under this config.
    pub(super) fn with_plan<T>(
        &self,
        config: &Config,
        n_ranks: usize,
        with: impl FnOnce(&RankPlan<'_>) -> T,
    ) -> Result<T> {
        let (spec, hardware) = (setup::model_spec(config, &self.data), self.machine.hardware);
        if config.train.precision == Precision::Bf16 && !hardware.has_bf16() {
            let reason =
                format!("{} has no matmuls in bf16, which need compute capability 8.0", hardware.name);
            let hint = "train.precision = \"f16\" (with a scaled loss), or \"f32\"".to_owned();
            return Err(KernelError::DeviceUnavailable { device: hardware.device(), reason, hint }.into());
        }
        let plan = RankPlan::new(config, &self.data, &spec, n_ranks, hardware.device())?;
        let free = self.capacity.unwrap_or(0).saturating_sub(hardware.library_bytes(n_ranks));
        let keeps_rows_on_device = match config.data.placement {
            Placement::Auto => hardware.is_gpu() && DeviceTable::fits_in(&*self.data.train, free),
            Placement::Device => hardware.is_gpu(),
            Placement::Host => false,
        };
        Ok(with(&RankPlan { keeps_rows_on_device, ..plan }))
    }

    /// Bytes that the capacity limits: those of a GPU, or all of a rank on the CPU.
    pub(super) fn limited(&self, memory: &MemoryPlan, n_ranks: usize) -> usize {
        let hardware = self.machine.hardware;
        let of_rank = if hardware.is_gpu() { memory.on_device() } else { memory.total() };
        of_rank + hardware.library_bytes(n_ranks)
    }

    /// [`limited`](Self::limited) bytes under this config.
    pub(super) fn limited_bytes(&self, config: &Config, n_ranks: usize) -> Result<usize> {
        self.with_plan(config, n_ranks, |plan| self.limited(&MemoryPlan::new(plan), n_ranks))
    }
}
