//! Evaluation: each row exactly once over all ranks, true means.

use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::{self, LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut};

use crate::batches::{Batch, Table};
use crate::config::Task;
use crate::device_rows::DeviceRows;
use crate::error::Result;
use crate::metrics::EvalMetrics;
use crate::model::{LossHead, Mlp};
use crate::shard::rank_range;

/// Evaluates the model on all rows of `table`; every rank gets the metrics of all rows. Where rows have weights, each row counts
/// as often as its weight says, in all means and sums; what would be a mean over no weight is absent.
///
/// - classification: accuracy, the share of rows whose largest output is the label's
/// - multilabel: accuracy, the share of labels whose output is on the right side of 0
/// - regression: R², `1 - Σ(y - ŷ)²/Σ(y - mean)²`, the mean over the targets; absent where a target is constant
///
/// # Errors
/// Those of the operations and collectives.
pub fn evaluate(
    world: &World,
    model: &mut Mlp,
    loss: &LossHead,
    task: Task,
    table: &Table,
) -> Result<EvalMetrics> {
    let n_outputs = model.spec().n_outputs();
    let own = rank_range(table.n_rows(), world.rank().0, world.world_size());
    let mut totals = Totals::new(n_outputs);
    let mut feed = Feed::new(model.device(), model.max_rows().min(own.len()), table)?;
    let zeros = |n, dtype| Tensor::zeros(&[n], dtype, model.device());
    let (mut sums, mut count) = (zeros(STEP_SUMS_LEN, DType::F32)?, zeros(1, DType::F64)?);
    for start in own.clone().step_by(model.max_rows()) {
        let rows = start..(start + model.max_rows()).min(own.end);
        let (n_rows, accumulate) = (rows.len(), start > own.start);
        let weights = RowWeights::of(table, rows.clone())?;
        totals.weight += weights.sum();
        let batch = feed.next(table, rows.clone())?;
        model.forward(batch.x, None)?;
        let outputs = model.outputs(n_rows)?;
        let Batch { targets, weights: row_weights, .. } = batch;
        let sums = SumsOutput { tail: sums.view_mut(), accumulate };
        loss.apply(outputs, targets, row_weights, 1.0, None, sums)?;
        match task {
            Task::Classification => {
                ops::count_correct(outputs, targets, row_weights, count.view_mut(), accumulate)?;
            }
            Task::Multilabel => {
                let targets = floats(table.rows(rows)?.targets)?;
                totals.add_right_labels(&outputs.to_vec::<f32>()?, targets, &weights);
            }
            Task::Regression => {
                let targets = floats(table.rows(rows)?.targets)?;
                totals.add_squares(&outputs.to_vec::<f32>()?, targets, &weights);
            }
        }
        feed.consumed()?;
    }
    totals.loss = LossSums::load(&sums.to_vec::<f32>()?);
    totals.n_correct += count.to_vec::<f64>()?[0];
    totals.reduce(world)?;
    let share = |of: f64| (of > 0.0).then(|| totals.n_correct / of);
    Ok(EvalMetrics {
        loss: (totals.loss.weight > 0.0).then(|| totals.loss.mean()),
        accuracy: match task {
            Task::Classification => share(totals.weight),
            Task::Multilabel => share(totals.weight * n_outputs as f64),
            Task::Regression => None,
        },
        r2: if task == Task::Regression { totals.r2(table)? } else { None },
    })
}

fn floats<'a>(view: ddp_kernels::TensorRef<'a>) -> std::result::Result<&'a [f32], KernelError> {
    view.as_slice::<f32>("evaluate", "values")
}

/// Weights of some rows, on the host.
struct RowWeights {
    n_rows: usize,
    /// None where each is 1.
    weights: Option<Vec<f32>>,
}

impl RowWeights {
    fn of(table: &Table, rows: Range<usize>) -> Result<Self> {
        let n_rows = rows.len();
        let weights = table.rows(rows)?.weights.map(|weights| weights.to_vec::<f32>()).transpose()?;
        Ok(RowWeights { n_rows, weights })
    }

    fn iter(&self) -> impl Iterator<Item = f64> {
        (0..self.n_rows).map(|row| self.weights.as_ref().map_or(1.0, |weights| f64::from(weights[row])))
    }

    fn sum(&self) -> f64 {
        self.iter().sum()
    }
}

/// Batches where the model is: as they stand in the table, or copied to the GPU while the batch before is computed on.
enum Feed {
    InPlace,
    Copied { slots: Vec<DeviceRows>, next: usize },
}

impl Feed {
    fn new(device: Device, max_rows: usize, table: &Table) -> Result<Self> {
        let Device::Cuda(index) = device else { return Ok(Feed::InPlace) };
        let gpu = Gpu::get(index)?;
        let slot = || DeviceRows::new(gpu, max_rows, table.row_shape());
        Ok(Feed::Copied { slots: vec![slot()?, slot()?], next: 0 })
    }

    fn next<'a>(&'a mut self, table: &'a Table, rows: Range<usize>) -> Result<Batch<'a>> {
        let Feed::Copied { slots, next } = self else { return Ok(table.rows(rows)?) };
        let slot = &mut slots[*next];
        let n_rows = rows.len();
        let batch = table.rows(rows)?;
        batch.copy_to(slot.host(n_rows)?)?;
        slot.send(n_rows)?;
        Ok(slot.batch(0..n_rows)?)
    }

    /// The work on the last batch was asked for.
    fn consumed(&mut self) -> Result<()> {
        if let Feed::Copied { slots, next } = self {
            slots[*next].consumed()?;
            *next = (*next + 1) % slots.len();
        }
        Ok(())
    }
}

/// Sums over rows, each times its weight.
struct Totals {
    loss: LossSums,
    /// Sum of the rows' weights.
    weight: f64,
    n_correct: f64,
    /// Σ(y - ŷ)² of each target.
    squared_errors: Vec<f64>,
}

impl Totals {
    fn new(n_targets: usize) -> Self {
        let squared_errors = vec![0.0; n_targets];
        Totals { loss: LossSums::default(), weight: 0.0, n_correct: 0.0, squared_errors }
    }

    fn add_right_labels(&mut self, outputs: &[f32], targets: &[f32], weights: &RowWeights) {
        let n_labels = self.squared_errors.len();
        let rows = outputs.chunks_exact(n_labels).zip(targets.chunks_exact(n_labels));
        let is_right = |(&output, &target): (&f32, &f32)| (output > 0.0) == (target > 0.5);
        for ((outputs, targets), weight) in rows.zip(weights.iter()) {
            let n_right = outputs.iter().zip(targets).filter(|&pair| is_right(pair)).count();
            self.n_correct += weight * n_right as f64;
        }
    }

    fn add_squares(&mut self, outputs: &[f32], targets: &[f32], weights: &RowWeights) {
        let n_targets = self.squared_errors.len();
        let rows = outputs.chunks_exact(n_targets).zip(targets.chunks_exact(n_targets));
        for ((outputs, targets), weight) in rows.zip(weights.iter()) {
            for ((sum, &output), &target) in self.squared_errors.iter_mut().zip(outputs).zip(targets) {
                *sum += weight * (f64::from(output) - f64::from(target)).powi(2);
            }
        }
    }

    fn reduce(&mut self, world: &World) -> Result<()> {
        let mut sums = vec![self.loss.loss, self.loss.weight, self.weight, self.n_correct];
        sums.extend(&self.squared_errors);
        let n = sums.len();
        world.group().all_reduce(ReduceOp::Sum, TensorMut::from_slice(&mut sums, &[n])?)?;
        self.loss = LossSums { loss: sums[0], weight: sums[1] };
        (self.weight, self.n_correct) = (sums[2], sums[3]);
        self.squared_errors.copy_from_slice(&sums[4..]);
        Ok(())
    }

    /// R² over the targets' spread around their mean in the table, which every rank holds whole.
    fn r2(&self, table: &Table) -> Result<Option<f64>> {
        let n_targets = self.squared_errors.len();
        let targets = floats(table.rows(0..table.n_rows())?.targets)?;
        let weights = RowWeights::of(table, 0..table.n_rows())?;
        let mut sum = 0.0;
        for (target, error) in self.squared_errors.iter().enumerate() {
            let column = || {
                let column = targets.iter().skip(target).step_by(n_targets).map(|&v| f64::from(v));
                column.zip(weights.iter()).filter(|&(_, weight)| weight > 0.0)
            };
            // Their weighted mean need not be theirs to the bit, so a constant target is not known by its spread.
            let first = column().next();
            if column().all(|(y, _)| Some(y) == first.map(|(y, _)| y)) {
                return Ok(None);
            }
            let mean = column().map(|(y, weight)| weight * y).sum::<f64>() / weights.sum();
            let spread: f64 = column().map(|(y, weight)| weight * (y - mean).powi(2)).sum();
            sum += 1.0 - error / spread;
        }
        Ok(Some(sum / n_targets as f64))
    }
}
