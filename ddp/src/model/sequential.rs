//! A list of layers that is built one layer at a time, with skip connections and blocks.
//!
//! Blocks are functions that add their layers to the list. The list stays flat, so neighbors are fused and gradients are
//! exchanged layer by layer across blocks.

use ddp_kernels::KernelError;
use ddp_kernels::ops::{Activation, Gate};

use super::layer::{Layer, Sizes};
use super::layer_list::LayerList;
use super::layers::{BatchNorm1d, SkipBegin, SkipEnd};
use super::network::Network;
use crate::config::LayerConfig;

/// Layers in forward order. Each method adds a layer that fits the current width of the rows.
///
/// Parameters are named by their kind and number: `layers.0.weight`, `norms.0.weight`.
///
/// ```
/// use ddp::nn::{Activation, Precision, Sequential, Sizes};
/// use ddp::prelude::*;
///
/// /// A block: whatever a function adds.
/// fn block(layers: Sequential) -> Sequential {
///     let width = layers.width();
///     layers.residual(|body| body.layer_norm().linear(4 * width).activation(Activation::Gelu).linear(width))
/// }
///
/// let layers = Sequential::new(8).linear(16).then(block).then(block).linear(3);
/// let sizes = Sizes { max_rows: 32, device: Device::Cpu, precision: Precision::F32 };
/// let model = layers.build(sizes, 0)?;
/// assert_eq!((model.n_outputs(), model.named_parameters()?.len()), (3, 16));
/// # Ok::<(), KernelError>(())
/// ```
///
/// Source: `torch.nn.Sequential`.
#[derive(Debug)]
pub struct Sequential {
    list: LayerList,
    n_features: usize,
    fault: Option<KernelError>,
}

impl Sequential {
    /// An empty list for rows of `n_features`.
    pub fn new(n_features: usize) -> Self {
        Sequential { list: LayerList::new(n_features), n_features, fault: None }
    }

    /// Adds any layer, such as a custom one.
    #[must_use]
    pub fn layer(mut self, layer: impl Layer + 'static) -> Self {
        self.list.push(layer);
        self
    }

    fn add(mut self, layer: LayerConfig) -> Self {
        match layer.fault() {
            None => self.list.add(layer),
            // Building the model reports the first one.
            Some((kind, problem)) => {
                let remedy = "layers take the settings that `model.layers` of a config takes";
                self.fault.get_or_insert(KernelError::misuse(kind, problem, remedy));
            }
        }
        self
    }

    /// Checks the settings of the layers.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for the first layer that no config may have, such as one of no width.
    pub fn check(&self) -> Result<(), KernelError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Adds `y = x·Wᵀ + b` with `out_features` outputs: `layers.{i}.weight` and `layers.{i}.bias`.
    #[must_use]
    pub fn linear(self, out_features: usize) -> Self {
        self.add(LayerConfig::Linear { out_features, activation: None, bias: true })
    }

    /// Adds `y = x·Wᵀ` with `out_features` outputs: `layers.{i}.weight`.
    #[must_use]
    pub fn linear_without_bias(self, out_features: usize) -> Self {
        self.add(LayerConfig::Linear { out_features, activation: None, bias: false })
    }

    /// Adds a gated linear unit with `out_features` outputs: the linear layer `layers.{i}`, twice as wide, and its gate.
    #[must_use]
    pub fn glu(self, gate: Gate, out_features: usize) -> Self {
        self.add(LayerConfig::Glu { out_features, gate, bias: true })
    }

    /// Adds an activation.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        self.add(LayerConfig::Activation(activation))
    }

    /// Adds `max(x, 0)`: [`Activation::Relu`].
    #[must_use]
    pub fn relu(self) -> Self {
        self.activation(Activation::Relu)
    }

    /// Adds a Gaussian error linear unit: [`Activation::Gelu`].
    #[must_use]
    pub fn gelu(self) -> Self {
        self.activation(Activation::Gelu)
    }

    /// Adds `x * sigmoid(x)`: [`Activation::Silu`].
    #[must_use]
    pub fn silu(self) -> Self {
        self.activation(Activation::Silu)
    }

    /// Adds the hyperbolic tangent: [`Activation::Tanh`].
    #[must_use]
    pub fn tanh(self) -> Self {
        self.activation(Activation::Tanh)
    }

    /// Adds `1 / (1 + e^-x)`: [`Activation::Sigmoid`].
    #[must_use]
    pub fn sigmoid(self) -> Self {
        self.activation(Activation::Sigmoid)
    }

    /// Adds a layer norm: `norms.{i}.weight` and `norms.{i}.bias`.
    #[must_use]
    pub fn layer_norm(self) -> Self {
        self.add(LayerConfig::LayerNorm)
    }

    /// Adds a root mean square norm: `norms.{i}.weight`.
    #[must_use]
    pub fn rms_norm(self) -> Self {
        self.add(LayerConfig::RmsNorm)
    }

    /// Adds a batch norm with statistics over a micro-batch across all ranks: `norms.{i}.weight`, `norms.{i}.bias`, and the
    /// buffers `norms.{i}.running_mean` and `norms.{i}.running_var`.
    #[must_use]
    pub fn batch_norm(self) -> Self {
        self.add(LayerConfig::BatchNorm { eps: BatchNorm1d::EPS, momentum: BatchNorm1d::MOMENTUM })
    }

    /// Adds a learned factor for each column: `scales.{i}.weight`.
    #[must_use]
    pub fn scale(self) -> Self {
        self.add(LayerConfig::Scale)
    }

    /// Adds periodic embeddings of each column by `n_frequencies` cosines, `dim` columns wide: `numeric.{i}.frequencies`, `.phases`,
    /// `.weight` and `.bias`; see [`NumericEmbeddingLayer`](super::layers::NumericEmbeddingLayer).
    #[must_use]
    pub fn numeric_embedding(self, n_frequencies: usize, dim: usize, sigma: f64) -> Self {
        self.add(LayerConfig::NumericEmbedding { dim, n_frequencies, sigma })
    }

    /// Adds dropout with probability `p`.
    #[must_use]
    pub fn dropout(self, p: f64) -> Self {
        self.add(LayerConfig::Dropout { p })
    }

    /// Adds `y = x + body(x)`.
    ///
    /// # Panics
    /// If the body changes the width.
    #[must_use]
    pub fn residual(self, body: impl FnOnce(Self) -> Self) -> Self {
        let width = self.width();
        let ended = body(self.layer(SkipBegin::new(width)));
        assert_eq!(ended.width(), width, "the body of a residual connection keeps the width");
        ended.layer(SkipEnd::new(width))
    }

    /// Adds the layers of a block.
    #[must_use]
    pub fn then(self, block: impl FnOnce(Self) -> Self) -> Self {
        block(self)
    }

    /// Width of the rows after the layers so far.
    pub fn width(&self) -> usize {
        self.list.width
    }

    /// Width of the model's input.
    pub fn n_features(&self) -> usize {
        self.n_features
    }

    /// The layers.
    pub fn into_layers(self) -> Vec<Box<dyn Layer>> {
        self.list.layers
    }

    /// The model of these layers, its weights initialized from `seed`: [`Network::from_layers`].
    ///
    /// # Errors
    /// Same as [`Network::from_layers`] and [`Sequential::check`].
    ///
    /// # Panics
    /// Same as [`Network::from_layers`].
    pub fn build(self, sizes: Sizes, seed: u64) -> Result<Network, KernelError> {
        self.check()?;
        Network::from_layers(self.list.layers, self.n_features, sizes, seed)
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::Device;

    use super::*;
    use crate::config::precision::Precision;
    use crate::model::{ModelSpec, layers};

    #[test]
    fn the_layers_are_those_of_the_same_perceptron_of_a_config() {
        let spec = ModelSpec {
            layer_norm: true,
            dropout: 0.1,
            residual: true,
            ..ModelSpec::plain(&[4, 6, 6, 2], Activation::Tanh)
        };
        let hidden =
            |layers: Sequential| layers.linear(6).layer_norm().activation(Activation::Tanh).dropout(0.1);
        let built = Sequential::new(4).then(hidden).residual(hidden).linear(2);
        let described =
            |layers: Vec<Box<dyn Layer>>| layers.iter().map(|layer| layer.describe()).collect::<Vec<_>>();
        let names = |layers: &[Box<dyn Layer>]| {
            layers.iter().flat_map(|layer| layer.parameters().to_vec()).collect::<Vec<_>>()
        };
        let (built, of_spec) = (built.into_layers(), layers::from_spec(&spec));
        assert_eq!(names(&built), names(&of_spec));
        assert_eq!(described(built), described(of_spec));
    }

    #[test]
    #[should_panic(expected = "keeps the width")]
    fn a_residual_connection_keeps_the_width() {
        let _ = Sequential::new(4).residual(|body| body.linear(5));
    }

    #[test]
    fn a_model_moves_with_its_layers() {
        let layers = Sequential::new(3).linear(4).activation(Activation::Relu).linear(2);
        let sizes = Sizes { max_rows: 2, device: Device::Cpu, precision: Precision::Bf16 };
        let model = layers.build(sizes, 1).unwrap();
        let described = |model: &Network| model.layers().map(|layer| layer.describe()).collect::<Vec<_>>();
        let (before, weights) = (described(&model), model.weights().to_vec::<f32>().unwrap());
        let moved = model.to(Device::Cpu).unwrap();
        assert_eq!((described(&moved), moved.weights().to_vec::<f32>().unwrap()), (before, weights));
    }
}
