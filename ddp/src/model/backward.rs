//! The backward pass, written out: it walks the layers from the last to the first and hands each layer's gradients over
//! as they are finished.
//!
//! On a GPU the gradient of a bias comes out of the product that gives the weight's, and where nothing but an activation
//! stands between two layers, its derivative is part of the product that gives the gradient of the layer's input.

use ddp_kernels::ops::{self, LayerNormGrads, ThroughActivation};
use ddp_kernels::{Device, KernelError, Tensor, TensorMut, TensorRef};

use super::layer_buffers::goes_through_product;
use super::layout::ParamKind;
use super::mlp::{DropoutStep, Mlp, head, input, param};

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

impl Mlp {
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
        dropout: Option<DropoutStep<'_>>,
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
                ops::copy(d.view().range(0, d_range.end)?, d_x.view_mut().range(0, d_range.end)?)?;
            }
            if !goes_through_product(&self.spec, layer, self.device()) {
                self.backward_to_linear(layer, n_rows, dropout, accumulate, sink)?;
            }
            sink.progress()?;

            self.backward_to_weight(layer, x, accumulate, sink)?;
            sink.finished(self.layer_ends[self.spec.n_layers() - 1 - layer])?;

            if layer > 0 || self.embeddings.is_some() {
                self.backward_to_input(layer, n_rows)?;
                self.d.swap(0, 1);
            }
            sink.progress()?;
        }
        self.backward_to_embeddings(x, accumulate, sink)
    }

    /// The gradient of the embeddings' tables from that of the first layer's input, where there are embeddings.
    fn backward_to_embeddings<S: GradientSink>(
        &mut self,
        x: TensorRef<'_>,
        accumulate: bool,
        sink: &mut S,
    ) -> std::result::Result<(), S::Error> {
        let Some(embeddings) = &mut self.embeddings else { return Ok(()) };
        let (n_rows, _) = x.shape().rows_cols();
        let width = self.spec.dims[0];
        let d_out = self.d[0].view().range(0, n_rows * width)?.reshape(&[n_rows, width])?;
        let d_tables = sink.gradients(embeddings.range().start, embeddings.range().end)?;
        embeddings.backward(x, d_out, d_tables, accumulate)?;
        sink.finished(self.layer_ends[self.spec.n_layers()])?;
        sink.progress()
    }

    /// Whether the gradients of biases come out of the products of the weights.
    fn sums_bias_in_product(&self) -> bool {
        matches!(self.device(), Device::Cuda(_))
    }

    /// Turns the gradient of layer `layer`'s output into that of `x·Wᵀ + b`, with the gradients of the norm, and on the CPU
    /// that of the bias.
    fn backward_to_linear<S: GradientSink>(
        &mut self,
        layer: usize,
        n_rows: usize,
        dropout: Option<DropoutStep<'_>>,
        accumulate: bool,
        sink: &mut S,
    ) -> std::result::Result<(), S::Error> {
        let (_, out_features) = self.spec.in_out(layer);
        let bias = self.layout.find(layer, ParamKind::Bias);
        let bias = bias.filter(|_| !self.sums_bias_in_product()).map(|slot| slot.range());
        let [d, _] = &mut self.d;
        let mut d = head(d, n_rows, out_features)?;
        if !self.spec.is_hidden(layer) {
            if let Some(bias) = bias {
                let d_bias = sink.gradients(bias.start, bias.end)?;
                ops::bias_backward(d.as_ref(), d_bias, accumulate)?;
            }
            return Ok(());
        }
        if let Some(step) = dropout {
            step.apply(d.reborrow(), self.spec.dropout, layer)?;
        }
        let activation = self.spec.activation;
        let buffers = &self.layers[layer];
        let saved = buffers.saved(activation, n_rows)?;
        let (Some((mean, rstd)), Some(linear)) = (&buffers.stats, &buffers.linear) else {
            let d_bias = match bias {
                Some(bias) => Some(sink.gradients(bias.start, bias.end)?),
                None => None,
            };
            return Ok(ops::activation_backward(activation, saved, d, d_bias, accumulate)?);
        };
        ops::activation_backward(activation, saved, d.reborrow(), None, false)?;
        let gamma_slot = self.layout.find(layer, ParamKind::NormWeight).expect("a norm's scale");
        let beta_slot = self.layout.find(layer, ParamKind::NormBias).expect("a norm's shift");
        // Scale and shift stand side by side, each at an aligned place.
        let both = sink.gradients(gamma_slot.start, beta_slot.range().end)?;
        let (d_gamma, d_beta) = both.split_at(beta_slot.start - gamma_slot.start)?;
        let grads = LayerNormGrads { d: d.reborrow(), d_gamma: d_gamma.range(0, out_features)?, d_beta };
        let (mean, rstd) = (mean.view().rows(0, n_rows)?, rstd.view().rows(0, n_rows)?);
        let gamma = self.weights.view().range(gamma_slot.start, gamma_slot.range().end)?;
        ops::layer_norm_backward(linear.view().rows(0, n_rows)?, gamma, mean, rstd, grads, accumulate)?;
        if let Some(bias) = bias {
            let d_bias = sink.gradients(bias.start, bias.end)?;
            ops::bias_backward(d.as_ref(), d_bias, accumulate)?;
        }
        Ok(())
    }

    /// The gradient of layer `layer`'s weight, and on a GPU that of its bias.
    fn backward_to_weight<S: GradientSink>(
        &mut self,
        layer: usize,
        x: TensorRef<'_>,
        accumulate: bool,
        sink: &mut S,
    ) -> std::result::Result<(), S::Error> {
        let (n_rows, _) = x.shape().rows_cols();
        let (_, out_features) = self.spec.in_out(layer);
        let sums_bias = self.sums_bias_in_product();
        let mode = self.precision.matmul_mode();
        // Taken apart, since the scratch is written while activations and gradients are read.
        let Mlp { d, layers, first_x, layout, workspace, .. } = self;
        let (layer_x, workspace) = (input(&layers[..layer], first_x, x)?, workspace.view_mut());
        let d_y = d[0].view().range(0, n_rows * out_features)?.reshape(&[n_rows, out_features])?;
        let slot = layout.find(layer, ParamKind::Weight).expect("every layer has a weight");
        let Some(bias) = layout.find(layer, ParamKind::Bias).filter(|_| sums_bias) else {
            let d_weight = sink.gradients(slot.start, slot.range().end)?.reshape(&slot.dims)?;
            ops::linear_backward_weight(mode, d_y, layer_x, d_weight, None, accumulate, workspace)?;
            return Ok(());
        };
        // The bias stands before the weight, each at an aligned place.
        let both = sink.gradients(bias.start, slot.range().end)?;
        let (d_bias, d_weight) = both.split_at(slot.start - bias.start)?;
        let (d_bias, d_weight) = (d_bias.range(0, out_features)?, d_weight.reshape(&slot.dims)?);
        ops::linear_backward_weight(mode, d_y, layer_x, d_weight, Some(d_bias), accumulate, workspace)?;
        Ok(())
    }

    /// The gradient of layer `layer`'s input into the second gradient buffer; where the layer before goes through the product,
    /// that of its `x·Wᵀ + b`.
    fn backward_to_input(&mut self, layer: usize, n_rows: usize) -> Result<()> {
        let (in_features, out_features) = self.spec.in_out(layer);
        let mode = self.precision.matmul_mode();
        let through = layer > 0 && goes_through_product(&self.spec, layer - 1, self.device());
        let residual = self.spec.has_residual(layer);
        let activation = self.spec.activation;
        // Taken apart, since the gradient is written while weights and activations are read.
        let Mlp { d: [d, d_x], layers, weights, working_copy, layout, workspace, .. } = self;
        let products = working_copy.as_ref().unwrap_or(weights);
        let weight = param(products, layout, layer, ParamKind::Weight)?.expect("every layer has a weight");
        let d_y = d.view().range(0, n_rows * out_features)?.reshape(&[n_rows, out_features])?;
        let d_x = head(d_x, n_rows, in_features)?;
        let through = match layer.checked_sub(1).filter(|_| through).map(|before| &layers[before]) {
            Some(before) => Some(ThroughActivation {
                activation,
                saved: before.saved(activation, n_rows)?,
                relu_mask: before.relu_mask.as_ref().filter(|_| before.is_masked).map(Tensor::view),
            }),
            None => None,
        };
        ops::linear_backward_input(mode, d_y, weight, d_x, through, residual, workspace.view_mut())
    }
}
