//! The kinds of layers, one file each.
//!
//! To add a kind that configs can name, add a row to the list in `config/layers.rs` and a file of the row's name here. Its function `add`
//! takes the row's settings in their order, and its public items become items of this module. A layer describes itself to reports and
//! to the export.
//!
//! A macro declares these files, so `cargo fmt` skips them: format them with `rustfmt ddp/src/model/layers/*.rs`.
//!
//! ```
//! use ddp::model::layers;
//! use ddp::nn::{Activation, ModelSpec};
//!
//! let spec = ModelSpec { layer_norm: true, ..ModelSpec::plain(&[4, 8, 2], Activation::Relu) };
//! let widths: Vec<usize> = layers::from_spec(&spec).iter().map(|layer| layer.out_features()).collect();
//! assert_eq!(widths, [8, 8, 8, 2], "linear, norm, activation, linear");
//! ```

mod cast;
mod embedding;

pub use cast::Cast;
pub use embedding::EmbeddingLayer;

use super::layer::Layer;
use super::layer_list::LayerList;
use super::linear_spec::LinearSpec;
use super::spec::ModelSpec;
use crate::config::{LayerConfig, LayerEntry, for_each_layer_kind};

/// Declares the file of each kind, and adds layers of configs by its function `add`.
macro_rules! layer_files {
    ($($name:ident: $variant:ident $({ $($setting:ident),+ })? $(($only:ident))?),+) => {
        $(
            mod $name;
            pub use $name::*;
        )+

        impl LayerList {
            /// Adds the layers that this layer of a config expands to.
            pub(super) fn add(&mut self, layer: LayerConfig) {
                match layer {
                    $(LayerConfig::$variant $({ $($setting),+ })? $(($only))? => {
                        $name::add(self, $($($setting),+)? $($only)?);
                    })+
                }
            }
        }
    };
}
for_each_layer_kind!(layer_files);

impl LayerList {
    /// Adds the layers of a list, each as often as its `repeat` says.
    fn add_entries(&mut self, entries: &[LayerEntry]) {
        for LayerEntry { layer, repeat } in entries {
            for _ in 0..*repeat {
                self.add(layer.clone());
            }
        }
    }
}

/// The layers of `spec` in forward order, before any fusion.
///
/// In a multilayer perceptron, a hidden layer is `y = dropout(f(norm(x·Wᵀ + b)))`, plus `x` if it has a residual connection; the
/// last layer is linear. Before them, rows of tables replace the codes of categorical features.
pub fn from_spec(spec: &ModelSpec) -> Vec<Box<dyn Layer>> {
    if !spec.layers.is_empty() {
        return from_list(spec);
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

/// The layers of a spec with a list of layers, and the output layer.
fn from_list(spec: &ModelSpec) -> Vec<Box<dyn Layer>> {
    let mut list = LayerList::new(spec.n_features());
    if !spec.embeddings.is_empty() {
        list.push(EmbeddingLayer::new(spec.embeddings.clone(), spec.dims[0]));
    }
    list.add_entries(&spec.layers);
    list.add(LayerConfig::Linear { out_features: spec.n_outputs(), activation: None, bias: spec.bias });
    list.layers
}
