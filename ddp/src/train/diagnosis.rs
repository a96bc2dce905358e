//! Diagnosis of a step whose loss or gradient is not finite: repeats the step's passes on the host and names the first place in
//! forward order that is not finite, and the rows that produce it.
//!
//! It runs after the step has failed, so it may be slow; steps that succeed pay nothing. The order of rows and dropout are pure
//! functions of seed and position, and the withheld update has left the weights as they were. On a GPU the next step was enqueued
//! meanwhile and may have updated them once.

use std::ops::Range;

use ddp_comm::World;
use ddp_kernels::hint::with_hint;
use ddp_kernels::ops::{self, LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, Device, Tensor, TensorRef};
use tracing::debug;

use crate::checkpoint::RunState;
use crate::config::Config;
use crate::data::Loaded;
use crate::data::datasets::batch::Batch;
use crate::data::step_rows::StepRows as _;
use crate::model::{DropoutStep, Layer, LocalGradients, LossHead, Network, ParamLayout};
use crate::train::error::{Result, TrainError};
use crate::train::findings::{Finding, Findings, Place};
use crate::train::setup::{self, BatchPartition};

/// Rows of a rank whose gradients are searched for one by one.
const MAX_GRADIENT_ROWS: usize = 10;

/// A step that is not finite.
pub(crate) struct FailedStep<'a> {
    pub(crate) world: &'a World,
    pub(crate) config: &'a Config,
    pub(crate) data: &'a Loaded,
    pub(crate) partition: &'a BatchPartition,
    /// The trainer's model.
    pub(crate) model: &'a Network,
    /// Rows that all ranks used before the step.
    pub(crate) cursor: u64,
}

impl FailedStep<'_> {
    /// Adds the findings of all ranks to the step's error, if it is one of a step that is not finite. Collective, on ranks with
    /// the same error.
    pub(crate) fn explain(&self, mut error: TrainError) -> TrainError {
        if let (true, Some(step)) = (error.has_findings(), error.step())
            // The step's error matters more than that of a search.
            && let Ok(findings) = self.findings(step)
        {
            error.add_findings(findings);
        }
        error
    }

    /// Searches on every rank and shares the findings. A search that fails finds nothing.
    fn findings(&self, step: u64) -> Result<Findings> {
        let own = self.search(step).unwrap_or_else(|error| {
            debug!("the step that is not finite could not be repeated: {}", with_hint(&error));
            None
        });
        let own = own.map_or(Vec::new(), |own| serde_json::to_vec(&own).expect("strings and numbers"));
        let all = self.world.group().all_gather_bytes(&own)?;
        let of_ranks = all.iter().filter_map(|bytes| serde_json::from_slice(bytes).ok()).collect();
        Ok(Findings { of_ranks, source: self.data.train.source().to_owned() })
    }

    /// Repeats this rank's share of the step.
    fn search(&self, step: u64) -> Result<Option<Finding>> {
        let FailedStep { world, config, data, partition, model, cursor } = *self;
        let found = |place, rows| Ok(Some(Finding { rank: world.rank().0, place, rows }));
        let layout = model.layout();
        let weights = model.weights().to_vec::<f32>()?;
        if let Some(name) = first_not_finite(layout, &weights) {
            return found(Place::Weights(name), Vec::new());
        }
        let (spec, max_rows) = (setup::model_spec(config, data), partition.max_rows);
        let network = Network::with_layout(spec, layout.clone(), max_rows, Device::Cpu, model.precision())?;
        let mut replay = Replay {
            loss: LossHead::for_model(&config.loss, data.train.layout().targets.heads(), &network)?,
            network,
            dropout: DropoutStep { seed: config.train.seed, step: step - 1, first_row: 0, scalars: None },
        };
        replay.network.set_weights(TensorRef::from_slice(&weights, &[weights.len()])?)?;
        let state = RunState { cursor, ..RunState::default() };
        let (mut loader, _) = setup::loader(config, data, partition, world, Device::Cpu, Some(&state))?;
        let Some(mut rows) = loader.next_step()? else { return Ok(None) };
        let (numbers, partition, global_rows) = (rows.source_rows(), rows.partition(), rows.global_rows());
        let number =
            |index: usize, row: usize| numbers[partition.n_own_rows_before(global_rows, index) + row];
        let mut first: Option<(usize, Place)> = None;
        let mut bad_rows = Vec::new();
        for index in 0..rows.n_micro_batches() {
            let batch = rows.micro_batch(index)?;
            let forward = replay.forward(batch.rows, batch.first_row)?;
            bad_rows.extend(forward.rows.iter().map(|&row| number(index, row)));
            if let Some((depth, place)) = forward.first
                && first.as_ref().is_none_or(|(shallowest, _)| depth < *shallowest)
            {
                first = Some((depth, place));
            }
        }
        if let Some((_, place)) = first {
            bad_rows.sort_unstable();
            return found(place, bad_rows);
        }
        for index in 0..rows.n_micro_batches() {
            let batch = rows.micro_batch(index)?;
            let all = 0..batch.rows.n_rows();
            let Some(name) = replay.gradient(batch.rows, batch.first_row, all.clone())? else { continue };
            let mut bad = Vec::new();
            replay.bisect(batch.rows, batch.first_row, all, &mut bad)?;
            let mut rows: Vec<usize> = bad.into_iter().map(|row| number(index, row)).collect();
            rows.sort_unstable();
            return found(Place::Gradient(name), rows);
        }
        Ok(None)
    }
}

/// First parameter in forward order with a value that is not finite; `flat` has the layout's order.
fn first_not_finite(layout: &ParamLayout, flat: &[f32]) -> Option<String> {
    let is_bad = |range: Range<usize>| flat[range].iter().any(|value| !value.is_finite());
    layout.forward_order().into_iter().find(|slot| is_bad(slot.range())).map(|slot| slot.name.clone())
}

/// A forward pass.
#[derive(Default)]
struct Forward {
    /// The first place that is not finite, and its depth.
    first: Option<(usize, Place)>,
    /// Rows of the batch with values that are not finite, ascending.
    rows: Vec<usize>,
}

/// The run's model on the host.
struct Replay {
    network: Network,
    loss: LossHead,
    /// Of the step; its first row is the batch's.
    dropout: DropoutStep<'static>,
}

impl Replay {
    fn dropout(&self, first_row: usize) -> Option<DropoutStep<'static>> {
        Some(DropoutStep { first_row: first_row as u64, ..self.dropout })
    }

    /// Runs `rows`, the first of which has this position in the global batch, and looks at features, outputs of layers and
    /// each row's loss.
    fn forward(&mut self, rows: Batch<'_>, first_row: usize) -> Result<Forward> {
        let n_rows = rows.n_rows();
        let mut is_bad = vec![false; n_rows];
        let mut first = None;
        let mut depth = 0;
        mark(rows.x, &mut is_bad)?;
        if is_bad.contains(&true) {
            first = Some((depth, Place::Features));
        }
        let dropout = self.dropout(first_row);
        let outputs = self.network.forward_observed(rows.x, dropout, |layer, y| {
            depth += 1;
            mark(y, &mut is_bad)?;
            if first.is_none() && is_bad.contains(&true) {
                first = Some((depth, Place::Layer(name_of(layer))));
            }
            Ok(())
        })?;
        for (row, is_bad) in is_bad.iter_mut().enumerate() {
            let Batch { targets, weights, .. } = rows.rows(row, row + 1)?;
            let mut tail = [0.0f32; STEP_SUMS_LEN];
            let mut sums = Tensor::from_slice(&tail, &[STEP_SUMS_LEN], Device::Cpu)?;
            let output = SumsOutput { tail: sums.view_mut(), accumulate: false, extra: None };
            self.loss.apply(outputs.rows(row, row + 1)?, targets, weights, 1.0, None, output)?;
            tail.copy_from_slice(&sums.to_vec::<f32>()?);
            *is_bad |= !LossSums::load(&tail).loss.is_finite();
        }
        if is_bad.contains(&true) {
            first = first.or(Some((depth + 1, Place::Loss)));
        }
        let rows = (0..n_rows).filter(|&row| is_bad[row]).collect();
        Ok(Forward { first, rows })
    }

    /// Name of the first parameter in forward order whose gradient over the rows `range` of the batch is not finite.
    fn gradient(&mut self, rows: Batch<'_>, first_row: usize, range: Range<usize>) -> Result<Option<String>> {
        let Batch { x, targets, weights } = rows.rows(range.start, range.end)?;
        let dropout = self.dropout(first_row + range.start);
        self.network.forward_with(x, dropout)?;
        let mut sums = Tensor::zeros(&[STEP_SUMS_LEN], DType::F32, Device::Cpu)?;
        let scale = 1.0 / self.loss.expected_weight(rows.n_rows(), self.network.n_outputs());
        let (outputs, d_outputs) = self.network.outputs_and_gradient()?;
        let tail = SumsOutput { tail: sums.view_mut(), accumulate: false, extra: None };
        self.loss.apply(outputs, targets, weights, scale, Some(d_outputs), tail)?;
        let mut grads = Tensor::zeros(&[self.network.layout().flat_len()], DType::F32, Device::Cpu)?;
        self.network.backward(x, dropout, false, &mut LocalGradients(grads.view_mut()))?;
        Ok(first_not_finite(self.network.layout(), &grads.to_vec::<f32>()?))
    }

    /// Collects rows within `range`, whose gradient is not finite, that have such a gradient on their own.
    fn bisect(
        &mut self,
        rows: Batch<'_>,
        first_row: usize,
        range: Range<usize>,
        found: &mut Vec<usize>,
    ) -> Result<()> {
        if range.len() == 1 {
            found.push(range.start);
            return Ok(());
        }
        let middle = range.start + range.len() / 2;
        for half in [range.start..middle, middle..range.end] {
            if found.len() < MAX_GRADIENT_ROWS && self.gradient(rows, first_row, half.clone())?.is_some() {
                self.bisect(rows, first_row, half, found)?;
            }
        }
        Ok(())
    }
}

/// Name of a layer: that of its parameters, such as `layers.0`, or its description.
fn name_of(layer: &dyn Layer) -> String {
    let of_parameters = layer.parameters().last().and_then(|param| param.name.rsplit_once('.'));
    of_parameters.map_or_else(|| layer.describe(), |(name, _)| name.to_owned())
}

/// Marks the rows of `values` that have a value that is not finite.
fn mark(values: TensorRef<'_>, is_bad: &mut [bool]) -> Result<(), ddp_kernels::KernelError> {
    let mut floats = Tensor::zeros(values.shape().dims(), DType::F32, Device::Cpu)?;
    ops::load_rows(values, None, None, floats.view_mut())?;
    let floats = floats.to_vec::<f32>()?;
    let width = floats.len() / is_bad.len().max(1);
    for (row, is_bad) in floats.chunks_exact(width.max(1)).zip(is_bad) {
        *is_bad |= row.iter().any(|value| !value.is_finite());
    }
    Ok(())
}
