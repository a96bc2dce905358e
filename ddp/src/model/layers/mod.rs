//! The kinds of layers, one file each, and the order in which a config's settings become layers.
//!
//! A kind that needs no fusion is one file, an entry here, and one in `config/layers.rs` if configs may name it: it describes
//! itself to reports and to the export.

mod activation;
mod batch_norm;
mod cast;
mod dropout;
mod embedding;
mod gated;
mod layer_norm;
mod linear;
mod numeric_embedding;
mod residual;
mod rms_norm;
mod scale;

pub use activation::ActivationLayer;
pub use batch_norm::BatchNorm1d;
pub use cast::Cast;
pub use dropout::Dropout;
pub use embedding::EmbeddingLayer;
pub use gated::Gated;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use numeric_embedding::NumericEmbeddingLayer;
pub use residual::{SkipBegin, SkipEnd};
pub use rms_norm::RmsNorm;
pub use scale::Scale;

use ddp_kernels::ops::{Activation, Gate};

use super::layer::Layer;
use super::linear_spec::LinearSpec;
use super::spec::ModelSpec;
use crate::config::{LayerConfig, LayerEntry};

/// The layers of `spec` in forward order, before any fusion.
///
/// In a multilayer perceptron, a hidden layer is `y = dropout(f(norm(x·Wᵀ + b)))`, plus `x` where it has a residual connection; the last layer
/// is linear. In front of them, rows of tables replace the codes of categorical features.
pub fn of_spec(spec: &ModelSpec) -> Vec<Box<dyn Layer>> {
    if !spec.layers.is_empty() {
        return of_list(spec);
    }
    let mut layers: Vec<Box<dyn Layer>> = Vec::new();
    if !spec.embeddings.is_empty() {
        layers.push(Box::new(EmbeddingLayer::new(spec.embeddings.clone(), spec.dims[0])));
    }
    for index in 0..spec.n_layers() {
        let (in_features, out_features) = spec.in_out(index);
        let linear = LinearSpec::new(index, in_features, out_features, spec.bias);
        if !spec.is_hidden(index) {
            layers.push(Box::new(Linear::new(linear)));
            break;
        }
        if spec.has_residual(index) {
            layers.push(Box::new(SkipBegin::new(in_features)));
        }
        layers.push(Box::new(Linear::new(linear)));
        if spec.layer_norm {
            layers.push(Box::new(LayerNorm::new(index, out_features)));
        }
        layers.push(Box::new(ActivationLayer::new(spec.activation, out_features)));
        if spec.dropout > 0.0 {
            layers.push(Box::new(Dropout::new(index, spec.dropout, out_features)));
        }
        if spec.has_residual(index) {
            layers.push(Box::new(SkipEnd::new(out_features)));
        }
    }
    layers
}

/// The layers of a spec that lists them, and the output layer.
fn of_list(spec: &ModelSpec) -> Vec<Box<dyn Layer>> {
    let mut list = LayerList::new(spec.n_features());
    if !spec.embeddings.is_empty() {
        list.push(EmbeddingLayer::new(spec.embeddings.clone(), spec.dims[0]));
    }
    add_entries(&mut list, &spec.layers);
    list.linear(spec.n_outputs(), spec.bias);
    list.layers
}

fn add_entries(list: &mut LayerList, entries: &[LayerEntry]) {
    for LayerEntry { layer, repeat } in entries {
        for _ in 0..*repeat {
            add_layer(list, layer);
        }
    }
}

fn add_layer(list: &mut LayerList, layer: &LayerConfig) {
    match layer {
        LayerConfig::Linear { out_features, activation, bias } => {
            list.linear(*out_features, *bias);
            if let Some(activation) = activation {
                list.activation(*activation);
            }
        }
        LayerConfig::Glu { out_features, gate, bias } => {
            list.linear(2 * out_features, *bias);
            list.gated(*gate);
        }
        LayerConfig::Activation(activation) => list.activation(*activation),
        LayerConfig::LayerNorm => list.norm(LayerNorm::new),
        LayerConfig::RmsNorm => list.norm(RmsNorm::new),
        LayerConfig::BatchNorm { eps, momentum } => {
            list.norm(|index, features| BatchNorm1d::with(index, features, *eps, *momentum));
        }
        LayerConfig::Dropout { p } => list.dropout(*p),
        LayerConfig::Scale => list.scale(),
        LayerConfig::NumericEmbedding { dim, n_frequencies, sigma } => {
            list.numeric_embedding(*n_frequencies, *dim, *sigma);
        }
        LayerConfig::Residual { layers } => {
            list.push(SkipBegin::new(list.width));
            add_entries(list, layers);
            list.push(SkipEnd::new(list.width));
        }
    }
}

/// A list of layers under construction, each of which fits the width of the rows so far.
///
/// Parameters are named by their kind and number: `layers.0.weight` of a linear layer, `norms.0.weight` of a norm.
#[derive(Debug)]
pub(super) struct LayerList {
    pub(super) layers: Vec<Box<dyn Layer>>,
    pub(super) width: usize,
    n_linear: usize,
    n_norms: usize,
    n_dropouts: usize,
    n_scales: usize,
    n_numeric: usize,
}

impl LayerList {
    /// No layers yet, for rows of this width.
    pub(super) fn new(width: usize) -> Self {
        let (n_linear, n_norms, n_dropouts, n_scales, n_numeric) = (0, 0, 0, 0, 0);
        LayerList { layers: Vec::new(), width, n_linear, n_norms, n_dropouts, n_scales, n_numeric }
    }

    pub(super) fn push(&mut self, layer: impl Layer + 'static) {
        self.width = layer.out_features();
        self.layers.push(Box::new(layer));
    }

    pub(super) fn linear(&mut self, out_features: usize, has_bias: bool) {
        let spec = LinearSpec::new(self.n_linear, self.width, out_features, has_bias);
        self.n_linear += 1;
        self.push(Linear::new(spec));
    }

    /// The gate of the linear layer before it.
    pub(super) fn gated(&mut self, gate: Gate) {
        self.push(Gated::new(gate, self.width / 2));
    }

    pub(super) fn activation(&mut self, activation: Activation) {
        self.push(ActivationLayer::new(activation, self.width));
    }

    /// A norm that `new` makes of its number and width.
    pub(super) fn norm<N: Layer + 'static>(&mut self, new: impl FnOnce(usize, usize) -> N) {
        let norm = new(self.n_norms, self.width);
        self.n_norms += 1;
        self.push(norm);
    }

    pub(super) fn scale(&mut self) {
        let scale = Scale::new(self.n_scales, self.width);
        self.n_scales += 1;
        self.push(scale);
    }

    pub(super) fn numeric_embedding(&mut self, n_frequencies: usize, dim: usize, sigma: f64) {
        let embedding = NumericEmbeddingLayer::new(self.n_numeric, self.width, n_frequencies, dim, sigma);
        self.n_numeric += 1;
        self.push(embedding);
    }

    pub(super) fn dropout(&mut self, p: f64) {
        let dropout = Dropout::new(self.n_dropouts, p, self.width);
        self.n_dropouts += 1;
        self.push(dropout);
    }
}
