//! `model.kind`: presets that stand for lists of layers.

use ddp_kernels::ops::{Activation, Gate};

use super::layers::{LayerConfig, LayerEntry};
use super::value::config_enum;

config_enum! {
    /// Architecture of a model.
    pub enum ModelKind {
        /// Multilayer perceptron.
        Mlp = "mlp",
        /// Residual blocks of two linear layers, preceded by layer norm.
        ResMlp = "resmlp",
        /// Residual blocks of a SwiGLU and a linear layer, preceded by RMS norm.
        SwiGlu = "swiglu",
        /// Layers for tables: features are clipped, embedded and scaled before a perceptron.
        PeriodicMlp = "periodic_mlp",
    }
}

/// Factor by which a residual block of two linear layers widens its rows.
const EXPANSION: usize = 2;
/// Widths of gated units are multiples of this: 16 bytes of a 16-bit format, which matmuls on GPUs prefer.
const WIDTH_MULTIPLE: usize = 8;

/// Settings of a preset.
pub(super) struct Preset<'a> {
    /// Width of each block.
    pub(super) hidden: &'a [usize],
    pub(super) activation: Activation,
    pub(super) dropout: f64,
    pub(super) bias: bool,
}

impl Preset<'_> {
    /// Residual blocks `x + dropout(linear(dropout(f(linear(norm(x))))))`; a linear layer before each change of width; a norm and
    /// `f` at the end.
    ///
    /// Source: the ResNet of arXiv:2106.11959, with layer norm in place of batch norm.
    pub(super) fn res_mlp(&self) -> Vec<LayerEntry> {
        let block = |width: usize| {
            let inner = self.linear(EXPANSION * width, Some(self.activation));
            let body = [LayerConfig::LayerNorm, inner].into_iter().chain(self.dropout());
            body.chain([self.linear(width, None)]).chain(self.dropout()).collect()
        };
        let end = [LayerConfig::LayerNorm, LayerConfig::Activation(self.activation)];
        self.blocks(block, &end)
    }

    /// Residual blocks `x + dropout(linear(dropout(swiglu(norm(x)))))`; a linear layer before each change of width; a norm at the
    /// end.
    ///
    /// Source: arXiv:2002.05202; its gated units are 2/3 as wide as the layer that they replace, so that they have as many parameters.
    pub(super) fn swi_glu(&self) -> Vec<LayerEntry> {
        let block = |width: usize| {
            let out_features = (2 * EXPANSION * width).div_ceil(3).next_multiple_of(WIDTH_MULTIPLE);
            let gated = LayerConfig::Glu { out_features, gate: Gate::SwiGlu, bias: self.bias };
            let body = [LayerConfig::RmsNorm, gated].into_iter().chain(self.dropout());
            body.chain([self.linear(width, None)]).chain(self.dropout()).collect()
        };
        self.blocks(block, &[LayerConfig::RmsNorm])
    }

    /// Clips the features smoothly, embeds them by cosines, scales them, and applies a multilayer perceptron.
    ///
    /// Source: the architecture of RealMLP, arXiv:2407.04491, without what makes most of that method: its neural tangent parametrization
    /// and data-driven initial weights, its schedules of learning rate and dropout, and its learning rates for single parameters.
    pub(super) fn periodic_mlp(&self) -> Vec<LayerEntry> {
        let mut layers = vec![
            LayerConfig::Activation(Activation::SmoothClip),
            LayerConfig::NumericEmbedding { dim: 4, n_frequencies: 16, sigma: 0.1 },
            LayerConfig::Scale,
        ];
        for &width in self.hidden {
            layers.push(self.linear(width, Some(self.activation)));
            layers.extend(self.dropout());
        }
        layers.into_iter().map(LayerConfig::once).collect()
    }

    fn blocks(&self, body: impl Fn(usize) -> Vec<LayerConfig>, end: &[LayerConfig]) -> Vec<LayerEntry> {
        let mut layers = Vec::new();
        for blocks in self.hidden.chunk_by(|a, b| a == b) {
            layers.push(self.linear(blocks[0], None).once());
            let body = body(blocks[0]).into_iter().map(LayerConfig::once).collect();
            layers.push(LayerEntry { layer: LayerConfig::Residual { layers: body }, repeat: blocks.len() });
        }
        layers.extend(end.iter().cloned().map(LayerConfig::once));
        layers
    }

    fn linear(&self, out_features: usize, activation: Option<Activation>) -> LayerConfig {
        LayerConfig::Linear { out_features, activation, bias: self.bias }
    }

    fn dropout(&self) -> Option<LayerConfig> {
        (self.dropout > 0.0).then_some(LayerConfig::Dropout { p: self.dropout })
    }
}
