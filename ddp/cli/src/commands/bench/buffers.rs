//! Random data: rotating sets of operands, so that none is still in a cache when it is used again, and rows for steps.

use std::ops::Range;

use ddp::data::batch::Batch;
use ddp::data::device_rows::{DeviceRows, DeviceShape};
use ddp::data::order::partition::{PartitionKind, RankPartition};
use ddp::data::{DataError, RowLayout, TargetLayout, numbered_columns};
use ddp::train::trainer::{MicroBatch, StepRows};
use ddp_comm::World;
use ddp_kernels::ops::{self, ScalarsOutput, UniformStream, uniform};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Shape, Tensor, TensorMut, TensorRef};

use super::place::Place;
use crate::cli::BenchStepArgs;

type Result<T, E = KernelError> = std::result::Result<T, E>;

/// Alignment of the sets in elements: vector accesses of any width stay aligned.
const ALIGN: usize = 128;

/// Tensors of one shape, used in rotation.
#[derive(Debug)]
pub(super) struct Rotating {
    all: Tensor,
    shape: Shape,
    stride: usize,
    n_sets: usize,
}

/// Seed and range of uniform random values.
#[derive(Debug)]
pub(super) struct UniformValues {
    pub(super) seed: u64,
    pub(super) range: Range<f32>,
}

impl Rotating {
    /// Uniform numbers in `-1..1`, which affect the power draw of a GPU similarly to training data.
    pub(super) fn random(
        place: &Place,
        dims: &[usize],
        dtype: DType,
        n_sets: usize,
        seed: u64,
    ) -> Result<Self> {
        Self::uniform(place, dims, dtype, n_sets, UniformValues { seed, range: -1.0..1.0 })
    }

    /// Uniform numbers in a range. Outputs are initialized too, so that no page fault is timed.
    pub(super) fn uniform(
        place: &Place,
        dims: &[usize],
        dtype: DType,
        n_sets: usize,
        UniformValues { seed, range }: UniformValues,
    ) -> Result<Self> {
        let mut rotating = Self::zeros(place, dims, dtype, n_sets)?;
        uniform(rotating.all.view_mut(), range.start, range.end, UniformStream { seed, stream: [0, 0] })?;
        Ok(rotating)
    }

    /// Zeros.
    pub(super) fn zeros(place: &Place, dims: &[usize], dtype: DType, n_sets: usize) -> Result<Self> {
        let shape = Shape::new(dims)?;
        let stride = shape.numel().next_multiple_of(ALIGN);
        let all = Tensor::zeros(&[stride * n_sets], dtype, place.device)?;
        Ok(Rotating { all, shape, stride, n_sets })
    }

    /// Shuffled i64 indices in `0..bound`.
    pub(super) fn indices(place: &Place, n: usize, bound: usize, n_sets: usize) -> Result<Self> {
        let stride = n.next_multiple_of(ALIGN);
        // A multiplicative hash: evenly spread, and without duplicates if `bound` is a power of two.
        let scatter = |i: usize| ((i as u64).wrapping_mul(0x9e37_79b1) % bound as u64) as i64;
        let values: Vec<i64> = (0..stride * n_sets).map(scatter).collect();
        let all = Tensor::from_slice(&values, &[values.len()], place.device)?;
        Ok(Rotating { all, shape: Shape::new(&[n])?, stride, n_sets })
    }

    fn start(&self, call: usize) -> usize {
        call % self.n_sets * self.stride
    }

    /// The tensor of call `call`.
    pub(super) fn get(&self, call: usize) -> Result<TensorRef<'_>> {
        let start = self.start(call);
        self.all.view().range(start, start + self.shape.numel())?.reshape(self.shape.dims())
    }

    /// The tensor of call `call`, mutable.
    pub(super) fn get_mut(&mut self, call: usize) -> Result<TensorMut<'_>> {
        let (start, shape) = (self.start(call), self.shape);
        self.all.view_mut().range(start, start + shape.numel())?.reshape(shape.dims())
    }
}

/// Number of sets with which a call that accesses `bytes_per_call` finds none of its operands in a cache.
pub(super) fn n_sets(place: &Place, bytes_per_call: usize) -> usize {
    let cache_bytes: usize = match place.device {
        _ if place.is_virtual => 1 << 16,
        // Larger than the last-level cache of a socket.
        Device::Cpu => 256 << 20,
        // Several times the L2 of the largest GPUs (about 126 MB).
        Device::Cuda(_) => 512 << 20,
    };
    cache_bytes.div_ceil(bytes_per_call.max(1)).clamp(1, 64)
}

/// Number of random batches that steps use in rotation.
const POOL: usize = 8;

/// Random rows with labels from a linear teacher, so that a model can learn something.
pub(super) fn random_rows(world: &World, args: &BenchStepArgs, device: Device) -> Result<Pool> {
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
            uniform(x.view_mut(), -bound, bound, UniformStream { seed, stream: [0, 0] })?;
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
    pub(super) fn take(&mut self) -> Result<Batch<'_>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            device: Device::Cpu,
            device_name: String::new(),
            is_virtual: false,
            world_size: 1,
            threads: 1,
        }
    }

    #[test]
    fn sets_rotate_and_do_not_overlap() {
        let mut rotating = Rotating::random(&place(), &[3, 5], DType::F32, 2, 7).unwrap();
        let of = |rotating: &Rotating, call| rotating.get(call).unwrap().to_vec::<f32>().unwrap();
        let (first, second) = (of(&rotating, 0), of(&rotating, 1));
        assert!(first != second && first == of(&rotating, 2));
        assert!(first.iter().all(|v| (-1.0..1.0).contains(v)) && first.iter().any(|v| *v < 0.0));
        rotating.get_mut(3).unwrap().into_slice::<f32>("test", "x").unwrap().fill(9.0);
        assert_eq!((of(&rotating, 0), of(&rotating, 1)), (first, vec![9.0; 15]));
    }

    #[test]
    fn indices_stay_in_bounds() {
        let indices = Rotating::indices(&place(), 1000, 17, 2).unwrap();
        let values = indices.get(1).unwrap().to_vec::<i64>().unwrap();
        assert!(values.len() == 1000 && values.iter().all(|v| (0..17).contains(v)));
    }

    #[test]
    fn large_calls_need_one_set() {
        assert_eq!((n_sets(&place(), 1 << 30), n_sets(&place(), 64 << 20), n_sets(&place(), 16)), (1, 4, 64));
    }
}
