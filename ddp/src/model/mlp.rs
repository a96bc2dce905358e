//! The multilayer perceptron as a plan: all buffers are made once, a step allocates nothing.
//!
//! A hidden layer is `y = dropout(f(norm(x·Wᵀ + b)))`, plus `x` where it has a residual connection; the last layer is
//! linear. In front of them codes of categorical features become rows of tables ([`super::embedding`]). Here are the parts and the forward pass; the backward pass is in [`super::backward`].

use std::ops::Range;

use ddp_kernels::ops::{self, DropoutKey, LayerNormStats, LinearOutput};
use ddp_kernels::{Device, KernelError, Tensor, TensorMut, TensorRef};

use super::buffers::{BufferPlan, Buffers};
use super::embedding::Embeddings;
use super::layer_buffers::LayerBuffers;
use super::layout::{ParamKind, ParamLayout};
use super::spec::LAYER_NORM_EPS;
use super::{ModelSpec, init};
use crate::config::precision::Precision;

type Result<T> = std::result::Result<T, KernelError>;

/// The model with its weights and the buffers of a pass over at most `max_rows` rows.
#[derive(Debug)]
pub struct Mlp {
    pub(crate) spec: ModelSpec,
    pub(crate) precision: Precision,
    pub(crate) layout: ParamLayout,
    /// What is updated, f32.
    pub(crate) weights: Tensor,
    /// What products take, where that is another format; the update writes it too.
    pub(crate) working_copy: Option<Tensor>,
    pub(crate) embeddings: Option<Embeddings>,
    /// The first layer's input, where that is another than the model's: in the format of the activations, with rows of tables
    /// in the place of codes.
    pub(crate) first_x: Option<Tensor>,
    pub(crate) layers: Vec<LayerBuffers>,
    /// Two gradients of activations in turn, `[max_rows, widest layer]`; the first begins as that of the outputs.
    pub(crate) d: [Tensor; 2],
    /// Scratch of the products.
    pub(crate) workspace: Tensor,
    pub(crate) layer_ends: Vec<usize>,
    max_rows: usize,
}

/// How often each optimiser step and micro-batch draw other dropout masks, and for which rows.
#[derive(Debug, Clone, Copy)]
pub struct DropoutStep<'a> {
    /// The run's seed.
    pub seed: u64,
    /// Optimiser step, from 0.
    pub step: u64,
    /// Place of the first row in the global batch; with `scalars`, beyond the first row that they name.
    pub first_row: u64,
    /// [`ops::StepScalars`] on the device, which then say seed, step and first row.
    pub scalars: Option<TensorRef<'a>>,
}

impl DropoutStep<'_> {
    pub(crate) fn apply(self, x: TensorMut<'_>, p: f64, layer: usize) -> Result<()> {
        let DropoutStep { seed, step, first_row, scalars } = self;
        ops::dropout(x, p, DropoutKey { seed, step, layer: layer as u16, first_row }, scalars)
    }
}

impl Mlp {
    /// The model with zero weights, and buffers for passes over up to `max_rows` rows.
    ///
    /// # Errors
    /// As making tensors on `device`.
    pub fn new(spec: ModelSpec, max_rows: usize, device: Device, precision: Precision) -> Result<Self> {
        let layout = ParamLayout::new(&spec);
        Self::with_layout(spec, layout, max_rows, device, precision)
    }

    /// As [`Mlp::new`], with this layout of `spec`.
    ///
    /// # Errors
    /// As there.
    pub fn with_layout(
        spec: ModelSpec,
        layout: ParamLayout,
        max_rows: usize,
        device: Device,
        precision: Precision,
    ) -> Result<Self> {
        let plan = BufferPlan { spec: &spec, layout: &layout, max_rows, device, precision };
        let mut make = |kind, dims: &[usize], dtype| Tensor::zeros_for(kind, dims, dtype, device);
        let Buffers { weights, working_copy, first_x, layers, d, workspace } =
            Buffers::make(plan, &mut make)?;
        Ok(Mlp {
            weights,
            working_copy,
            first_x,
            embeddings: Embeddings::new(&layout, max_rows, device)?,
            layers,
            d,
            workspace,
            layer_ends: layout.layer_ends(),
            max_rows,
            precision,
            layout,
            spec,
        })
    }

    /// Draws the initial weights, which depend on `seed` and on nothing else: see [`init`].
    ///
    /// # Errors
    /// None for the weights that a model makes itself.
    pub fn initialize(&mut self, seed: u64) -> Result<()> {
        init::initialize(&self.layout, &mut self.weights, seed)?;
        self.refresh_working_copy(0..self.layout.flat_len())
    }

    /// Takes these weights, flat in the layout's order, on any device.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for another number of elements; those of the copy.
    pub fn set_weights(&mut self, weights: TensorRef<'_>) -> Result<()> {
        ops::copy(weights, self.weights.view_mut())?;
        self.refresh_working_copy(0..self.layout.flat_len())
    }

    /// Rounds the weights of a flat range to what products take, where they were written by anything but the optimiser's step on
    /// this rank.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond the weights.
    pub fn refresh_working_copy(&mut self, range: Range<usize>) -> Result<()> {
        match &mut self.working_copy {
            Some(copy) => {
                let weights = self.weights.view().range(range.start, range.end)?;
                ops::cast(weights, copy.view_mut().range(range.start, range.end)?)
            }
            None => Ok(()),
        }
    }

    /// Sizes and kinds of the layers.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Which number format is used for what.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Where the parameters lie.
    pub fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// Where it computes.
    pub fn device(&self) -> Device {
        self.weights.device()
    }

    /// The flat buffer of weights.
    pub fn weights(&self) -> &Tensor {
        &self.weights
    }

    /// The flat buffer of weights, writable, and the copy of it that must be kept alike, where there is one.
    pub fn weights_mut(&mut self) -> (&mut Tensor, Option<&mut Tensor>) {
        (&mut self.weights, self.working_copy.as_mut())
    }

    /// The most rows of one pass.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// The outputs of the last forward pass over `n_rows` rows, `[n_rows, n_outputs]`.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] beyond [`Mlp::max_rows`].
    pub fn outputs(&self, n_rows: usize) -> Result<TensorRef<'_>> {
        self.layers[self.layers.len() - 1].y.view().rows(0, n_rows)
    }

    /// The outputs as above, and the place for their gradient, where [`Mlp::backward`] expects it.
    ///
    /// # Errors
    /// As [`Mlp::outputs`].
    pub fn outputs_and_gradient(&mut self, n_rows: usize) -> Result<(TensorRef<'_>, TensorMut<'_>)> {
        let n_outputs = self.spec.n_outputs();
        let outputs = self.layers[self.layers.len() - 1].y.view().rows(0, n_rows)?;
        Ok((outputs, head(&mut self.d[0], n_rows, n_outputs)?))
    }

    /// Computes the outputs of `x: [B, features]`, whose last columns are the codes of the embeddings; with `dropout`, as in
    /// training.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more rows than [`Mlp::max_rows`], [`KernelError::Shape`] for other features; on the CPU
    /// [`KernelError::Code`] for a code that an embedding does not have, which on a GPU makes the row's outputs NaN.
    pub fn forward(&mut self, x: TensorRef<'_>, dropout: Option<DropoutStep<'_>>) -> Result<()> {
        let (n_rows, _) = x.shape().rows_cols();
        if let Some(first) = &mut self.first_x {
            let first = first.view_mut().rows(0, n_rows)?;
            match &self.embeddings {
                Some(embeddings) => embeddings.forward(x, &self.weights, first)?,
                None => ops::cast(x, first)?,
            }
        }
        for layer in 0..self.spec.n_layers() {
            self.forward_layer(layer, x)?;
            let hidden = self.spec.is_hidden(layer);
            let has_residual = self.spec.has_residual(layer);
            let (before, rest) = self.layers.split_at_mut(layer);
            let buffers = &mut rest[0];
            if let Some(activated) = &mut buffers.activated {
                ops::copy(buffers.y.view().rows(0, n_rows)?, activated.view_mut().rows(0, n_rows)?)?;
            }
            if let (true, Some(step)) = (hidden, dropout) {
                step.apply(buffers.y.view_mut().rows(0, n_rows)?, self.spec.dropout, layer)?;
            }
            if has_residual {
                let x = input(before, &self.first_x, x)?;
                ops::add_assign(buffers.y.view_mut().rows(0, n_rows)?, x)?;
            }
        }
        Ok(())
    }

    /// `f(norm(x·Wᵀ + b))` of one layer.
    fn forward_layer(&mut self, layer: usize, x: TensorRef<'_>) -> Result<()> {
        let (n_rows, _) = x.shape().rows_cols();
        let (activation, mode) = (self.spec.activation, self.precision.matmul_mode());
        let hidden = self.spec.is_hidden(layer);
        let (before, rest) = self.layers.split_at_mut(layer);
        let LayerBuffers { linear, normed, stats, relu_mask, is_masked, y, .. } = &mut rest[0];
        let x = input(before, &self.first_x, x)?;
        let products = self.working_copy.as_ref().unwrap_or(&self.weights);
        // The bias is added to sums that become the layer's format.
        let biases = if hidden { products } else { &self.weights };
        let find = |weights, kind| param(weights, &self.layout, layer, kind);
        let weight = find(products, ParamKind::Weight)?.expect("every layer has a weight");
        let bias = find(biases, ParamKind::Bias)?;
        let workspace = self.workspace.view_mut();
        let (Some((mean, rstd)), Some(normed)) = (stats, normed) else {
            let pre_activation = linear.as_mut().map(|t| t.view_mut().rows(0, n_rows)).transpose()?;
            let relu_mask = relu_mask.as_mut().map(Tensor::view_mut);
            let y = y.view_mut().rows(0, n_rows)?;
            let output = LinearOutput { y, pre_activation, relu_mask, workspace };
            *is_masked = ops::linear_forward(mode, x, weight, bias, hidden.then_some(activation), output)?;
            return Ok(());
        };
        let linear = linear.as_mut().expect("a norm keeps its input");
        let sum = linear.view_mut().rows(0, n_rows)?;
        let output = LinearOutput { y: sum, pre_activation: None, relu_mask: None, workspace };
        ops::linear_forward(mode, x, weight, bias, None, output)?;
        let gamma = find(&self.weights, ParamKind::NormWeight)?.expect("a norm's scale");
        let beta = find(&self.weights, ParamKind::NormBias)?.expect("a norm's shift");
        let (mean, rstd) = (mean.view_mut().rows(0, n_rows)?, rstd.view_mut().rows(0, n_rows)?);
        let out = normed.view_mut().rows(0, n_rows)?;
        let linear = linear.view().rows(0, n_rows)?;
        ops::layer_norm_forward(linear, gamma, beta, LAYER_NORM_EPS, out, LayerNormStats { mean, rstd })?;
        ops::activation_forward(activation, normed.view().rows(0, n_rows)?, y.view_mut().rows(0, n_rows)?)
    }
}

/// The input of the layer behind `before` in the last forward pass over `x`, in the format of products.
#[inline]
pub(crate) fn input<'a>(
    before: &'a [LayerBuffers],
    first_x: &'a Option<Tensor>,
    x: TensorRef<'a>,
) -> Result<TensorRef<'a>> {
    let (n_rows, _) = x.shape().rows_cols();
    match (before.last(), first_x) {
        (Some(previous), _) => previous.y.view().rows(0, n_rows),
        (None, Some(first)) => first.view().rows(0, n_rows),
        (None, None) => Ok(x),
    }
}

/// The first `rows · cols` elements as a matrix.
#[inline]
pub(crate) fn head(tensor: &mut Tensor, rows: usize, cols: usize) -> Result<TensorMut<'_>> {
    tensor.view_mut().range(0, rows * cols)?.reshape(&[rows, cols])
}

/// A parameter's weights, if the model has it.
pub(crate) fn param<'a>(
    weights: &'a Tensor,
    layout: &ParamLayout,
    layer: usize,
    kind: ParamKind,
) -> Result<Option<TensorRef<'a>>> {
    layout
        .find(layer, kind)
        .map(|slot| weights.view().range(slot.start, slot.range().end)?.reshape(&slot.dims))
        .transpose()
}
