//! Evaluation: each row exactly once over all ranks, true means.

use std::sync::Arc;

use ddp_comm::World;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::{self, LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorRef};

use crate::config::{EvalMetric, Placement, Task};
use crate::data::Dataset;
use crate::data::batch::Batch;
use crate::data::device_rows::DeviceRows;
use crate::data::loader::{LoadedStep, Loader, LoaderOptions};
use crate::data::order::partition::EvalPartition;
use crate::model::{LossHead, Network};
use crate::report::EvalMetrics;
use crate::train::error::Result;
use crate::train::trainer::StepRows as _;

/// Evaluates the model on all rows of `dataset`; every rank gets the metrics of all rows. Where rows have weights, each row
/// counts as often as its weight says, in all means and sums; a mean over zero weight is absent. The metrics depend on
/// `partition` and not on the number of ranks.
///
/// - classification: accuracy, the share of rows whose largest output is the label's
/// - multilabel: accuracy, the share of labels whose output is on the right side of 0
/// - regression: R², `1 - Σ(y - ŷ)²/Σ(y - mean)²`, the mean over the targets; absent where a target is constant
///
/// # Errors
/// [`TrainError::Data`](crate::train::TrainError::Data), [`TrainError::Kernel`](crate::train::TrainError::Kernel),
/// [`TrainError::Comm`](crate::train::TrainError::Comm).
pub fn evaluate(
    world: &World,
    model: &mut Network,
    loss: &LossHead,
    task: Task,
    dataset: &Arc<dyn Dataset>,
    partition: EvalPartition,
    options: &LoaderOptions,
) -> Result<EvalMetrics> {
    let n_outputs = model.n_outputs();
    let partition =
        EvalPartition { max_rows: partition.max_rows.min(model.max_rows()).min(dataset.len()), ..partition };
    // Rows that are read once need not be kept on the GPU.
    let options = LoaderOptions { placement: Placement::Host, ..options.clone() };
    let mut loader = Loader::passes(world, dataset.clone(), partition, options)?;
    let mut feed = Feed::new(model.device())?;
    let zeros = |n, dtype| Tensor::zeros(&[n], dtype, model.device());
    let (mut sums, mut count) = (zeros(STEP_SUMS_LEN, DType::F32)?, zeros(1, DType::F64)?);
    // Totals of each part that this rank has rows of.
    let mut parts: Vec<(usize, Totals)> = Vec::new();
    while let Some(mut rows) = loader.next_step()? {
        let n_rows = rows.own_rows().len();
        let part = rows.part();
        let accumulate = parts.last().is_some_and(|(last, _)| *last == part);
        if !accumulate {
            if let Some((_, totals)) = parts.last_mut() {
                totals.take_sums(&sums, &count)?;
            }
            parts.push((part, Totals::new(n_outputs)));
        }
        let (_, totals) = parts.last_mut().expect("pushed above");
        let Batch { x, targets, weights: row_weights } = feed.next(&mut rows)?;
        model.forward(x, None)?;
        let outputs = model.outputs(n_rows)?;
        let sums = SumsOutput { tail: sums.view_mut(), accumulate };
        loss.apply(outputs, targets, row_weights, 1.0, None, sums)?;
        if task == Task::Classification {
            ops::count_correct(outputs, targets, row_weights, count.view_mut(), accumulate)?;
        }
        feed.consumed()?;
        let (targets, weights) = rows.targets_and_weights()?;
        let weights = RowWeights { n_rows, weights: weights.map(floats).transpose()? };
        totals.weight += weights.sum();
        match task {
            Task::Classification => {}
            Task::Multilabel => {
                totals.add_right_labels(&outputs.to_vec::<f32>()?, floats(targets)?, &weights);
            }
            Task::Regression => totals.add_squares(&outputs.to_vec::<f32>()?, floats(targets)?, &weights),
        }
    }
    if let Some((_, totals)) = parts.last_mut() {
        totals.take_sums(&sums, &count)?;
    }
    let totals = Totals::of_all_ranks(world, n_outputs, &parts)?;
    let share = |of: f64| (of > 0.0).then(|| totals.n_correct / of);
    let loss = (totals.loss.weight > 0.0).then(|| totals.loss.mean());
    let metrics = EvalMetrics::default().with(EvalMetric::Loss, loss);
    Ok(match task {
        Task::Classification => metrics.with(EvalMetric::Accuracy, share(totals.weight)),
        Task::Multilabel => metrics.with(EvalMetric::Accuracy, share(totals.weight * n_outputs as f64)),
        Task::Regression => metrics.with(EvalMetric::R2, totals.r2()),
    })
}

fn floats(view: TensorRef<'_>) -> Result<&[f32], KernelError> {
    view.as_slice::<f32>("evaluate", "values")
}

/// Weights of some rows, on the host.
struct RowWeights<'a> {
    n_rows: usize,
    /// None if all weights are 1.
    weights: Option<&'a [f32]>,
}

impl RowWeights<'_> {
    fn iter(&self) -> impl Iterator<Item = f64> {
        (0..self.n_rows).map(|row| self.weights.map_or(1.0, |weights| f64::from(weights[row])))
    }

    fn sum(&self) -> f64 {
        self.iter().sum()
    }
}

/// Batches on the model's device: as loaded, or copied to the GPU while the previous batch computes.
enum Feed {
    Host,
    Gpu { gpu: &'static Gpu, slots: Vec<DeviceRows>, next: usize },
}

impl Feed {
    fn new(device: Device) -> Result<Self> {
        let Device::Cuda(index) = device else { return Ok(Feed::Host) };
        Ok(Feed::Gpu { gpu: Gpu::get(index)?, slots: Vec::new(), next: 0 })
    }

    fn next<'a>(&'a mut self, rows: &'a mut LoadedStep<'_>) -> Result<Batch<'a>> {
        let Feed::Gpu { gpu, slots, next } = self else { return Ok(rows.batch()?) };
        let n_rows = rows.own_rows().len();
        // The first batch is the largest.
        while slots.len() < 2 {
            slots.push(DeviceRows::new(gpu, n_rows, rows.device_shape())?);
        }
        let slot = &mut slots[*next];
        rows.send(slot)?;
        Ok(slot.batch(0..n_rows)?)
    }

    /// Marks the last batch as consumed by enqueued work.
    fn consumed(&mut self) -> Result<()> {
        if let Feed::Gpu { slots, next, .. } = self {
            slots[*next].consumed()?;
            *next = (*next + 1) % slots.len();
        }
        Ok(())
    }
}

/// Sums over rows.
struct Totals {
    loss: LossSums,
    /// Sum of the rows' weights.
    weight: f64,
    n_correct: f64,
    /// One per target.
    targets: Vec<TargetTotals>,
}

/// Sums for R² of one target.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct TargetTotals {
    /// Σ(y - ŷ)².
    squared_errors: f64,
    weight: f64,
    mean: f64,
    /// Σ(y - mean)².
    spread: f64,
    min: f64,
    max: f64,
}

impl TargetTotals {
    fn new() -> Self {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        TargetTotals { squared_errors: 0.0, weight: 0.0, mean: 0.0, spread: 0.0, min, max }
    }

    /// The totals of one row.
    fn of(y: f64, output: f64, weight: f64) -> Self {
        let squared_errors = weight * (output - y).powi(2);
        TargetTotals { squared_errors, weight, mean: y, spread: 0.0, min: y, max: y }
    }

    /// Merges means and spreads in parallel; see [`crate::data::ColumnStats::merge`].
    fn merge(&mut self, other: &Self) {
        if other.weight == 0.0 {
            return;
        }
        let weight = self.weight + other.weight;
        let delta = other.mean - self.mean;
        self.mean += delta * (other.weight / weight);
        self.spread += other.spread + delta * delta * (self.weight * other.weight / weight);
        self.weight = weight;
        self.squared_errors += other.squared_errors;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

impl Totals {
    fn new(n_targets: usize) -> Self {
        let targets = vec![TargetTotals::new(); n_targets];
        Totals { loss: LossSums::default(), weight: 0.0, n_correct: 0.0, targets }
    }

    fn add_right_labels(&mut self, outputs: &[f32], targets: &[f32], weights: &RowWeights<'_>) {
        let n_labels = self.targets.len();
        let rows = outputs.chunks_exact(n_labels).zip(targets.chunks_exact(n_labels));
        let is_right = |(&output, &target): (&f32, &f32)| (output > 0.0) == (target > 0.5);
        for ((outputs, targets), weight) in rows.zip(weights.iter()) {
            let n_right = outputs.iter().zip(targets).filter(|&pair| is_right(pair)).count();
            self.n_correct += weight * n_right as f64;
        }
    }

    fn add_squares(&mut self, outputs: &[f32], targets: &[f32], weights: &RowWeights<'_>) {
        let n_targets = self.targets.len();
        let rows = outputs.chunks_exact(n_targets).zip(targets.chunks_exact(n_targets));
        for ((outputs, targets), weight) in rows.zip(weights.iter()) {
            for ((totals, &output), &target) in self.targets.iter_mut().zip(outputs).zip(targets) {
                totals.merge(&TargetTotals::of(f64::from(target), f64::from(output), weight));
            }
        }
    }

    /// Adds the sums from the device.
    fn take_sums(&mut self, sums: &Tensor, count: &Tensor) -> Result<()> {
        self.loss = LossSums::load(&sums.to_vec::<f32>()?);
        self.n_correct += count.to_vec::<f64>()?[0];
        Ok(())
    }

    /// Totals of all parts, added in rank order.
    fn of_all_ranks(world: &World, n_targets: usize, parts: &[(usize, Totals)]) -> Result<Self> {
        let mut bytes = Vec::new();
        for (_, totals) in parts {
            let sums = [totals.loss.loss, totals.loss.weight, totals.weight, totals.n_correct];
            bytes.extend_from_slice(bytemuck::cast_slice(&sums));
            bytes.extend_from_slice(bytemuck::cast_slice(&totals.targets));
        }
        let mut all = Totals::new(n_targets);
        let part_bytes = 4 * size_of::<f64>() + n_targets * size_of::<TargetTotals>();
        for of_rank in world.group().all_gather_bytes(&bytes)? {
            for of_part in of_rank.chunks_exact(part_bytes) {
                let (sums, targets) = of_part.split_at(4 * size_of::<f64>());
                let sums = bytemuck::pod_collect_to_vec::<u8, f64>(sums);
                all.loss += LossSums { loss: sums[0], weight: sums[1] };
                all.weight += sums[2];
                all.n_correct += sums[3];
                let targets = bytemuck::pod_collect_to_vec::<u8, TargetTotals>(targets);
                all.targets.iter_mut().zip(&targets).for_each(|(totals, other)| totals.merge(other));
            }
        }
        Ok(all)
    }

    /// The mean R² of the targets, if each of them varies.
    fn r2(&self) -> Option<f64> {
        // The mean of a constant target can differ in the last bit, so a constant is detected by min and max, not by its spread.
        let r2 = |totals: &TargetTotals| {
            (totals.min < totals.max).then(|| 1.0 - totals.squared_errors / totals.spread)
        };
        let sum: Option<f64> = self.targets.iter().map(r2).sum();
        Some(sum? / self.targets.len() as f64)
    }
}
