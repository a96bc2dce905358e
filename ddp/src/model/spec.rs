//! Sizes and kinds of a model's layers and of the embeddings before them.
//!
//! ```
//! use ddp::model::EmbeddingSpec;
//! use ddp::nn::{Activation, ModelSpec};
//!
//! let city = EmbeddingSpec { name: "city".to_owned(), n_codes: 5, dim: 3 };
//! let spec = ModelSpec::plain(&[6, 8, 2], Activation::Relu).with_embeddings(vec![city]);
//! // The last of 6 columns holds codes; the first layer reads 5 numbers and a row of 3.
//! assert_eq!((spec.n_features(), spec.in_out(0), spec.n_outputs()), (6, (8, 8), 2));
//! ```

use ddp_kernels::ops::Activation;

use super::EmbeddingSpec;
use crate::config::{LayerEntry, ModelConfig, Norm};

/// A multilayer perceptron: linear layers with an activation after each but the last. Alternatively a list of layers and an
/// output layer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Widths from the first linear layer's input to the outputs; one more than the number of linear layers outside of blocks.
    pub dims: Vec<usize>,
    /// Activation after each hidden layer.
    pub activation: Activation,
    /// Whether a layer norm is between each hidden linear layer and its activation.
    pub layer_norm: bool,
    /// Probability with which a hidden value is dropped in training.
    pub dropout: f64,
    /// Whether a hidden layer's input is added to its output if the widths are equal.
    pub residual: bool,
    /// Whether linear layers have a bias.
    pub bias: bool,
    /// Tables for the codes in the last columns of the input, in their order.
    pub embeddings: Vec<EmbeddingSpec>,
    /// The layers before the output layer, in place of those of a perceptron; empty for a perceptron.
    pub layers: Vec<LayerEntry>,
}

impl ModelSpec {
    /// The spec of `config` with this number of features and outputs.
    pub fn new(config: &ModelConfig, n_features: usize, n_outputs: usize) -> Self {
        let of_entry = |entry: &LayerEntry| {
            let width = entry.layer.out_features();
            width.into_iter().cycle().take(entry.repeat)
        };
        let hidden = config.hidden.iter().copied().chain(config.layers.iter().flat_map(of_entry));
        let dims = std::iter::once(n_features).chain(hidden).chain([n_outputs]).collect();
        ModelSpec {
            dims,
            activation: config.activation,
            layer_norm: config.norm == Norm::Layer,
            dropout: config.dropout,
            residual: config.residual,
            bias: config.bias,
            embeddings: Vec::new(),
            layers: config.layers.clone(),
        }
    }

    /// Adds these embeddings before the model: the last columns of its input, one per embedding, hold codes, and the first linear
    /// layer reads rows of the tables in their place.
    ///
    /// # Panics
    /// If there are more embeddings than columns, if two have the same name, or if a table has width 0 or not 1 to 2^24 codes.
    #[must_use]
    pub fn with_embeddings(mut self, embeddings: Vec<EmbeddingSpec>) -> Self {
        let n_features = self.n_features();
        if let Err(reason) = EmbeddingSpec::check(&embeddings, n_features) {
            panic!("{reason}");
        }
        self.dims[0] = n_features - embeddings.len() + embeddings.iter().map(|e| e.dim).sum::<usize>();
        self.embeddings = embeddings;
        self
    }

    /// Linear layers of these widths, with biases and an activation after each but the last, and nothing else.
    ///
    /// # Panics
    /// If there are fewer than two widths.
    pub fn plain(dims: &[usize], activation: Activation) -> Self {
        assert!(dims.len() >= 2, "a model has features and outputs");
        ModelSpec {
            dims: dims.to_vec(),
            activation,
            layer_norm: false,
            dropout: 0.0,
            residual: false,
            bias: true,
            embeddings: Vec::new(),
            layers: Vec::new(),
        }
    }

    /// Columns of the input, codes included.
    pub fn n_features(&self) -> usize {
        self.dims[0] - self.embeddings.iter().map(|e| e.dim).sum::<usize>() + self.embeddings.len()
    }

    /// Number of linear layers outside of blocks.
    pub fn n_layers(&self) -> usize {
        self.dims.len() - 1
    }

    /// Width of the last layer.
    pub fn n_outputs(&self) -> usize {
        self.dims[self.n_layers()]
    }

    /// In- and out-features of linear layer `layer`.
    pub fn in_out(&self, layer: usize) -> (usize, usize) {
        (self.dims[layer], self.dims[layer + 1])
    }

    /// Whether `layer` is followed by an activation: all are but the last.
    pub fn is_hidden(&self, layer: usize) -> bool {
        layer + 1 < self.n_layers()
    }

    /// Whether the input of `layer` is added to its output.
    pub fn has_residual(&self, layer: usize) -> bool {
        let (i, o) = self.in_out(layer);
        self.residual && self.is_hidden(layer) && i == o
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_flop_as_the_passes_do() {
        let spec = ModelSpec {
            dims: vec![64, 128, 10],
            activation: Activation::Relu,
            layer_norm: false,
            dropout: 0.0,
            residual: true,
            bias: true,
            embeddings: Vec::new(),
            layers: Vec::new(),
        };
        assert_eq!(spec.flop_per_row(), 4 * 64 * 128 + 6 * 128 * 10);
        assert!(!spec.has_residual(0) && spec.is_hidden(0) && !spec.is_hidden(1));
    }

    #[test]
    fn embeddings_widen_the_first_layer() {
        let embedding = |name: &str, dim| EmbeddingSpec { name: name.to_owned(), n_codes: 5, dim };
        let plain = ModelSpec::plain(&[6, 8, 2], Activation::Relu);
        let spec = plain.clone().with_embeddings(vec![embedding("a", 3), embedding("b", 1)]);
        assert_eq!((spec.dims.as_slice(), spec.n_features()), ([8, 8, 2].as_slice(), 6));
        assert_eq!(spec.flop_per_row(), 6 * (8 * 8 + 8 * 2));
        assert_eq!(spec.with_embeddings(Vec::new()), plain);
    }
}
