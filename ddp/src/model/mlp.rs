//! The multilayer perceptron as a plan: all buffers are made once, a step allocates nothing.
//!
//! A hidden layer is `y = dropout(f(norm(x·Wᵀ + b)))`, plus `x` where it has a residual connection; the last layer is
//! linear. The backward pass is written out: it walks the layers from the last to the first and hands each layer's
//! gradients over as they are finished.

use ddp_kernels::ops::{self, DropoutKey, LayerNormGrads, LayerNormStats, LinearOutput, SavedForBackward};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut, TensorRef};

use super::layout::{ParamKind, ParamLayout};
use super::spec::LAYER_NORM_EPS;
use super::{ModelSpec, init};

type Result<T> = std::result::Result<T, KernelError>;

/// Where the backward pass writes the gradients of the layers, and who is told as they are finished.
///
/// The passes of a step's earlier micro-batches and its last one differ in this alone.
pub trait GradientSink {
    /// What telling can end in.
    type Error: From<KernelError>;

    /// The gradients of the flat range `start..end`; they lie in one layer.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for a range that was finished already or reaches into another bucket.
    fn gradients(&mut self, start: usize, end: usize) -> std::result::Result<TensorMut<'_>, Self::Error>;

    /// All gradients before `end` are finished.
    ///
    /// # Errors
    /// Those of the collective that this may start.
    fn finished(&mut self, end: usize) -> std::result::Result<(), Self::Error>;

    /// Called between the parts of the computation, for collectives that need a push now and then.
    ///
    /// # Errors
    /// Those of the collectives under way.
    fn progress(&mut self) -> std::result::Result<(), Self::Error>;
}

/// The model with its weights and the buffers of a pass over at most `max_rows` rows.
#[derive(Debug)]
pub struct Mlp {
    spec: ModelSpec,
    layout: ParamLayout,
    weights: Tensor,
    layers: Vec<LayerBuffers>,
    /// Two gradients of activations in turn, `[max_rows, widest layer]`; the first begins as that of the outputs.
    d: [Tensor; 2],
    /// Scratch of the products.
    workspace: Tensor,
    layer_ends: Vec<usize>,
    max_rows: usize,
}

/// What a layer's forward pass leaves for the next layer and for the backward pass.
#[derive(Debug)]
struct LayerBuffers {
    /// `x·Wᵀ + b`, where a norm or the derivative of the activation needs it.
    linear: Option<Tensor>,
    /// The norm's output, where the derivative of the activation needs it.
    normed: Option<Tensor>,
    /// Mean and reciprocal deviation of the rows, where there is a norm.
    stats: Option<(Tensor, Tensor)>,
    /// The activation's output, where what follows it changes it and the derivative needs it.
    activated: Option<Tensor>,
    /// The layer's output.
    y: Tensor,
}

/// How often each optimiser step and micro-batch draw other dropout masks, and for which rows.
#[derive(Debug, Clone, Copy)]
pub struct DropoutStep {
    /// The run's seed.
    pub seed: u64,
    /// Optimiser step, from 0.
    pub step: u64,
    /// Place of the first row in the global batch.
    pub first_row: u64,
}

impl DropoutStep {
    fn key(self, layer: usize) -> DropoutKey {
        DropoutKey { seed: self.seed, step: self.step, layer: layer as u16, first_row: self.first_row }
    }
}

impl Mlp {
    /// The model with zero weights, and buffers for passes over up to `max_rows` rows.
    ///
    /// # Errors
    /// As making tensors on `device`.
    pub fn new(spec: ModelSpec, max_rows: usize, device: Device) -> Result<Self> {
        let layout = ParamLayout::new(&spec);
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device);
        let layers = (0..spec.n_layers())
            .map(|l| LayerBuffers::new(&spec, l, max_rows, zeros))
            .collect::<Result<_>>()?;
        let widest = spec.dims.iter().copied().max().unwrap_or(0);
        let workspace_len = (0..spec.n_layers())
            .map(|l| ops::linear_workspace_len(max_rows, spec.in_out(l).0, spec.in_out(l).1))
            .max()
            .unwrap_or(0);
        Ok(Mlp {
            weights: zeros(&[layout.flat_len()])?,
            layers,
            d: [zeros(&[max_rows * widest])?, zeros(&[max_rows * widest])?],
            workspace: zeros(&[workspace_len])?,
            layer_ends: layout.layer_ends(),
            max_rows,
            layout,
            spec,
        })
    }

    /// Draws the initial weights, which depend on `seed` and on nothing else: see [`init`].
    ///
    /// # Errors
    /// None for the weights that a model makes itself.
    pub fn initialize(&mut self, seed: u64) -> Result<()> {
        init::initialize(&self.layout, &mut self.weights, seed)
    }

    /// Sizes and kinds of the layers.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Where the parameters lie.
    pub fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// The flat buffer of weights.
    pub fn weights(&self) -> &Tensor {
        &self.weights
    }

    /// The flat buffer of weights, writable.
    pub fn weights_mut(&mut self) -> &mut Tensor {
        &mut self.weights
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

    /// Computes the outputs of `x: [B, features]`; with `dropout`, as in training.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more rows than [`Mlp::max_rows`], [`KernelError::Shape`] for other features.
    pub fn forward(&mut self, x: TensorRef<'_>, dropout: Option<DropoutStep>) -> Result<()> {
        let (n_rows, _) = x.shape().rows_cols();
        let activation = self.spec.activation;
        for layer in 0..self.spec.n_layers() {
            let (before, rest) = self.layers.split_at_mut(layer);
            let buffers = &mut rest[0];
            let x = match before.last() {
                Some(previous) => previous.y.view().rows(0, n_rows)?,
                None => x,
            };
            let weight = param(&self.weights, &self.layout, layer, ParamKind::Weight)?
                .expect("every layer has a weight");
            let bias = param(&self.weights, &self.layout, layer, ParamKind::Bias)?;
            let workspace = self.workspace.view_mut();
            let hidden = self.spec.is_hidden(layer);
            if !(hidden && self.spec.layer_norm) {
                let output = LinearOutput {
                    y: buffers.y.view_mut().rows(0, n_rows)?,
                    pre_activation: buffers
                        .linear
                        .as_mut()
                        .map(|t| t.view_mut().rows(0, n_rows))
                        .transpose()?,
                    workspace,
                };
                ops::linear_forward(x, weight, bias, hidden.then_some(activation), output)?;
            } else {
                let linear = buffers.linear.as_mut().expect("a norm keeps its input");
                let y = linear.view_mut().rows(0, n_rows)?;
                ops::linear_forward(
                    x,
                    weight,
                    bias,
                    None,
                    LinearOutput { y, pre_activation: None, workspace },
                )?;
                let gamma = param(&self.weights, &self.layout, layer, ParamKind::NormWeight)?
                    .expect("a norm's scale");
                let beta =
                    param(&self.weights, &self.layout, layer, ParamKind::NormBias)?.expect("a norm's shift");
                let (mean, rstd) = buffers.stats.as_mut().expect("a norm keeps its statistics");
                let stats = LayerNormStats {
                    mean: mean.view_mut().rows(0, n_rows)?,
                    rstd: rstd.view_mut().rows(0, n_rows)?,
                };
                let linear = linear.view().rows(0, n_rows)?;
                let normed = buffers.normed.as_mut().expect("a norm has an output");
                ops::layer_norm_forward(
                    linear,
                    gamma,
                    beta,
                    LAYER_NORM_EPS,
                    normed.view_mut().rows(0, n_rows)?,
                    stats,
                )?;
                let y = buffers.y.view_mut().rows(0, n_rows)?;
                ops::activation_forward(activation, normed.view().rows(0, n_rows)?, y)?;
            }
            if let Some(activated) = &mut buffers.activated {
                copy(buffers.y.view().rows(0, n_rows)?, activated.view_mut().rows(0, n_rows)?)?;
            }
            if let (true, Some(step)) = (hidden, dropout) {
                ops::dropout(buffers.y.view_mut().rows(0, n_rows)?, self.spec.dropout, step.key(layer))?;
            }
            if self.spec.has_residual(layer) {
                ops::add_assign(buffers.y.view_mut().rows(0, n_rows)?, x)?;
            }
        }
        Ok(())
    }

    /// Gradients of all parameters into `sink`, from that of the outputs that [`Mlp::outputs_and_gradient`] gave.
    ///
    /// - `x`: the same rows as in [`Mlp::forward`], with the same `dropout`
    /// - `accumulate`: add to what the sink's gradients hold
    ///
    /// # Errors
    /// Those of the sink and of the operations.
    pub fn backward<S: GradientSink>(
        &mut self,
        x: TensorRef<'_>,
        dropout: Option<DropoutStep>,
        accumulate: bool,
        sink: &mut S,
    ) -> std::result::Result<(), S::Error> {
        let (n_rows, _) = x.shape().rows_cols();
        for layer in (0..self.spec.n_layers()).rev() {
            let (_, out_features) = self.spec.in_out(layer);
            let d_range = 0..n_rows * out_features;
            if self.spec.has_residual(layer) {
                // The gradient reaches the layer's input also unchanged.
                let [d, d_x] = &mut self.d;
                copy(d.view().range(0, d_range.end)?, d_x.view_mut().range(0, d_range.end)?)?;
            }
            self.backward_to_linear(layer, n_rows, dropout, accumulate, sink)?;
            sink.progress()?;

            let (before, _) = self.layers.split_at(layer);
            let layer_x = match before.last() {
                Some(previous) => previous.y.view().rows(0, n_rows)?,
                None => x,
            };
            let d_y = self.d[0].view().range(0, d_range.end)?.reshape(&[n_rows, out_features])?;
            let slot = self.layout.find(layer, ParamKind::Weight).expect("every layer has a weight");
            let d_weight = sink.gradients(slot.start, slot.range().end)?.reshape(&slot.dims)?;
            ops::linear_backward_weight(d_y, layer_x, d_weight, accumulate)?;
            sink.finished(self.layer_ends[self.spec.n_layers() - 1 - layer])?;

            if layer > 0 {
                self.backward_to_input(layer, n_rows)?;
                self.d.swap(0, 1);
            }
            sink.progress()?;
        }
        Ok(())
    }

    /// Turns the gradient of layer `layer`'s output into that of `x·Wᵀ + b`, with the gradients of norm and bias.
    fn backward_to_linear<S: GradientSink>(
        &mut self,
        layer: usize,
        n_rows: usize,
        dropout: Option<DropoutStep>,
        accumulate: bool,
        sink: &mut S,
    ) -> std::result::Result<(), S::Error> {
        let (_, out_features) = self.spec.in_out(layer);
        let buffers = &self.layers[layer];
        let bias = self.layout.find(layer, ParamKind::Bias);
        let mut d = head(&mut self.d[0], n_rows, out_features)?;
        if !self.spec.is_hidden(layer) {
            if let Some(bias) = bias {
                let d_bias = sink.gradients(bias.start, bias.range().end)?;
                ops::bias_backward(d.as_ref(), d_bias, accumulate)?;
            }
            return Ok(());
        }
        if let Some(step) = dropout {
            ops::dropout(d.reborrow(), self.spec.dropout, step.key(layer))?;
        }
        let activation = self.spec.activation;
        let saved = match activation.saved_for_backward() {
            SavedForBackward::Output => buffers.activated.as_ref().unwrap_or(&buffers.y),
            SavedForBackward::Input => {
                buffers.normed.as_ref().or(buffers.linear.as_ref()).expect("kept for the derivative")
            }
        };
        let saved = saved.view().rows(0, n_rows)?;
        let (Some((mean, rstd)), Some(linear)) = (&buffers.stats, &buffers.linear) else {
            let d_bias = match bias {
                Some(bias) => Some(sink.gradients(bias.start, bias.range().end)?),
                None => None,
            };
            return Ok(ops::activation_backward(activation, saved, d, d_bias, accumulate)?);
        };
        ops::activation_backward(activation, saved, d.reborrow(), None, false)?;
        let gamma = self.layout.find(layer, ParamKind::NormWeight).expect("a norm's scale");
        let beta = self.layout.find(layer, ParamKind::NormBias).expect("a norm's shift");
        // Scale and shift stand side by side, each at an aligned place.
        let both = sink.gradients(gamma.start, beta.range().end)?;
        let (d_gamma, d_beta) = both.split_at(beta.start - gamma.start)?;
        let grads = LayerNormGrads { d: d.reborrow(), d_gamma: d_gamma.range(0, out_features)?, d_beta };
        let gamma =
            param(&self.weights, &self.layout, layer, ParamKind::NormWeight)?.expect("a norm's scale");
        let (mean, rstd) = (mean.view().rows(0, n_rows)?, rstd.view().rows(0, n_rows)?);
        ops::layer_norm_backward(linear.view().rows(0, n_rows)?, gamma, mean, rstd, grads, accumulate)?;
        if let Some(bias) = bias {
            let d_bias = sink.gradients(bias.start, bias.range().end)?;
            ops::bias_backward(d.as_ref(), d_bias, accumulate)?;
        }
        Ok(())
    }

    /// The gradient of layer `layer`'s input into the second gradient buffer.
    fn backward_to_input(&mut self, layer: usize, n_rows: usize) -> Result<()> {
        let (in_features, out_features) = self.spec.in_out(layer);
        let weight =
            param(&self.weights, &self.layout, layer, ParamKind::Weight)?.expect("every layer has a weight");
        let residual = self.spec.has_residual(layer);
        let [d, d_x] = &mut self.d;
        let d_y = d.view().range(0, n_rows * out_features)?.reshape(&[n_rows, out_features])?;
        let d_x = head(d_x, n_rows, in_features)?;
        if residual {
            ops::addmm(1.0, d_y, false, weight, false, 1.0, d_x)
        } else {
            ops::linear_backward_input(d_y, weight, d_x)
        }
    }
}

impl LayerBuffers {
    fn new(
        spec: &ModelSpec,
        layer: usize,
        max_rows: usize,
        zeros: impl Fn(&[usize]) -> Result<Tensor>,
    ) -> Result<Self> {
        let (_, out_features) = spec.in_out(layer);
        let make = |wanted: bool| {
            if wanted { zeros(&[max_rows, out_features]).map(Some) } else { Ok(None) }
        };
        let hidden = spec.is_hidden(layer);
        let norm = hidden && spec.layer_norm;
        let needs_input = hidden && spec.activation.saved_for_backward() == SavedForBackward::Input;
        let changed_later = hidden && (spec.dropout > 0.0 || spec.has_residual(layer));
        Ok(LayerBuffers {
            linear: make(norm || needs_input)?,
            normed: make(norm)?,
            stats: if norm { Some((zeros(&[max_rows])?, zeros(&[max_rows])?)) } else { None },
            activated: make(changed_later && !needs_input)?,
            y: zeros(&[max_rows, out_features])?,
        })
    }
}

/// The first `rows · cols` elements as a matrix.
fn head(tensor: &mut Tensor, rows: usize, cols: usize) -> Result<TensorMut<'_>> {
    tensor.view_mut().range(0, rows * cols)?.reshape(&[rows, cols])
}

/// A parameter's weights, if the model has it.
fn param<'a>(
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

fn copy(from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    const OP: &str = "copy";
    to.into_slice::<f32>(OP, "to")?.copy_from_slice(from.as_slice::<f32>(OP, "from")?);
    Ok(())
}
