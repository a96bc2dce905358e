//! Rows and scalars of a step, where its operations read them: in host memory on the CPU, in device memory on a GPU.

use ddp_kernels::cuda::Mapped;
use ddp_kernels::ops::{self, STEP_SCALARS_LEN, ScalarsOutput, StepScalars};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorRef};

use crate::data::device_rows::DeviceRows;
use crate::data::step_rows::{MicroBatch, StepRows};
use crate::train::error::Result;
use crate::train::step_info::StepShape;

/// Inputs of a step, and on a GPU the memory for its outcome.
pub(crate) struct StepInputs<'a> {
    pub(crate) rows: Rows<'a>,
    pub(crate) scalars: &'a ScalarsMemory,
    /// Host memory to which a GPU writes the outcome.
    pub(crate) outcome: Option<&'a Mapped>,
}

/// This rank's rows of a step.
pub(crate) enum Rows<'a> {
    Host(&'a mut dyn StepRows),
    Device(&'a DeviceRows),
}

impl StepInputs<'_> {
    /// Micro-batch `index`. Its first row is relative to [`StepScalars::first_row`].
    pub(crate) fn micro_batch(&mut self, shape: StepShape, index: usize) -> Result<MicroBatch<'_>> {
        let StepShape { global_rows, partition, .. } = shape;
        let positions = partition.micro_batch(global_rows, index);
        let rows = match &mut self.rows {
            Rows::Host(rows) => rows.micro_batch(index)?.rows,
            Rows::Device(rows) => {
                let start = partition.n_own_rows_before(global_rows, index);
                rows.batch(start..start + positions.len())?
            }
        };
        Ok(MicroBatch { rows, first_row: positions.start - partition.first_own_row(global_rows) })
    }
}

/// Memory for the [`StepScalars`] of a step.
#[derive(Debug)]
pub(crate) struct ScalarsMemory {
    scalars: Tensor,
    /// The scalars with the learning rate of each schedule of a group, one after the other.
    groups: Option<Tensor>,
}

impl ScalarsMemory {
    /// Allocates the memory on `device`.
    ///
    /// - `n_schedules`: groups that have a schedule
    pub(crate) fn new(n_schedules: usize, device: Device) -> Result<Self, KernelError> {
        let zeros =
            |n: usize| Tensor::zeros_for(MemoryUse::Data, &[n * STEP_SCALARS_LEN], DType::F64, device);
        let groups = (n_schedules > 0).then(|| zeros(n_schedules)).transpose()?;
        Ok(ScalarsMemory { scalars: zeros(1)?, groups })
    }

    /// Writes the scalars of the groups with these learning rates. Returns those of the step, to be written by its first operation.
    pub(crate) fn begin(
        &mut self,
        scalars: StepScalars,
        group_lrs: &[f64],
    ) -> Result<ScalarsOutput<'_>, KernelError> {
        for (n, &lr) in group_lrs.iter().enumerate() {
            let Some(groups) = &mut self.groups else { continue };
            let to = groups.view_mut().range(n * STEP_SCALARS_LEN, (n + 1) * STEP_SCALARS_LEN)?;
            ops::begin_step(Some(ScalarsOutput { scalars: StepScalars { lr, ..scalars }, to }), None)?;
        }
        Ok(ScalarsOutput { scalars, to: self.scalars.view_mut() })
    }

    /// The scalars of the step.
    pub(crate) fn view(&self) -> TensorRef<'_> {
        self.scalars.view()
    }

    /// The scalars of the groups that have a schedule.
    pub(crate) fn group_scalars(&self) -> Option<TensorRef<'_>> {
        self.groups.as_ref().map(Tensor::view)
    }
}
