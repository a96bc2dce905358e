//! Evaluation: each row exactly once over all ranks, true means.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ddp::data::{Dataset, EvalPartition, LoaderOptions, TensorDataset};
//! use ddp::nn::{LossHead, Precision, Sequential, Sizes};
//! use ddp::prelude::*;
//! use ddp::train::{EvalMetric, MetricRequest, Task, evaluate};
//!
//! let x = Tensor::randn(&[10, 3], DType::F32, Device::Cpu, 1)?;
//! let y = x.sum(1)?;
//! let rows: Arc<dyn Dataset> = Arc::new(TensorDataset::new(&x, &y)?);
//!
//! // A model that predicts 0.
//! let sizes = Sizes { max_rows: 4, device: Device::Cpu, precision: Precision::F32 };
//! let mut model = Sequential::new(3).linear(1).build(sizes, 0)?;
//! let zeros = Tensor::zeros(&[model.layout().flat_len()], DType::F32, Device::Cpu)?;
//! model.set_weights(zeros.view())?;
//!
//! let (request, partition) = (MetricRequest::defaults(Task::Regression), EvalPartition::for_ranks(1));
//! let options = LoaderOptions::new(Device::Cpu);
//! let metrics = evaluate(&World::single(), &mut model, &LossHead::mse(), &request, &rows, partition, &options)?;
//! let want = y.to_vec::<f32>()?.into_iter().map(|y| f64::from(y * y)).sum::<f64>() / 10.0;
//! let loss = metrics.get(EvalMetric::Loss).expect("each task has a loss");
//! assert!((loss - want).abs() < 1e-5 * want, "{loss}, expected {want}");
//! # Ok::<(), ddp::Error>(())
//! ```

use std::sync::Arc;

use ddp_comm::{Phase, World};
use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::{self, LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, Device, Tensor};

use crate::config::{Placement, Task};
use crate::data::Dataset;
use crate::data::datasets::batch::Batch;
use crate::data::device_rows::DeviceRows;
use crate::data::loader::{DataLoader, LoadedStep, LoaderOptions};
use crate::data::order::partition::EvalPartition;
use crate::model::{LossHead, Network};
use crate::report::EvalMetrics;
use crate::train::error::{Result, TrainError};
use crate::train::eval_readback::Readback;
use crate::train::eval_votes::Until;
use crate::train::metrics::request::MetricRequest;
use crate::train::metrics::rows::EvalRows;
use crate::train::metrics::scores::AllScores;
use crate::train::metrics::totals::{self, Needs, Totals};
use crate::train::trainer::StepRows as _;

/// Evaluates the model on all rows of `dataset`; every rank gets the metrics of all rows, as `docs/metrics.md` defines them.
/// Where rows have weights, each row counts as often as its weight says. A metric that is not defined for these rows is absent.
/// The metrics depend on `partition` and not on the number of ranks. Rows are loaded for the device of the model, whatever
/// `options.device` is.
///
/// Losses and right rows are added up on the device. For other metrics of classification the place of each row's largest
/// output is copied to the host while the next batches compute, and for those of probabilities all outputs, as for the other
/// tasks.
///
/// # Errors
/// [`TrainError::NoEvalWeight`] if the weights of all rows are 0; [`TrainError::Data`], [`TrainError::Kernel`],
/// [`TrainError::Comm`].
pub fn evaluate(
    world: &World,
    model: &mut Network,
    loss: &LossHead,
    request: &MetricRequest,
    dataset: &Arc<dyn Dataset>,
    partition: EvalPartition,
    options: &LoaderOptions,
) -> Result<EvalMetrics> {
    evaluate_until(Until { world, signals: None }, model, loss, request, dataset, partition, options)
}

/// Evaluates as [`evaluate`] does, until a stop signal.
///
/// # Errors
/// [`TrainError::EvaluationStopped`] on all ranks after a signal to any of them; errors of [`evaluate`].
pub fn evaluate_until(
    until: Until<'_>,
    model: &mut Network,
    loss: &LossHead,
    request: &MetricRequest,
    dataset: &Arc<dyn Dataset>,
    partition: EvalPartition,
    options: &LoaderOptions,
) -> Result<EvalMetrics> {
    let world = until.world;
    let _phase = world.watchdog().during(Phase::Evaluation);
    let n_outputs = model.n_outputs();
    let partition =
        EvalPartition { max_rows: partition.max_rows.min(model.max_rows()).min(dataset.len()), ..partition };
    // Rows that are read once need not be kept on the GPU.
    let (device, placement) = (model.device(), Placement::Host);
    let options = LoaderOptions { device, placement, ..options.clone() };
    let mut loader = DataLoader::passes(world, dataset.clone(), partition, options)?;
    let mut feed = Feed::new(model.device())?;
    let mut readback = Readback::new(model.device(), Needs::of(request), n_outputs)?;
    let n_outputs = request.n_targets(n_outputs);
    let zeros = |n, dtype| Tensor::zeros(&[n], dtype, model.device());
    let (mut sums, mut count) = (zeros(STEP_SUMS_LEN, DType::F32)?, zeros(1, DType::F64)?);
    let mut totals = PartTotals {
        n_outputs,
        request,
        parts: Vec::new(),
        scores: totals::scores(request, n_outputs, dataset.len()),
    };
    let mut votes = until.votes(partition.n_common_batches(dataset.len(), world.world_size()));
    let mut is_stopped = false;
    while let Some(mut rows) = loader.next_step()? {
        world.watchdog().tick();
        let accumulate = totals.last() == Some(rows.part());
        if !accumulate {
            totals.begin(rows.part(), &sums, &count)?;
        }
        let part = rows.part();
        let Batch { x, targets, weights: row_weights } = feed.next(&mut rows)?;
        let outputs = model.forward(x)?;
        let sums = SumsOutput { tail: sums.view_mut(), accumulate, extra: None };
        loss.apply(outputs, targets, row_weights, 1.0, None, sums)?;
        if request.task == Task::Classification && !request.is_cumulative() {
            ops::count_correct(outputs, targets, row_weights, count.view_mut(), accumulate)?;
        }
        let enqueued = readback.enqueue(outputs, |part, rows| totals.add(part, rows))?;
        feed.consumed()?;
        let (targets, weights) = rows.targets_and_weights()?;
        readback.batch(enqueued, part, targets, weights, |part, rows| totals.add(part, rows))?;
        is_stopped = votes.stop_after_batch()?;
        if is_stopped {
            break;
        }
    }
    readback.finish(|part, rows| totals.add(part, rows))?;
    totals.take_sums(&sums, &count)?;
    if is_stopped {
        return Err(TrainError::EvaluationStopped);
    }
    let PartTotals { parts, scores, .. } = totals;
    let all = Totals::from_all_ranks(world, request, n_outputs, partition.n_parts, parts)?;
    let n_rows = dataset.len();
    if n_rows > 0 && all.weight() == 0.0 {
        return Err(TrainError::NoEvalWeight { source_name: dataset.source().to_owned(), n_rows });
    }
    Ok(all.metrics(request, &scores.areas(world)?))
}

/// Totals of each part that this rank has rows of.
struct PartTotals<'a> {
    n_outputs: usize,
    request: &'a MetricRequest,
    parts: Vec<(usize, Totals)>,
    scores: AllScores,
}

impl PartTotals<'_> {
    /// The part under way.
    fn last(&self) -> Option<usize> {
        self.parts.last().map(|(part, _)| *part)
    }

    /// Ends the part under way with the device's sums, and begins another.
    fn begin(&mut self, part: usize, sums: &Tensor, count: &Tensor) -> Result<()> {
        self.take_sums(sums, count)?;
        self.parts.push((part, Totals::new(self.request, self.n_outputs)));
        Ok(())
    }

    /// Adds the sums from the device to the part under way.
    fn take_sums(&mut self, sums: &Tensor, count: &Tensor) -> Result<()> {
        let Some((_, totals)) = self.parts.last_mut() else { return Ok(()) };
        totals.loss = LossSums::load(&sums.to_vec::<f32>()?);
        totals.n_correct += count.to_vec::<f64>()?[0];
        Ok(())
    }

    /// Adds a batch to its part, which the next part may have followed already.
    fn add(&mut self, part: usize, rows: &EvalRows<'_>) {
        let totals = self.parts.iter_mut().rev().find(|(of, _)| *of == part);
        let (_, totals) = totals.expect("a part begins before its batches");
        totals.add(rows, &mut self.scores);
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
        let n_rows = rows.n_own_rows();
        // The first batch is the largest.
        while slots.len() < 2 {
            slots.push(DeviceRows::new(gpu, n_rows, rows.device_shape())?);
        }
        let slot = &mut slots[*next];
        rows.send(slot, None)?;
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
