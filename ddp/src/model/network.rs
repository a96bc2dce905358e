//! A model: a plan of layers, its parameters and all buffers, allocated once; a step allocates nothing.
//!
//! The passes are in [`super::forward`] and [`super::backward`].

use std::ops::Range;

use ddp_kernels::cuda::{BesideMatmuls, Gpu};
use ddp_kernels::{AsView, DType, Device, IntoDevice, KernelError, Tensor, TensorMut, TensorRef, ops};

use super::buffers::Buffers;
use super::error::ModelError;
use super::file::ModelFile;
use super::layer::{BufferSpec, Layer, LayerKind, Sizes};
use super::layout::{ParamLayout, Statistic};
use super::plan::{CONVERTED, FlatFormats, Plan, Value};
use super::registered::Registered;
use super::weights::WeightsMut;
use super::{ModelSpec, init, layers};
use crate::config::WeightInit;
use crate::config::precision::Precision;

type Result<T, E = KernelError> = std::result::Result<T, E>;

/// A model with its weights and the buffers of a pass over at most `max_rows` rows.
#[derive(Debug)]
#[doc(alias("Module"))]
pub struct Network {
    pub(super) plan: Plan,
    pub(super) layout: ParamLayout,
    pub(super) buffers: Buffers<Tensor>,
    pub(super) registered: Registered,
    /// Whether all master weights are up to date, not only the shards that this rank updates.
    has_whole_weights: bool,
    /// Rows of the last forward pass.
    pub(super) forward_rows: usize,
    /// Gradients of weights beside those of inputs, on one GPU.
    pub(super) beside: Option<BesideMatmuls>,
    /// The step by which a loop without a trainer draws its next masks of dropout.
    pub(super) next_dropout_step: u64,
}

impl Network {
    /// The model of `spec` with zero weights, and buffers for passes over up to `max_rows` rows.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`], or out of memory.
    pub fn new(spec: ModelSpec, max_rows: usize, device: Device, precision: Precision) -> Result<Self> {
        let layout = ParamLayout::new(&spec);
        Self::with_layout(spec, layout, max_rows, device, precision)
    }

    /// Same as [`Network::new`], with this layout of `spec`.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`], or out of memory.
    #[doc(hidden)]
    pub fn with_layout(
        spec: ModelSpec,
        layout: ParamLayout,
        max_rows: usize,
        device: Device,
        precision: Precision,
    ) -> Result<Self> {
        let sizes = Sizes { max_rows, device, precision };
        Self::from_parts(layers::from_spec(&spec), layout, spec.n_features(), sizes)
    }

    /// A model of these layers in forward order with zero weights, on rows of `n_features`; `layout` must be made of the same layers
    /// ([`ParamLayout::from_layers`]).
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`], or out of memory.
    ///
    /// # Panics
    /// If there is no layer, skip connections do not end correctly, or two registered buffers have the same name.
    #[doc(hidden)]
    pub fn from_parts(
        layers: Vec<Box<dyn Layer>>,
        layout: ParamLayout,
        n_features: usize,
        sizes: Sizes,
    ) -> Result<Self> {
        sizes.precision.ensure_on(sizes.device)?;
        let mut plan = Plan::new(layers, &layout, n_features, sizes, false);
        plan.prepare(&layout)?;
        let mut make =
            |buffer: &BufferSpec| Tensor::zeros_for(buffer.kind, &buffer.dims, buffer.dtype, sizes.device);
        let buffers = Buffers::make(&plan, layout.flat_len(), &mut make)?;
        let registered = Registered::new(plan.steps.iter().map(|step| &*step.layer), sizes)?;
        Ok(Network {
            plan,
            layout,
            buffers,
            registered,
            forward_rows: 0,
            beside: None,
            next_dropout_step: 0,
            has_whole_weights: true,
        })
    }

    /// A model of these layers in forward order, on rows of `n_features`, [initialized](Network::initialize) from `seed`:
    /// [`Network::from_parts`] with the layout of a world in which every rank updates all weights.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`], or out of memory.
    ///
    /// # Panics
    /// In the cases of [`Network::from_parts`], and if two parameters have the same name but are not marked as shared.
    pub fn from_layers(
        layers: Vec<Box<dyn Layer>>,
        n_features: usize,
        sizes: Sizes,
        seed: u64,
    ) -> Result<Self> {
        let layout = ParamLayout::from_layers(&layers, 1);
        let mut network = Self::from_parts(layers, layout, n_features, sizes)?;
        network.initialize(seed)?;
        Ok(network)
    }

    /// Moves the model to another device: parameters and registered buffers are copied, all other memory is allocated anew.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`], or out of memory.
    ///
    /// Source: `torch.nn.Module.to`.
    pub fn to(self, device: impl IntoDevice) -> Result<Self> {
        let device = device.into_device()?;
        let Network { mut plan, layout, buffers, registered, .. } = self;
        let (sizes, n_features) = (Sizes { device, ..plan.sizes }, plan.n_features);
        let mut moved = Self::from_parts(plan.take_layers(), layout, n_features, sizes)?;
        moved.registered.copy_from(&registered)?;
        moved.set_weights(buffers.master_weights.view())?;
        Ok(moved)
    }

    /// Initializes the weights as PyTorch does, depending only on `seed`: see [`init`].
    ///
    /// # Errors
    /// None for the weights that a model makes itself.
    pub fn initialize(&mut self, seed: u64) -> Result<()> {
        self.initialize_as(WeightInit::Pytorch, seed)
    }

    /// Same as [`Network::initialize`], but with `weight_init` for the weights and biases of linear layers.
    ///
    /// # Errors
    /// None for the weights that a model makes itself.
    #[doc(hidden)]
    pub fn initialize_as(&mut self, weight_init: WeightInit, seed: u64) -> Result<()> {
        let weights = &mut self.buffers.master_weights;
        match weights.dtype() {
            DType::F32 => init::initialize(&self.layout, weights, weight_init, seed)?,
            // The drawn values are the same in every precision.
            _ => {
                let mut drawn = Tensor::zeros(weights.dims(), DType::F32, weights.device())?;
                init::initialize(&self.layout, &mut drawn, weight_init, seed)?;
                ops::convert(drawn.view(), weights.view_mut())?;
            }
        }
        self.refresh_compute_weights(0..self.layout.flat_len())
    }

    /// Number of elements of all parameters.
    pub fn n_parameters(&self) -> usize {
        self.layout.n_params()
    }

    /// Freezes parameters: optimizer steps do not change them, and their gradients in [`GradientSums`](super::GradientSums) are 0. Call it before
    /// creating the optimizer and the gradient sums, which are refused otherwise. The gradient norm that a trainer clips includes frozen
    /// parameters. Batch norm statistics are still updated.
    ///
    /// - `names`: a parameter such as `layers.0.weight`, a layer such as `layers.0`, or a pattern with `*` and `?`
    ///
    /// # Errors
    /// [`KernelError::Misuse`] if no parameter matches.
    #[doc(alias("requires_grad_"))]
    pub fn freeze(&mut self, names: &str) -> Result<()> {
        self.set_frozen("freeze", names, true)
    }

    /// Unfreezes parameters; see [`Network::freeze`].
    ///
    /// # Errors
    /// Same as [`Network::freeze`].
    pub fn unfreeze(&mut self, names: &str) -> Result<()> {
        self.set_frozen("unfreeze", names, false)
    }

    fn set_frozen(&mut self, op: &'static str, names: &str, is_frozen: bool) -> Result<()> {
        let pattern = glob::Pattern::new(names).ok();
        let is_meant = |name: &str| {
            let rest = name.strip_prefix(names);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                || pattern.as_ref().is_some_and(|pattern| pattern.matches(name))
        };
        if self.layout.freeze(is_meant, is_frozen) {
            return Ok(());
        }
        let all: Vec<_> = self.layout.forward_order().iter().map(|entry| &*entry.name).collect();
        let problem = format!("no parameter matches \"{names}\"");
        Err(KernelError::misuse(op, problem, format!("the model has {}", all.join(", "))))
    }

    /// Copies these weights, flat in the layout's order, from any device.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for a different number of elements; otherwise same as [`ops::copy`].
    pub fn set_weights(&mut self, weights: impl AsView) -> Result<()> {
        ops::copy(weights.as_view(), self.buffers.master_weights.view_mut())?;
        self.has_whole_weights = true;
        self.refresh_compute_weights(0..self.layout.flat_len())
    }

    /// Copies the weights of a file.
    ///
    /// # Errors
    /// See [`ModelFile::weights`].
    pub fn set_weights_of(&mut self, file: &ModelFile) -> Result<(), ModelError> {
        file.copy_to(&self.layout, self.buffers.master_weights.view_mut())?;
        self.has_whole_weights = true;
        Ok(self.refresh_compute_weights(0..self.layout.flat_len())?)
    }

    /// Rounds a flat range of the master weights to the compute weights. Required after anything but this rank's optimizer step
    /// has written them.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond the weights.
    #[doc(hidden)]
    pub fn refresh_compute_weights(&mut self, range: Range<usize>) -> Result<()> {
        let Buffers { master_weights, compute_weights, .. } = &mut self.buffers;
        match compute_weights {
            Some(compute_weights) => {
                let weights = master_weights.view().range(range.start, range.end)?;
                ops::cast(weights, compute_weights.view_mut().range(range.start, range.end)?)
            }
            None => Ok(()),
        }
    }

    /// The layers after fusion, in forward order.
    pub fn layers(&self) -> impl Iterator<Item = &dyn Layer> {
        self.plan.steps.iter().map(|step| &*step.layer)
    }

    /// Names and values of all registered buffers, in forward order.
    ///
    /// Source: `torch.nn.Module.named_buffers`.
    pub fn named_buffers(&self) -> Vec<(&str, &Tensor)> {
        self.registered.iter().collect()
    }

    /// Names and values of the registered buffers that checkpoints hold, in forward order.
    #[doc(hidden)]
    pub fn saved_buffers(&self) -> Vec<(&str, &Tensor)> {
        self.registered.saved().collect()
    }

    /// All registered buffers, in forward order.
    pub(crate) fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.registered.iter_mut()
    }

    /// The registered buffers that are means over all ranks, in forward order.
    pub(crate) fn averaged_buffers_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.registered.averaged_mut()
    }

    /// Maximum number of elements (f64) that a layer gathers from each rank at a time, [`Layer::exchanged_len`]; if above 0, the
    /// rows of a batch depend on each other.
    #[doc(hidden)]
    pub fn exchanged_len(&self) -> usize {
        self.layers().map(Layer::exchanged_len).max().unwrap_or(0)
    }

    /// The weights in the layout's order, followed by the [statistics](Layer::statistics), in host memory.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] from earlier work on a GPU.
    #[doc(hidden)]
    pub fn weights_and_statistics(&self) -> Result<Vec<f32>> {
        let mut values = self.weights().to_vec::<f32>()?;
        values.extend(self.statistics()?);
        Ok(values)
    }

    /// Sets what [`Network::weights_and_statistics`] returned.
    ///
    /// # Errors
    /// Same as [`Network::set_weights`].
    pub(crate) fn set_weights_and_statistics(&mut self, values: &[f32]) -> Result<()> {
        let (weights, mut rest) = values.split_at(self.layout.flat_len().min(values.len()));
        self.set_weights(TensorRef::from_slice(weights, &[weights.len()])?)?;
        for Statistic { name, len } in self.layout.statistics() {
            let (values, after) = rest.split_at(*len);
            let buffer = self.registered.saved_mut(name).expect("statistics are saved buffers");
            ops::copy(TensorRef::from_slice(values, &[*len])?, buffer.view_mut())?;
            rest = after;
        }
        Ok(())
    }

    /// The [statistics](Layer::statistics) of all layers in the layout's order, in host memory.
    #[doc(hidden)]
    pub fn statistics(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        for Statistic { name, .. } in self.layout.statistics() {
            let buffer = self.registered.saved().find(|(own, _)| own == name);
            values.extend(buffer.expect("statistics are saved buffers").1.to_vec::<f32>()?);
        }
        Ok(values)
    }

    /// Copies of all registered buffers, for [`Network::restore_buffers`].
    pub(crate) fn copy_of_buffers(&self) -> Result<Vec<Tensor>> {
        self.registered.iter().map(|(_, values)| values.try_clone()).collect()
    }

    /// Takes [`Network::copy_of_buffers`] again, to the same memory.
    pub(crate) fn copy_buffers_to(&self, copies: &mut [Tensor]) -> Result<()> {
        let pairs = self.registered.iter().zip(copies);
        pairs.into_iter().try_for_each(|((_, from), to)| ops::copy(from.view(), to.view_mut()))
    }

    /// Undoes the changes of the passes to the registered buffers since [`Network::copy_of_buffers`].
    pub(crate) fn restore_buffers(&mut self, copies: &[Tensor]) -> Result<()> {
        let pairs = self.registered.iter_mut().zip(copies);
        pairs.into_iter().try_for_each(|(to, from)| ops::copy(from.view(), to.view_mut()))
    }

    /// Whether a backward pass on a GPU computes the gradients of weights beside those of inputs: with the same bits, and only for a sink that
    /// [leaves finished gradients alone](super::GradientSink::leaves_finished). Not to be called within a capture.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`].
    pub(crate) fn set_beside(&mut self, is_beside: bool) -> Result<()> {
        self.beside = match (is_beside, self.beside.take(), self.device()) {
            (true, None, Device::Cuda(index)) => Some(BesideMatmuls::new(Gpu::get(index)?)?),
            (true, beside, _) => beside,
            (false, ..) => None,
        };
        Ok(())
    }

    /// Whether a backward pass computes the gradients of weights beside those of inputs, with [`BesideMatmuls::WORKSPACE_BYTES`].
    #[doc(hidden)]
    pub fn is_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// The formats of the flat buffers.
    #[doc(hidden)]
    pub fn flat_formats(&self) -> FlatFormats {
        self.plan.flat_formats()
    }

    /// Width of the outputs.
    pub fn n_outputs(&self) -> usize {
        self.plan.n_outputs
    }

    /// Width of the input.
    pub fn n_features(&self) -> usize {
        self.plan.n_features
    }

    /// Format of input that passes read without conversion; f32 input is always accepted, except by a model in f64.
    pub fn input_format(&self) -> DType {
        self.plan.short_input().unwrap_or(self.precision().master())
    }

    /// Number formats.
    pub fn precision(&self) -> Precision {
        self.plan.sizes.precision
    }

    /// Positions of the parameters.
    pub fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// Device of the model.
    pub fn device(&self) -> Device {
        self.plan.sizes.device
    }

    /// The flat buffer of master weights.
    ///
    /// # Panics
    /// In a trainer that [gathers weights in the format of matmuls](crate::train::trainer::TrainerOptions::gathers_short_weights), after a
    /// step and before `Trainer::gather_weights`.
    pub fn weights(&self) -> &Tensor {
        assert!(self.has_whole_weights, "each rank holds its shards of the weights: gather them first");
        &self.buffers.master_weights
    }

    /// The flat buffer of master weights, of which possibly only this rank's shards are up to date.
    pub(crate) fn own_weights(&self) -> &Tensor {
        &self.buffers.master_weights
    }

    /// Whether all master weights are up to date on this rank.
    pub(crate) fn has_whole_weights(&self) -> bool {
        self.has_whole_weights
    }

    /// Records whether all master weights are up to date on this rank.
    pub(crate) fn set_has_whole_weights(&mut self, has_whole_weights: bool) {
        self.has_whole_weights = has_whole_weights;
    }

    /// The flat buffers of weights, writable; what changes one must change the other alike.
    pub fn weights_mut(&mut self) -> WeightsMut<'_> {
        WeightsMut {
            master: self.buffers.master_weights.view_mut(),
            compute: self.buffers.compute_weights.as_mut().map(Tensor::view_mut),
        }
    }

    /// The flat buffers of weights: in f32, and in the format of matmuls where that is another.
    pub(crate) fn weight_tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let Buffers { master_weights, compute_weights, .. } = &mut self.buffers;
        std::iter::once(master_weights).chain(compute_weights)
    }

    /// Replaces the flat buffers of weights by tensors of the same lengths and types, which `make` makes of them; they hold all weights
    /// of the model.
    ///
    /// # Errors
    /// Errors of `make`.
    ///
    /// # Panics
    /// If a tensor has another length or type.
    #[doc(hidden)]
    pub fn replace_weights<E>(
        &mut self,
        mut make: impl FnMut(&Tensor) -> std::result::Result<Tensor, E>,
    ) -> std::result::Result<(), E> {
        for weights in self.weight_tensors_mut() {
            let made = make(weights)?;
            assert_eq!((made.numel(), made.dtype()), (weights.numel(), weights.dtype()), "weights");
            *weights = made;
        }
        self.has_whole_weights = true;
        Ok(())
    }

    /// Moves the flat buffers of weights into tensors made by `make` from a length and a type, once nothing reads the old
    /// buffers.
    ///
    /// # Errors
    /// Errors of `make` and of the copies.
    pub(crate) fn move_weights<E: From<KernelError>>(
        &mut self,
        mut make: impl FnMut(usize, DType) -> std::result::Result<Tensor, E>,
    ) -> std::result::Result<(), E> {
        let Buffers { master_weights, compute_weights, .. } = &mut self.buffers;
        for weights in std::iter::once(master_weights).chain(compute_weights) {
            let mut moved = make(weights.numel(), weights.dtype())?;
            ops::copy(weights.view(), moved.view_mut())?;
            *weights = moved;
        }
        Ok(())
    }

    /// Maximum number of rows of one pass.
    pub fn max_rows(&self) -> usize {
        self.plan.sizes.max_rows
    }

    /// The outputs of the last forward pass, `[B, n_outputs]`, as [`Network::forward`] returned them; no rows before the first.
    ///
    /// # Errors
    /// None: the buffer has the rows of every pass.
    pub fn outputs(&self) -> Result<TensorRef<'_>> {
        self.buffers.values[self.plan.output].view().rows(0, self.forward_rows)
    }

    /// The values that the last forward pass over `n_rows` rows left, in forward order, each with the layer that wrote it last: its
    /// description, and the module of its parameters or of the last ones before it. The converted input is left out, which not every
    /// pass writes.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond [`Network::max_rows`].
    pub(crate) fn layer_values(&self, n_rows: usize) -> Result<Vec<(String, TensorRef<'_>)>> {
        let mut named = Vec::new();
        let mut module = String::new();
        for (index, step) in self.plan.steps.iter().enumerate() {
            let words = step.layer.describe();
            let own = step.layer.parameters().first().and_then(|param| param.name.rsplit_once('.'));
            let name = match own {
                Some((own, _)) => {
                    own.clone_into(&mut module);
                    format!("{own} ({words})")
                }
                None if module.is_empty() => words,
                None => format!("{words} after {module}"),
            };
            let is_overwritten = self.plan.steps[index + 1..].iter().any(|later| later.y == step.y);
            if let (Value::Buffer(value), false) =
                (step.y, is_overwritten || step.layer.kind() == LayerKind::Cast)
            {
                named.push((name, self.buffers.values[value].view().rows(0, n_rows)?));
            }
        }
        Ok(named)
    }

    /// The outputs of the last forward pass, and the buffer for their gradient, from which [`Network::backward`] starts.
    ///
    /// # Errors
    /// None: the buffers have the rows of every pass.
    pub fn outputs_and_gradient(&mut self) -> Result<(TensorRef<'_>, TensorMut<'_>)> {
        let Network { plan, buffers: Buffers { values, gradients, .. }, forward_rows: n_rows, .. } = self;
        let outputs = values[plan.output].view().rows(0, *n_rows)?;
        Ok((outputs, head(&mut gradients[0], *n_rows, plan.n_outputs)?))
    }

    /// Number format of the gradient of the outputs.
    pub(super) fn output_gradient_dtype(&self) -> DType {
        self.buffers.gradients[0].dtype()
    }
}

/// The value at this place in the pass over `x`. Input that is not f32 is already converted.
pub(super) fn view<'a>(values: &'a [Tensor], value: Value, x: TensorRef<'a>) -> Result<TensorRef<'a>> {
    let (n_rows, _) = x.shape().rows_cols();
    match value {
        Value::Input => Ok(x),
        CONVERTED if matches!(x.dtype(), DType::BF16 | DType::F16) => Ok(x),
        Value::Buffer(index) => values[index].view().rows(0, n_rows),
    }
}

/// The first `rows · cols` elements as a matrix.
#[inline]
pub(super) fn head(tensor: &mut Tensor, rows: usize, cols: usize) -> Result<TensorMut<'_>> {
    tensor.view_mut().range(0, rows * cols)?.reshape(&[rows, cols])
}
