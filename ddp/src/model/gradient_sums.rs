//! Loss and gradients of a training loop without a trainer: sums over micro-batches and ranks, whose means a step takes.

use std::ops::Range;

use ddp_kernels::ops::{self, LossSums, Pattern, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorRef};

use super::backward::LocalGradients;
use super::loss_head::LossHead;
use super::network::Network;
use super::param::ParamEntry;
use super::pass::DropoutStep;
use super::pass_rows::{MICRO_BATCH_BITS, PassRows, RowsOfStep, check_weights};
use crate::config::precision::Precision;

/// The sums of losses and of gradients since the last step, flat in the layout of the model.
///
/// [`Network::loss_and_gradients`] adds the rows of a micro-batch, [`GradientSums::all_reduce`] adds the sums of the other ranks, and
/// [`Optimizer::step`](crate::optim::Optimizer::step) updates by their mean and begins anew. So a step is the same, however its rows are
/// divided. On several ranks a step without `all_reduce` is an error, unless each trains a model of its own:
/// [`GradientSums::without_other_ranks`].
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
    /// Factor of clipping, once the sums were clipped.
    factor: Option<f64>,
    /// Passes since the last step.
    n_passes: u64,
    /// Whether the sums are those of all ranks.
    is_reduced: bool,
    /// Ranks of which each has a share of the rows of this step, and those among which a loader has divided them.
    n_ranks: usize,
    n_divided: usize,
    n_steps: u64,
    /// The step by which the masks of dropout are drawn.
    dropout_step: u64,
    seed: u64,
    /// [`ParamLayout::identity`](super::ParamLayout) of the model, and its parameters in forward order.
    layout: u64,
    params: Vec<ParamEntry>,
    precision: Precision,
    loss_scale: Option<f64>,
    takes_non_finite: bool,
    /// Whether the gradients of this step are known to be finite.
    is_finite: bool,
    is_of_one_rank: bool,
    /// Reductions so far, and a fingerprint of the weights before the last step that compares them.
    n_reductions: u64,
    weights: Option<i64>,
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
            factor: None,
            n_passes: 0,
            is_reduced: false,
            n_ranks: 1,
            n_divided: 1,
            n_steps: 0,
            dropout_step: 0,
            seed: 0,
            layout: model.layout().identity(),
            params: model.layout().forward_order().into_iter().cloned().collect(),
            precision: model.precision(),
            loss_scale: None,
            takes_non_finite: false,
            is_finite: false,
            is_of_one_rank: false,
            n_reductions: 0,
            weights: None,
        })
    }

    /// Multiplies the losses by `scale` while gradients are computed, which f16 needs so that small gradients are not 0; the mean
    /// gradient is the same. If gradients overflow, the step is an error, and a smaller scale the way out.
    ///
    /// # Panics
    /// If `scale` is not a finite number above 0.
    ///
    /// Source: `torch.amp.GradScaler`.
    #[must_use]
    pub fn with_loss_scale(self, scale: f64) -> Self {
        assert!(scale > 0.0 && scale.is_finite(), "a loss scale is a finite number above 0");
        let unit = self.unit / self.loss_scale.unwrap_or(1.0) * scale;
        GradientSums { loss_scale: Some(scale), unit, ..self }
    }

    /// Lets a step take losses and gradients that are NaN or infinite, which is an error otherwise.
    #[must_use]
    pub fn allow_non_finite(self) -> Self {
        GradientSums { takes_non_finite: true, ..self }
    }

    /// Lets each rank train a model of its own on its share of the rows: without this, a step on rows of a loader of several ranks is
    /// an error unless the sums were reduced.
    #[must_use]
    pub fn without_other_ranks(self) -> Self {
        GradientSums { is_of_one_rank: true, ..self }
    }

    /// Takes the masks of dropout of the steps from `n_steps` on, where a loop is resumed after as many.
    #[must_use]
    pub fn at_step(self, n_steps: u64) -> Self {
        GradientSums { n_steps, ..self }
    }

    /// Takes the masks of dropout from this seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        GradientSums { seed, ..self }
    }

    /// Values that all ranks must hold alike in this reduction, by name; None in most steps.
    pub(crate) fn held_alike(&self) -> Option<[(String, String); 3]> {
        is_compared(self.n_reductions).then(|| {
            let model = format!(
                "{:016x} (a hash of the names and shapes of its parameters, and of what is frozen)",
                self.layout
            );
            let precision = self.precision.name().to_owned();
            let unit = format!("{:e} (1 / `Sizes::max_rows` of the model, times the loss scale)", self.unit);
            [
                ("model".to_owned(), model),
                ("precision".to_owned(), precision),
                ("unit of gradients".to_owned(), unit),
            ]
        })
    }

    /// A fingerprint of the weights before a step that [`GradientSums::held_alike`] compares, on a rank with rows.
    pub(crate) fn weights_before(&self) -> Option<i64> {
        self.weights
    }

    /// Begins a reduction over the ranks: the flat gradient and the sums of the losses, zero on a rank that has added no rows since the
    /// last step. No rows can be added before the next step.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] if the sums were reduced or clipped since the last step; [`KernelError::Cuda`] from earlier work on a GPU.
    pub(crate) fn begin_reduction(&mut self, world_size: usize) -> Result<[&mut Tensor; 2], KernelError> {
        const OP: &str = "all_reduce";
        if self.n_divided > 1 && self.n_divided != world_size {
            let problem = format!(
                "the rows are divided among {} ranks, and this world has {world_size}",
                self.n_divided
            );
            return Err(KernelError::misuse(OP, problem, "reduce over the world of the loader"));
        }
        if self.is_reduced {
            let remedy = "gradients are reduced over the ranks once per step, after its last micro-batch";
            return Err(KernelError::misuse(OP, "the sums were reduced since the last step", remedy));
        }
        if self.factor.is_some() {
            let problem = "the sums were clipped before they were reduced, each rank's by its own gradients";
            return Err(KernelError::misuse(
                OP,
                problem,
                "call `clip_norm` and `clip_value` after `all_reduce`",
            ));
        }
        self.is_reduced = true;
        self.n_reductions += 1;
        self.weights = None;
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
    #[doc(alias("grad_norm"))]
    pub fn norm(&mut self) -> Result<f64, KernelError> {
        let scale = self.scale()?;
        if scale == 0.0 {
            return Ok(0.0);
        }
        ops::sum_of_squares(self.flat.view(), self.squares.view_mut(), false)?;
        Ok(self.squares.item::<f64>()?.sqrt() * scale)
    }

    /// Scales the mean gradient down to the norm `max_norm` if its norm is larger; returns the norm before. After
    /// [`GradientSums::all_reduce`].
    ///
    /// # Errors
    /// [`KernelError::Misuse`] unless `max_norm` is above 0; same as [`GradientSums::norm`].
    ///
    /// Source: `torch.nn.utils.clip_grad_norm_`.
    #[doc(alias("clip_grad_norm_"))]
    pub fn clip_norm(&mut self, max_norm: f64) -> Result<f64, KernelError> {
        if max_norm.is_nan() || max_norm <= 0.0 {
            let problem = format!("a largest norm of {max_norm}");
            return Err(KernelError::misuse("clip_norm", problem, "a norm above 0, such as 1.0"));
        }
        let norm = self.finite_norm("clip_norm")?;
        // A step that is to take infinite gradients takes them.
        let factor = if norm.is_finite() { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        self.factor = Some(self.factor.unwrap_or(1.0) * factor);
        Ok(norm)
    }

    /// Limits each element of the mean gradient to `-limit..=limit`. After [`GradientSums::all_reduce`].
    ///
    /// # Errors
    /// [`KernelError::Misuse`] unless `limit` is above 0; [`KernelError::Cuda`] from earlier work on a GPU.
    ///
    /// Source: `torch.nn.utils.clip_grad_value_`.
    #[doc(alias("clip_grad_value_"))]
    pub fn clip_value(&mut self, limit: f64) -> Result<(), KernelError> {
        if limit.is_nan() || limit <= 0.0 {
            let problem = format!("a largest value of {limit}");
            return Err(KernelError::misuse("clip_value", problem, "a value above 0, such as 1.0"));
        }
        self.finite_norm("clip_value")?;
        let scale = self.scale()?;
        if scale > 0.0 {
            let limit = limit / scale;
            self.flat = self.flat.clamp(-limit, limit)?;
        }
        // From now on no rank may add rows of its own.
        self.factor.get_or_insert(1.0);
        Ok(())
    }

    /// [`GradientSums::norm`], which must be finite unless the program allows others.
    fn finite_norm(&mut self, op: &'static str) -> Result<f64, KernelError> {
        if self.n_passes == 0 && !self.is_reduced {
            return self.norm();
        }
        let norm = self.norm()?;
        self.is_finite = norm.is_finite();
        if self.is_finite || self.takes_non_finite {
            return Ok(norm);
        }
        let (problem, remedy) = match self.loss_scale {
            Some(scale) => (
                format!(
                    "the norm of the gradient is {norm} at a loss scale of {scale}; the weights are unchanged"
                ),
                "a smaller scale, or Precision::Bf16, which needs none; `grads.reset()` leaves these rows out",
            ),
            None => (
                format!("the norm of the gradient is {norm}; the weights are unchanged"),
                "look for a square root or logarithm at 0, or take a smaller learning rate; `grads.reset()` leaves these rows out, and \
                 `GradientSums::allow_non_finite` takes such steps",
            ),
        };
        Err(KernelError::misuse(op, problem, remedy))
    }

    /// The mean gradients of the parameters, each in its shape, with the names that [`Network::named_parameters`] has.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] from earlier work on a GPU.
    pub fn named(&self) -> Result<Vec<(String, Tensor)>, KernelError> {
        let scale = self.scale()?;
        let gradient = |entry: &ParamEntry| Ok((entry.name.clone(), self.gradient_of(entry, scale)?));
        self.params.iter().map(gradient).collect()
    }

    /// The mean gradient of the parameter of this name, in its shape.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for a name that is no parameter of the model; [`KernelError::Cuda`] from earlier work on a GPU.
    pub fn get(&self, name: &str) -> Result<Tensor, KernelError> {
        let Some(entry) = self.params.iter().find(|entry| entry.name == name) else {
            let names = self.params.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(KernelError::misuse(
                "get",
                format!("no parameter {name}"),
                format!("one of {names}"),
            ));
        };
        self.gradient_of(entry, self.scale()?)
    }

    fn gradient_of(&self, entry: &ParamEntry, scale: f64) -> Result<Tensor, KernelError> {
        let gradient = self.flat.view().range(entry.start, entry.range().end)?;
        let gradient = if self.n_passes > 0 || self.is_reduced {
            gradient.mul(scale)?
        } else {
            gradient.to_tensor()?.zeros_like()?
        };
        gradient.into_shape(&entry.dims)
    }

    /// The gradient of the mean loss, flat as [`Network::weights`], zeros between parameters and without rows. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] from earlier work on a GPU.
    pub fn mean(&self) -> Result<Tensor, KernelError> {
        if self.n_passes > 0 || self.is_reduced {
            self.flat.mul(self.scale()?)
        } else {
            self.flat.zeros_like()
        }
    }

    /// Forgets the rows that were added since the last step.
    #[doc(alias("zero_grad"))]
    pub fn reset(&mut self) {
        (self.factor, self.n_passes, self.is_reduced) = (None, 0, false);
        (self.n_ranks, self.n_divided) = (1, 1);
        (self.weights, self.is_finite) = (None, false);
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
        Ok(self.scale_by(self.loss_sums()?))
    }

    fn scale_by(&self, LossSums { weight, .. }: LossSums) -> f64 {
        if weight > 0.0 { self.factor.unwrap_or(1.0) / (self.unit * weight) } else { 0.0 }
    }

    /// [`GradientSums::scale`] for a step of `model`.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for sums of another model, for a share of the rows of several ranks, and for losses or gradients that are
    /// not finite.
    pub(crate) fn scale_of_step(&mut self, model: &Network) -> Result<f64, KernelError> {
        const OP: &str = "step";
        self.check_model(OP, model)?;
        if self.n_ranks > 1 && !self.is_reduced && !self.is_of_one_rank {
            let problem = format!(
                "the rows are a share of those of {} ranks, whose gradients are not reduced",
                self.n_ranks
            );
            let remedy = "call `grads.all_reduce(world)` before the step; `GradientSums::without_other_ranks` trains a model per rank";
            return Err(KernelError::misuse(OP, problem, remedy));
        }
        let sums = self.loss_sums()?;
        let (scale, loss) = (self.scale_by(sums), sums.mean());
        if self.takes_non_finite || sums.weight <= 0.0 {
            return Ok(scale);
        }
        if !loss.is_finite() {
            let problem = format!("the mean loss is {loss}; the weights are unchanged");
            let remedy = "look for NaN in features and targets, or take a smaller learning rate; `grads.reset()` leaves these rows out, and \
                          `GradientSums::allow_non_finite` takes such steps";
            return Err(KernelError::misuse(OP, problem, remedy));
        }
        if !self.is_finite {
            self.finite_norm(OP)?;
        }
        Ok(scale)
    }

    /// Checks that the sums are those of a model with these parameters.
    fn check_model(&self, op: &'static str, model: &Network) -> Result<(), KernelError> {
        if self.layout == model.layout().identity() && self.precision == model.precision() {
            return Ok(());
        }
        let problem =
            "the gradient sums belong to a model with other parameters, or with other frozen parameters";
        let remedy = "create them with `GradientSums::for_model(&model)`, after `freeze` and `unfreeze`";
        Err(KernelError::misuse(op, problem, remedy))
    }

    /// Begins the sums of the next step.
    pub(crate) fn begin_step(&mut self) {
        self.reset();
        self.n_steps += 1;
    }
}

/// Whether the ranks compare what they hold in the reduction after `n` others: in the first one, and in ever fewer.
fn is_compared(n: u64) -> bool {
    (n + 1).is_power_of_two()
}

/// A fingerprint of this rank's weights, on the host; None in f64.
pub(crate) fn fingerprint_of(model: &Network) -> Result<Option<i64>, KernelError> {
    let weights = model.own_weights();
    if weights.dtype() != DType::F32 {
        return Ok(None);
    }
    let mut sum = Tensor::zeros(&[1], DType::I64, weights.device())?;
    ops::fingerprint(weights.view(), sum.view_mut())?;
    Ok(Some(sum.item()?))
}

impl Network {
    /// The mean loss of these rows in evaluation, without dropout and without gradients. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError`] of forward and loss; [`KernelError::Misuse`] for weights of rows that are negative.
    pub fn loss<'a>(&mut self, rows: impl Into<PassRows<'a>>, loss: &LossHead) -> Result<f64, KernelError> {
        let PassRows { rows: RowsOfStep { x, y, weights, .. }, .. } = rows.into();
        weights.map_or(Ok(()), check_weights)?;
        let mut sums = Tensor::zeros_for(MemoryUse::Workspace, &[STEP_SUMS_LEN], DType::F32, self.device())?;
        let outputs = self.forward(x)?;
        let output = SumsOutput { tail: sums.view_mut(), accumulate: false, extra: None };
        loss.apply(outputs, y, weights, 1.0, None, output)?;
        self.with_right_labels(LossSums::load(&sums.to_vec::<f32>()?).mean(), y, loss)
    }

    /// The mean loss, unless it is NaN for a label that is not there, which a kernel on a GPU can't say, or negative for a target that the loss
    /// does not take.
    pub(super) fn with_right_labels(
        &self,
        mean: f64,
        y: TensorRef<'_>,
        loss: &LossHead,
    ) -> Result<f64, KernelError> {
        if mean.is_nan() && y.dtype() == DType::I64 && y.device() != Device::Cpu {
            loss.check_labels(y, self.n_outputs())?;
        }
        if mean < 0.0 {
            loss.check_targets(y)?;
        }
        Ok(mean)
    }

    /// Adds the losses of these rows and their gradients to `grads`, in a training pass; returns the mean loss of all rows
    /// added since the last step. Waits for the device.
    ///
    /// The rows of one pass are one micro-batch: several calls before a step accumulate. Masks of dropout differ between steps,
    /// micro-batches and ranks; for [`RowsOfStep`] they follow from its position in the step. Gradients in f16 need [`GradientSums::with_loss_scale`]; layers with statistics over rows compute them
    /// over this rank's rows.
    ///
    /// # Errors
    /// [`KernelError`] of forward, loss or backward; [`KernelError::Misuse`] for sums of another model, for sums that were reduced over the
    /// ranks or clipped since the last step, for f16 without a loss scale, and for weights of rows that are negative.
    #[doc(alias("backward"))]
    pub fn loss_and_gradients<'a>(
        &mut self,
        rows: impl Into<PassRows<'a>>,
        loss: &LossHead,
        grads: &mut GradientSums,
    ) -> Result<f64, KernelError> {
        const OP: &str = "loss_and_gradients";
        grads.check_model(OP, self)?;
        if grads.is_reduced || grads.factor.is_some() {
            let done = if grads.is_reduced { "reduced over the ranks" } else { "clipped" };
            let problem =
                format!("the sums were {done} since the last step: these rows would be missing there");
            return Err(KernelError::misuse(OP, problem, "add all rows of a step first, or take the step"));
        }
        if grads.precision == Precision::F16 && grads.loss_scale.is_none() {
            let problem = "gradients in f16 without a loss scale: small ones would be 0";
            let remedy = "`GradientSums::for_model(&model)?.with_loss_scale(1024.0)`, a `Trainer` with `loss_scaling`, or Precision::Bf16";
            return Err(KernelError::misuse(OP, problem, remedy));
        }
        let PassRows { rows: RowsOfStep { x, y, weights, first_row }, n_ranks, is_divided, is_placed } =
            rows.into();
        weights.map_or(Ok(()), check_weights)?;
        if grads.n_passes == 0 {
            // Also where the sums are made anew for each step.
            grads.dropout_step = grads.n_steps.max(self.next_dropout_step);
            self.next_dropout_step = grads.dropout_step + 1;
        }
        // Rows of a program's own do not say whether there are other ranks.
        let may_be_reduced = n_ranks > 1 || is_compared(grads.dropout_step);
        if may_be_reduced && grads.weights.is_none() && is_compared(grads.n_reductions) {
            grads.weights = fingerprint_of(self)?;
        }
        grads.n_ranks = grads.n_ranks.max(n_ranks);
        grads.n_divided = grads.n_divided.max(if is_divided { n_ranks } else { 1 });
        let GradientSums { seed, dropout_step: step, unit, n_passes, .. } = *grads;
        let first_row = first_row + if is_placed { 0 } else { n_passes << MICRO_BATCH_BITS };
        let dropout = Some(DropoutStep { seed, step, first_row, scalars: None });
        let accumulate = n_passes > 0;
        self.forward_with(x, dropout)?;
        let (outputs, d_outputs) = self.outputs_and_gradient()?;
        let sums = SumsOutput { tail: grads.sums.view_mut(), accumulate, extra: None };
        loss.apply(outputs, y, weights, unit, Some(d_outputs), sums)?;
        self.backward(x, dropout, accumulate, &mut LocalGradients(grads.flat.view_mut()))?;
        for frozen in self.layout().entries().iter().filter(|entry| entry.is_frozen) {
            let Range { start, end } = frozen.range();
            ops::fill(grads.flat.view_mut().range(start, end)?, Pattern::Line { start: 0.0, step: 0.0 })?;
        }
        grads.n_passes += 1;
        self.with_right_labels(grads.mean_loss()?, y, loss)
    }
}
