//! The kinds of layers, one file each, and the order in which a config's settings become layers.

mod activation;
mod cast;
mod dropout;
mod embedding;
mod layer_norm;
mod linear;
mod residual;

pub use activation::ActivationLayer;
pub use cast::Cast;
pub use dropout::Dropout;
pub use embedding::EmbeddingLayer;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use residual::{SkipBegin, SkipEnd};

use super::layer::Layer;
use super::linear_spec::LinearSpec;
use super::spec::ModelSpec;

/// The layers of `spec` in forward order, before any fusion.
///
/// A hidden layer is `y = dropout(f(norm(x·Wᵀ + b)))`, plus `x` where it has a residual connection; the last layer is linear. In
/// front of them, rows of tables replace the codes of categorical features.
pub fn of_spec(spec: &ModelSpec) -> Vec<Box<dyn Layer>> {
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
