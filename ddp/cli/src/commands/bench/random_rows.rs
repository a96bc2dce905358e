//! Random rows in memory, for the benchmarks of steps.

use ddp::data::batch::Batch;
use ddp::data::device_rows::{DeviceRows, DeviceShape};
use ddp::data::order::partition::{PartitionKind, RankPartition};
use ddp::data::{DataError, RowLayout, TargetLayout, numbered_columns};
use ddp::train::trainer::{MicroBatch, StepRows};
use ddp_comm::World;
use ddp_kernels::ops::{self, ScalarsOutput, UniformStream};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor};

use crate::cli::BenchStepArgs;

/// Number of random batches that steps use in rotation.
const POOL: usize = 8;

/// Random rows with labels from a linear teacher, so that a model can learn something.
pub(super) fn random_rows(world: &World, args: &BenchStepArgs, device: Device) -> Result<Pool, KernelError> {
    let (n_rows, dims) = (POOL * args.batch, &args.dims.0);
    let (n_features, n_classes) = (dims[0], dims[dims.len() - 1]);
    let seed = 1000 + world.rank().0 as u64;
    let x = match device {
        Device::Cpu => Tensor::randn(&[n_rows, n_features], DType::F32, device, seed)?,
        // Generated on the device, because normal numbers are generated on the host, one by one. The variance is 1, as for normal
        // numbers.
        Device::Cuda(_) => {
            let mut x = Tensor::zeros_for(MemoryUse::Data, &[n_rows, n_features], DType::F32, device)?;
            let bound = 3f32.sqrt();
            ops::uniform(x.view_mut(), -bound, bound, UniformStream { seed, stream: [0, 0] })?;
            x
        }
    };
    let teacher = Tensor::randn(&[n_features, n_classes], DType::F32, device, 999)?;
    let mut scores = Tensor::zeros(&[n_rows, n_classes], DType::F32, device)?;
    ops::addmm(1.0, x.view(), false, teacher.view(), false, 0.0, scores.view_mut())?;
    let scores = scores.to_vec::<f32>()?;
    let largest =
        |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i as i64);
    let labels: Vec<i64> = scores.chunks_exact(n_classes).map(largest).collect();
    let labels = Tensor::from_slice(&labels, &[n_rows], Device::Cpu)?;
    let labels = if device == Device::Cpu { labels } else { labels.to_for(MemoryUse::Data, device)? };
    let layout = RowLayout::new(numbered_columns(n_features), TargetLayout::Classes { n_classes });
    Ok(Pool {
        x,
        labels,
        layout,
        batch: args.batch,
        partition: RankPartition {
            kind: PartitionKind::Ranks { n_micro: 1 },
            rank: world.rank().0,
            world_size: world.world_size(),
        },
        next: 0,
    })
}

/// Resident rows whose batches are used in rotation.
pub(super) struct Pool {
    /// `[POOL * batch, features]`.
    x: Tensor,
    labels: Tensor,
    layout: RowLayout,
    batch: usize,
    partition: RankPartition,
    next: usize,
}

impl Pool {
    /// The next batch.
    pub(super) fn take(&mut self) -> Result<Batch<'_>, KernelError> {
        let start = self.next * self.batch;
        self.next = (self.next + 1) % POOL;
        let whole = Batch { x: self.x.view(), targets: self.labels.view(), weights: None };
        whole.rows(start, start + self.batch)
    }
}

impl StepRows for Pool {
    fn partition(&self) -> RankPartition {
        self.partition
    }

    fn global_rows(&self) -> usize {
        self.batch * self.partition.world_size
    }

    fn has_weights(&self) -> bool {
        false
    }

    fn device(&self) -> Device {
        self.x.device()
    }

    fn micro_batch(&mut self, _index: usize) -> Result<MicroBatch<'_>, DataError> {
        let first_row = self.partition().first_own_row(self.global_rows());
        Ok(MicroBatch { rows: self.take()?, first_row })
    }

    fn device_shape(&self) -> DeviceShape {
        DeviceShape::sent(&self.layout, false)
    }

    fn send(&mut self, to: &mut DeviceRows, scalars: Option<ScalarsOutput<'_>>) -> Result<(), DataError> {
        ops::begin_step(scalars, None)?;
        Ok(to.copy(self.take()?)?)
    }
}
