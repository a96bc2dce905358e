//! Loss and gradients of a training loop without a trainer: sums over micro-batches and ranks, whose means a step takes.

use ddp_kernels::ops::{self, LossSums, Pattern, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor, TensorRef};

use super::backward::LocalGradients;
use super::loss_head::LossHead;
use super::network::Network;
use super::pass::DropoutStep;
use crate::data::loader::TensorBatch;

/// Rows of one pass: `(&x, &y)`, or a [`TensorBatch`].
#[derive(Debug, Clone, Copy)]
pub struct RowsOfStep<'a> {
    /// Features, `[B, n_features]`.
    pub x: TensorRef<'a>,
    /// Targets, `[B]` or `[B, K]`.
    pub y: TensorRef<'a>,
    /// Weights of the rows, `[B]` f32.
    pub weights: Option<TensorRef<'a>>,
    /// Place of the first row in the global batch, on which the masks of dropout depend.
    pub first_row: u64,
}

impl<'a> From<(&'a Tensor, &'a Tensor)> for RowsOfStep<'a> {
    fn from((x, y): (&'a Tensor, &'a Tensor)) -> Self {
        RowsOfStep { x: x.view(), y: y.view(), weights: None, first_row: 0 }
    }
}

impl<'a> From<&'a TensorBatch> for RowsOfStep<'a> {
    fn from(TensorBatch { x, y, weights, first_row, .. }: &'a TensorBatch) -> Self {
        RowsOfStep {
            x: x.view(),
            y: y.view(),
            weights: weights.as_ref().map(Tensor::view),
            first_row: *first_row as u64,
        }
    }
}

/// The sums of losses and of gradients since the last step, flat in the layout of the model.
///
/// [`Network::loss_and_gradients`] adds the rows of a micro-batch, [`GradientSums::all_reduce`] adds the sums of the other ranks, and
/// [`Optimizer::step`](crate::optim::Optimizer::step) updates by their mean and begins anew. So a step is the same, however its rows are
/// divided. Without `all_reduce`, each rank trains a model of its own.
///
/// ```
/// use ddp::nn::{GradientSums, LossHead, Precision, Sequential, Sizes};
/// use ddp::optim::{Optimizer, OptimizerConfig, OptimizerKind};
/// use ddp::prelude::*;
///
/// let sizes = Sizes { max_rows: 64, device: Device::Cpu, precision: Precision::F32 };
/// let mut model = Sequential::new(3).linear(1).build(sizes, 0)?;
/// let mut optimizer = Optimizer::for_model(&OptimizerConfig::new(OptimizerKind::AdamW, 0.1), &model)?;
/// let (loss, mut grads) = (LossHead::mse(), GradientSums::for_model(&model)?);
/// let x = Tensor::randn(&[64, 3], DType::F32, Device::Cpu, 1)?;
/// let y = x.sum(1)?.into_shape(&[64, 1])?;
/// let mut last = f64::NAN;
/// for _ in 0..200 {
///     last = model.loss_and_gradients((&x, &y), &loss, &mut grads)?;
///     grads.clip_norm(1.0)?;
///     optimizer.step(&mut model, &mut grads)?;
/// }
/// assert!(last < 1e-3, "{last}");
/// # Ok::<(), ddp::Error>(())
/// ```
#[derive(Debug)]
pub struct GradientSums {
    /// The gradient of the sum of losses, times `unit`.
    flat: Tensor,
    sums: Tensor,
    squares: Tensor,
    /// Keeps the sum of a micro-batch in the range of a mean.
    unit: f64,
    /// Factor of clipping.
    factor: f64,
    /// Passes since the last step.
    n_passes: u64,
    /// Whether the sums are those of all ranks.
    is_reduced: bool,
    n_steps: u64,
    seed: u64,
}

impl GradientSums {
    /// Sums without rows yet, for `model`; dropout masks are drawn from seed 0.
    ///
    /// # Errors
    /// Out of memory.
    pub fn for_model(model: &Network) -> Result<Self, KernelError> {
        let device = model.device();
        let zeros = |kind, len, dtype| Tensor::zeros_for(kind, &[len], dtype, device);
        Ok(GradientSums {
            flat: zeros(MemoryUse::Gradients, model.layout().flat_len(), model.precision().master())?,
            sums: zeros(MemoryUse::Workspace, STEP_SUMS_LEN, DType::F32)?,
            squares: zeros(MemoryUse::Workspace, 1, DType::F64)?,
            unit: 1.0 / model.max_rows().max(1) as f64,
            factor: 1.0,
            n_passes: 0,
            is_reduced: false,
            n_steps: 0,
            seed: 0,
        })
    }

    /// Takes the masks of dropout from this seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        GradientSums { seed, ..self }
    }

    /// Begins a reduction over the ranks: the flat gradient and the sums of the losses, zero on a rank that has added no rows since the
    /// last step. No rows can be added before the next step.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] from earlier work on a GPU.
    ///
    /// # Panics
    /// If the sums were reduced since the last step.
    pub(crate) fn begin_reduction(&mut self) -> Result<[&mut Tensor; 2], KernelError> {
        assert!(!self.is_reduced, "gradients are reduced over the ranks once per step");
        self.is_reduced = true;
        let mut both = [&mut self.flat, &mut self.sums];
        if self.n_passes == 0 {
            for sums in &mut both {
                ops::fill(sums.view_mut(), Pattern::Line { start: 0.0, step: 0.0 })?;
            }
        }
        Ok(both)
    }

    /// The mean of the losses added since the last step. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] from earlier work on a GPU.
    pub fn mean_loss(&self) -> Result<f64, KernelError> {
        Ok(self.loss_sums()?.mean())
    }

    fn loss_sums(&self) -> Result<LossSums, KernelError> {
        if self.n_passes == 0 && !self.is_reduced {
            return Ok(LossSums::default());
        }
        Ok(LossSums::load(&self.sums.to_vec::<f32>()?))
    }

    /// The Euclidean norm of the mean gradient. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] from earlier work on a GPU.
    pub fn norm(&mut self) -> Result<f64, KernelError> {
        ops::sum_of_squares(self.flat.view(), self.squares.view_mut(), false)?;
        Ok(self.squares.item::<f64>()?.sqrt() * self.scale()?)
    }

    /// Scales the mean gradient down to the norm `max_norm` if its norm is larger; returns the norm before. After
    /// [`GradientSums::all_reduce`].
    ///
    /// # Errors
    /// Same as [`GradientSums::norm`].
    ///
    /// Source: `torch.nn.utils.clip_grad_norm_`.
    #[doc(alias("clip_grad_norm_"))]
    pub fn clip_norm(&mut self, max_norm: f64) -> Result<f64, KernelError> {
        let norm = self.norm()?;
        self.factor *= (max_norm / (norm + 1e-6)).min(1.0);
        Ok(norm)
    }

    /// The gradient of the sum of losses, flat; [`GradientSums::scale`] times it is the gradient of the mean.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// The factor that turns [`GradientSums::flat`] into the gradient of the mean loss, clipped; 0 without rows. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] from earlier work on a GPU.
    pub fn scale(&self) -> Result<f64, KernelError> {
        let weight = self.loss_sums()?.weight;
        Ok(if weight > 0.0 { self.factor / (self.unit * weight) } else { 0.0 })
    }

    /// Begins the sums of the next step.
    pub(crate) fn begin_step(&mut self) {
        (self.factor, self.n_passes, self.is_reduced) = (1.0, 0, false);
        self.n_steps += 1;
    }
}

impl Network {
    /// Adds the losses of these rows and their gradients to `grads`, in a training pass; returns the mean loss of all rows
    /// added since the last step. Waits for the device.
    ///
    /// The rows of one pass are one micro-batch: several calls before a step accumulate. Gradients in f16 need the scaled losses of a trainer;
    /// layers with statistics over rows compute them over this rank's rows.
    ///
    /// # Errors
    /// [`KernelError`] of forward, loss or backward.
    ///
    /// # Panics
    /// If the sums were reduced over the ranks since the last step: these rows would be missing on the others.
    #[doc(alias("backward"))]
    pub fn loss_and_gradients<'a>(
        &mut self,
        rows: impl Into<RowsOfStep<'a>>,
        loss: &LossHead,
        grads: &mut GradientSums,
    ) -> Result<f64, KernelError> {
        assert!(!grads.is_reduced, "rows are added before `all_reduce`, or after the step");
        let RowsOfStep { x, y, weights, first_row } = rows.into();
        let GradientSums { seed, n_steps, unit, .. } = *grads;
        let dropout = Some(DropoutStep { seed, step: n_steps, first_row, scalars: None });
        let accumulate = grads.n_passes > 0;
        self.forward(x, dropout)?;
        let (outputs, d_outputs) = self.outputs_and_gradient()?;
        let sums = SumsOutput { tail: grads.sums.view_mut(), accumulate, extra: None };
        loss.apply(outputs, y, weights, unit, Some(d_outputs), sums)?;
        self.backward(x, dropout, accumulate, &mut LocalGradients(grads.flat.view_mut()))?;
        grads.n_passes += 1;
        grads.mean_loss()
    }
}
