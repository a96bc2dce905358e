//! A trainer on the CPU that repeats the steps of one on a GPU, each from the GPU's weights and state and in two halves: gradients
//! from the rows, and the update from the GPU's gradients. So no difference grows from step to step.

use ddp_kernels::{DType, Device, Tensor, TensorRef, ops};

use super::{StepInfo, StepOutcome, StepRequest, Trainer};
use crate::data::batch::Batch;
use crate::data::step_rows::StepRows;
use crate::optim::loss_scaler::LossScaler;
use crate::train::error::Result;
use crate::train::options::NonFinite;
use crate::train::step::StepPurpose;
use crate::train::step_info::PlannedStep;
use crate::train::step_inputs::{Rows, StepInputs};

/// Values in host memory, each with its name.
pub(crate) type Named = Vec<(String, Vec<f32>)>;

/// Input and results of a step before its update, in host memory.
#[derive(Debug)]
pub(crate) struct StepValues {
    /// Features, targets and weights of this rank's rows.
    pub(crate) rows: Named,
    /// Outputs of the layers in the last micro-batch, in forward order.
    pub(crate) layers: Named,
    /// Gradients, flat in the layout's order.
    pub(crate) gradients: Vec<f32>,
}

impl StepValues {
    /// Whether all outputs and gradients are numbers.
    pub(crate) fn is_finite(&self) -> bool {
        let values = self.layers.iter().flat_map(|(_, values)| values).chain(&self.gradients);
        values.copied().all(f32::is_finite)
    }
}

impl Trainer<'_> {
    /// Takes over weights, optimizer state, registered buffers, loss scale and number of steps of `leader`.
    pub(crate) fn take_over(&mut self, leader: &Trainer<'_>) -> Result<()> {
        self.set_weights(leader.model().weights().view())?;
        for ((_, to), (_, from)) in self.state_mut().into_iter().zip(leader.state()) {
            ops::copy(from.view(), to.view_mut())?;
        }
        let buffers = leader.replica.model.named_buffers();
        for (to, (_, from)) in self.replica.model.buffers_mut().zip(buffers) {
            ops::copy(from.view(), to.view_mut())?;
        }
        self.scaler.clone_from(&leader.scaler);
        self.set_n_steps(leader.n_steps);
        Ok(())
    }

    /// Computes loss and gradients of the next step, on the CPU; [`Trainer::update_by`] completes it.
    pub(crate) fn differentiate(
        &mut self,
        rows: &mut impl StepRows,
        request: StepRequest,
    ) -> Result<PlannedStep> {
        let Trainer { replica, scalars, scaler, n_steps, .. } = self;
        let info = StepInfo { step: *n_steps + 1, n_rows: rows.global_rows(), lr: replica.optimizer.lr() };
        if *n_steps == 0 {
            replica.start_average()?;
        }
        let step = replica.plan(rows, request, info, scaler.as_ref().map(LossScaler::scale));
        replica.begin_step(info.step)?;
        ops::begin_step(Some(scalars.begin(step.scalars, replica.optimizer.group_lrs())?), None)?;
        let inputs = StepInputs { rows: Rows::Host(rows), scalars, outcome: None };
        replica.step(inputs, step.shape, StepPurpose::Rehearsal)?;
        Ok(step)
    }

    /// Completes the step with these gradients, and returns its outcome.
    pub(crate) fn update_by(
        &mut self,
        gradients: &[f32],
        rows: &mut impl StepRows,
        step: PlannedStep,
    ) -> Result<StepOutcome> {
        let Trainer { replica, scalars, .. } = self;
        let inputs = StepInputs { rows: Rows::Host(rows), scalars, outcome: None };
        replica.update_by(gradients, &inputs, step.shape)?;
        let (sums, squares) = replica.results(step.shape)?;
        step.outcome(sums, squares, NonFinite::Withhold)
    }

    /// The values of the last step, over this rank's `rows`, of which the last micro-batch had `n_last`. On a GPU they are read
    /// there, in place of `rows`.
    pub(crate) fn step_values(
        &self,
        rows: Option<Batch<'_>>,
        n_own: usize,
        n_last: usize,
    ) -> Result<StepValues> {
        let Trainer { replica, gpu, n_steps, .. } = self;
        let batch = match (gpu, rows) {
            (Some(gpu), _) => Some(gpu.rows(*n_steps, n_own)?),
            (None, rows) => rows,
        };
        let mut rows = Vec::new();
        if let Some(Batch { x, targets, weights }) = batch {
            rows.push(("features".to_owned(), on_host(x)?));
            rows.push(("targets".to_owned(), on_host(targets)?));
            if let Some(weights) = weights {
                rows.push(("weights".to_owned(), on_host(weights)?));
            }
        }
        let layers = replica.model.layer_values(n_last)?;
        let layers = layers.into_iter().map(|(name, values)| Ok((name, on_host(values)?)));
        let gradients = replica.grads.shard(&replica.shard_plan.rest())?;
        Ok(StepValues { rows, layers: layers.collect::<Result<_>>()?, gradients: on_host(gradients)? })
    }

    /// Optimizer state by name, flat, and registered buffers by name.
    pub(crate) fn state_values(&self) -> Result<(Named, Named)> {
        let named = |(name, values): (&str, &Tensor)| Ok((name.to_owned(), on_host(values.view())?));
        let state = self.state().into_iter().map(named).collect::<Result<_>>()?;
        Ok((state, self.model().named_buffers().into_iter().map(named).collect::<Result<_>>()?))
    }
}

/// The values in f32.
fn on_host(values: TensorRef<'_>) -> Result<Vec<f32>> {
    let values = values.to_tensor()?.to(Device::Cpu)?;
    Ok(match values.dtype() {
        DType::F32 => values.to_vec::<f32>()?,
        DType::I64 => values.to_vec::<i64>()?.into_iter().map(|value| value as f32).collect(),
        _ => values.to_dtype(DType::F32)?.to_vec::<f32>()?,
    })
}
